//! `gradus train tabular`: a column of a CSV file from the others.

use gradus::data::UnknownCategory;
use gradus::prelude::*;
use gradus::tasks::tabular::{Design, Goal, Network, Options, Spec, measure};
use gradus::tasks::{self, Measured};
use gradus::train::{Example, Examples};
use toml::Value;

use super::fingerprint::Fingerprint;
use super::folds::{self, Folds};
use super::held_out::held_out;
use super::job::{Job, Metric, Results, Settings};
use super::report::name_of;
use super::run::train;
use super::session::Session;
use super::table_fit::{Fit, batch_and_epochs, fit};
use crate::args::{GoalName, TabularArgs, TabularModel, Unknown};
use crate::output::{matrix, thousands};

/// The default learning rate.
const LR: f64 = 0.002;

/// The number of rows that the report shows, and the most bytes that each takes.
const EXAMPLE_COUNT: usize = 12;
const EXAMPLE_BYTES: usize = 4096;

/// The number of columns and of characters of each value that an example shows.
const MOST_COLUMNS: usize = 20;
const MOST_CHARACTERS: usize = 60;

/// Runs the command.
pub(super) fn run(args: &TabularArgs) -> Result<()> {
    let mut session = Session::open(&args.options)?;
    let table = Table::read(&args.file, &CsvOptions { delimiter: args.delimiter, ..CsvOptions::default() })?;
    let options = Options {
        classify: args.goal.map(|goal| goal == GoalName::Classification),
        drop: args.drop.clone(),
        design: match args.model {
            TabularModel::Mlp => Design::mlp(),
            TabularModel::FtTransformer => Design::ft_transformer(),
        },
        unknown_category: match args.unknown_category {
            Unknown::Refuse => UnknownCategory::Refuse,
            Unknown::None => UnknownCategory::None,
        },
        delimiter: args.delimiter,
    };
    // Everything that is wrong with the columns is an error before a folder is made.
    let spec = Spec::fit(&table, &args.target, options.clone())?;
    let options = Options { classify: Some(matches!(spec.goal, Goal::Classification { .. })), ..options };
    let (training, test) = match args.cv {
        Some(_) => (table.clone(), None),
        None => held_out(&table, &spec, options.unknown_category, args.options.seed)
            .map(|(train, test)| (train, Some(test)))?,
    };
    let spec = Spec::fit(&training, &args.target, options.clone())?;
    let mut settings = settings(args, training.len());
    // The folds would be trained again.
    settings.resumes = args.cv.is_none();
    settings.data = fingerprint(&table);
    let unknown = options.unknown_category;
    let folds = args.cv.map(|k| folds::split(&table, &spec, unknown, k, settings.seed)).transpose()?;

    let name = args.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or("table").to_owned();
    session.claim(&name, &[])?;
    let folds = folds.map(|splits| folds::run(&session, &table, &options, &args.target, splits, &settings));
    let folds = folds.transpose()?;

    let device = session.device.clone();
    let Fit { network, optimizer, loader, trainer, task } = fit(&spec, &training, &settings, &device, settings.seed)?;
    let goal = match &spec.goal {
        Goal::Classification { classes } => format!("{} classes of {:?}", classes.len(), spec.target),
        Goal::Regression { .. } => format!("numbers of {:?}", spec.target),
    };
    let columns = spec.preprocessor.kinds().len();
    let intro = format!(
        "training on {} rows, {columns} columns, for the {goal}, {} parameters, {device}",
        thousands(training.len()),
        thousands(network.num_parameters())
    );
    let job = Job {
        settings,
        model: network,
        optimizer: Box::new(optimizer),
        loader,
        validation: None,
        task,
        trainer,
        spec: tasks::Spec::Tabular(spec.clone()),
        files: Vec::new(),
        report_bytes: 2 * EXAMPLE_COUNT * EXAMPLE_BYTES + most_bytes_of_matrix(&spec),
        keeps_checkpoints: false,
        unit: "rows",
        intro,
    };
    train(&session, job, |network, _| {
        network.eval();
        let parameters = network.num_parameters();
        let tested = test.as_ref().map(|test| measure(&spec, network, test, &device)).transpose()?;
        let mut results = match (&folds, &test, tested) {
            (Some(folds), ..) => of_folds(folds, &spec),
            (None, Some(test), Some(tested)) => of_test(&spec, network, test, tested, &device)?,
            _ => return Err(Error::argument("train", "neither folds nor a test")),
        };
        let tested_rows = test.as_ref().map_or(table.len(), Table::len);
        results.page.title = format!("{} from {}", args.target, name_of(&args.file));
        results.page.subtitle = format!(
            "{} rows, {} {}; {columns} columns; {} parameters on {}",
            thousands(training.len()),
            thousands(tested_rows),
            if test.is_some() { "held out" } else { "tested by cross-validation" },
            thousands(parameters),
            args.options.common.device
        );
        results.page.classes = spec.classes().to_vec();
        results.network = vec![
            ("features", Value::from(spec.preprocessor.feature_names().len() as i64)),
            ("outputs", Value::from(spec.classes().len().max(1) as i64)),
            ("parameters", Value::from(parameters as i64)),
        ];
        results.counts = vec![("training_samples", training.len()), ("test_samples", tested_rows)];
        Ok(results)
    })
}

fn settings(args: &TabularArgs, rows: usize) -> Settings {
    let (batch_size, epochs) =
        batch_and_epochs(rows, args.options.batch_size, args.model == TabularModel::FtTransformer);
    let delimiter = if args.delimiter == b'\t' { "tab".into() } else { char::from(args.delimiter).to_string() };
    let model = if args.model == TabularModel::Mlp { "mlp" } else { "ft-transformer" };
    let mut own = vec![
        ("file", Value::from(args.file.display().to_string())),
        ("target", Value::from(args.target.clone())),
        ("model", Value::from(model)),
        ("delimiter", Value::from(delimiter)),
        ("unknown-category", Value::from(if args.unknown_category == Unknown::None { "none" } else { "refuse" })),
    ];
    if let Some(goal) = args.goal {
        let goal = if goal == GoalName::Classification { "classification" } else { "regression" };
        own.push(("goal", Value::from(goal)));
    }
    if !args.drop.is_empty() {
        own.push(("drop", Value::from(args.drop.clone())));
    }
    if let Some(k) = args.cv {
        own.push(("cv", Value::from(k as i64)));
    }
    Settings::new("tabular", &args.options, (epochs, batch_size, LR), own)
}

fn fingerprint(table: &Table) -> u64 {
    let mut print = Fingerprint::new();
    for column in table.columns() {
        print.add_text(column.name());
        match column.numbers() {
            Ok(numbers) => numbers.iter().for_each(|number| print.add(number.to_bits())),
            Err(_) => (0..column.len()).for_each(|row| print.add_text(&column.text(row).unwrap_or_default())),
        }
    }
    print.value()
}

/// The results of a test on rows that were held out.
fn of_test(spec: &Spec, network: &Network, test: &Table, tested: Measured, device: &Device) -> Result<Results> {
    let metrics: Vec<Metric> = tested
        .metrics
        .iter()
        .map(|m| Metric { key: format!("test_{}", m.key), name: format!("Test {}", lower(&m.name)), ..m.clone() })
        .collect();
    let shown: Vec<String> = metrics.iter().map(|m| format!("{} {}", lower(&m.name), m.shown())).collect();
    let mut lines = vec![format!("{}, on {} rows that were held out", shown.join(", "), thousands(test.len()))];
    let mut page = RunReport::default();
    page.examples = examples(spec, network, test, &tested, device)?;
    lines.extend(matrix(tested.confusion.as_ref(), spec.classes()));
    page.confusion = tested.confusion;
    Ok(Results { metrics, lines, page, network: vec![], counts: vec![], next: next() })
}

/// The results of a cross-validation.
fn of_folds(folds: &Folds, spec: &Spec) -> Results {
    let mut page = RunReport::default();
    page.confusion = folds.confusion.clone();
    let shown = folds
        .metrics
        .iter()
        .map(|(mean, spread)| format!("{} {} \u{b1} {}", lower(&mean.name), mean.shown(), spread.shown()));
    let shown: Vec<String> = shown.collect();
    let mut lines = vec![format!("{}-fold cross-validation: {}", folds.count, shown.join(", "))];
    lines.extend(matrix(folds.confusion.as_ref(), spec.classes()));
    let metrics = folds.metrics.iter().flat_map(|(mean, spread)| {
        let mean = Metric { key: format!("cv_{}", mean.key), name: format!("{} (CV)", mean.name), ..mean.clone() };
        let spread = Metric { key: format!("cv_{}", spread.key), ..spread.clone() };
        [mean, spread]
    });
    Results { metrics: metrics.collect(), lines, page, network: vec![], counts: vec![], next: next() }
}

fn next() -> Vec<String> {
    ["predict", "--model", "{out}/model.safetensors", "new.csv", "--out", "predictions.csv"].map(String::from).to_vec()
}

fn lower(name: &str) -> String {
    let mut rest = name.chars();
    let first = rest.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
    // `F1` and `R2` stay as they are.
    if rest.as_str().starts_with(|c: char| c.is_lowercase()) { first + rest.as_str() } else { name.to_owned() }
}

/// The rows with the largest loss.
fn examples(spec: &Spec, network: &Network, test: &Table, tested: &Measured, device: &Device) -> Result<Vec<Examples>> {
    let mut order: Vec<usize> = (0..test.len()).collect();
    order.sort_by(|&a, &b| tested.losses[b].total_cmp(&tested.losses[a]));
    order.truncate(EXAMPLE_COUNT);
    let worst = test.rows(&order)?;
    let answers = tasks::tabular::predict(spec, network, &worst, device)?;
    let target = worst.column(&spec.target)?;
    let all = answers.iter().enumerate().map(|(row, answer)| {
        let truth = target.text(row).unwrap_or_default();
        let (predicted, is_right, note) = match answer {
            tasks::Answer::Class { name, probability, .. } => {
                (name.clone(), Some(*name == truth), format!("{:.1} % sure", probability * 100.0))
            }
            other => (other.to_string(), None, String::new()),
        };
        let caption = if is_right == Some(true) { truth } else { format!("{truth}, predicted as {predicted}") };
        Example { png: None, text: shown_row(&worst, &spec.target, row), caption, note, is_right }
    });
    Ok(vec![Examples { title: "Held-out rows with the largest loss".into(), all: all.collect() }])
}

/// The values of a row as text, cut to what fits in the report.
fn shown_row(table: &Table, target: &str, row: usize) -> String {
    let cut = |text: &str| text.chars().take(MOST_CHARACTERS).collect::<String>();
    let columns = table.columns().iter().filter(|c| c.name() != target).take(MOST_COLUMNS);
    let values =
        columns.map(|c| format!("{}: {}", cut(c.name()), cut(&c.text(row).unwrap_or_else(|| "missing".into()))));
    values.collect::<Vec<_>>().join("\n")
}

/// The number of classes up to which the page shows the whole confusion matrix; above it, it lists mistakes.
const MATRIX_CLASSES: usize = 32;

/// The most bytes that the confusion matrix and the names of classes take on the page.
fn most_bytes_of_matrix(spec: &Spec) -> usize {
    let names: usize = spec.classes().iter().map(String::len).sum();
    let shown = spec.classes().len().min(MATRIX_CLASSES);
    100 * shown * shown + 20 * names
}
