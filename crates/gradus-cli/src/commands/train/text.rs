//! `gradus train text`: a language model of the shape of GPT-2 on a text.

use gradus::data::text::{TokenWindows, read_text};
use gradus::models::{GenerateOptions, Gpt2, Sampling};
use gradus::prelude::*;
use gradus::tasks;
use gradus::tasks::text::{Corpus, Sizes, Spec, loss_metrics, next_token_loss, once_in_each_epoch, write_on};
use gradus::train::{Example, Examples, Run};
use toml::Value;

use super::fingerprint::Fingerprint;
use super::job::{Job, Metric, Results, Settings};
use super::report::name_of;
use super::run::train;
use super::session::Session;
use crate::args::TextArgs;
use crate::output::thousands;

/// The key with which the generator of the samples in the report is forked from the seed.
const SAMPLES: u64 = 4;

/// The samples in the report: how many there are, of how many tokens, and how many characters of the text come before.
const SAMPLE_COUNT: usize = 6;
const SAMPLE_TOKENS: usize = 200;
const SAMPLE_PROMPT: usize = 40;

/// The temperature of the samples.
const SAMPLE_TEMPERATURE: f64 = 0.8;

/// Runs the command.
pub(super) fn run(args: &TextArgs) -> Result<()> {
    if !args.width.is_multiple_of(args.heads) {
        let m = format!("--heads {} does not divide --width {}", args.heads, args.width);
        return Err(
            Error::argument("train", m).help("choose a width that is a multiple of the heads, such as 32 a head")
        );
    }
    let mut session = Session::open(&args.options)?;
    let in_file = |e: Error| e.note(format!("in the file {}", args.file.display()));
    let text = read_text(&args.file)?;
    let mut print = Fingerprint::new();
    print.add_text(&text);
    let corpus = Corpus::new(&text, args.tokenizer).map_err(in_file)?;
    drop(text);
    let [training, validation] = corpus.windows(args.context).map_err(in_file)?;
    let sizes = Sizes { layers: args.layers, heads: args.heads, width: args.width, context: args.context };
    let mut settings = settings(args);
    settings.data = print.value();
    let device = session.device.clone();
    let mut generator = Generator::new(settings.seed);
    let config = sizes.config(corpus.vocabulary_size(), args.dropout);
    let model = Gpt2::new(config, &mut Init::new(DType::F32, &device, &mut generator))?;
    let name = args.file.file_stem().and_then(|n| n.to_str()).unwrap_or("text");
    session.claim(name, &[])?;

    let (matrices, vectors): (Vec<_>, Vec<_>) = model.named_parameters().into_iter().partition(|(_, p)| p.rank() > 1);
    let adam = AdamConfig { lr: settings.lr, beta2: 0.99, weight_decay: args.weight_decay, ..Default::default() };
    let optimizer = AdamW::with_groups([Group::new(matrices), Group::new(vectors).weight_decay(0.0)], adam)?;
    let sampler = once_in_each_epoch(&training, args.context);
    let loader =
        DataLoader::new(training, &device).batch_size(settings.batch_size).sampler(sampler, settings.seed).build()?;
    let validation = DataLoader::new(validation, &device).batch_size(settings.batch_size).build()?;
    let schedule = settings.schedule(loader.len(), 20, 0.1)?;
    let [learned, held_out] = corpus.lengths();
    let intro = format!(
        "training on {} tokens ({}), {} of them different, {} held out, {} parameters, {device}",
        thousands(learned),
        args.tokenizer,
        thousands(corpus.vocabulary_size()),
        thousands(held_out),
        thousands(model.num_parameters())
    );
    let spec = Spec { sizes, tokenizer: corpus.vocabulary().clone(), start: corpus.start().to_owned() };
    let job = Job {
        trainer: Trainer::new(settings.epochs)?.schedule(schedule).clip_norm(1.0)?.captured(),
        settings,
        model,
        optimizer: Box::new(optimizer),
        loader,
        validation: Some(&validation),
        task: next_token_loss::<Gpt2>,
        spec: tasks::Spec::Text(spec),
        files: Vec::new(),
        // A character takes at most six bytes in HTML.
        report_bytes: SAMPLE_COUNT * 6 * (SAMPLE_TOKENS * 16 + SAMPLE_PROMPT + 64),
        keeps_checkpoints: true,
        unit: "seq",
        intro,
    };
    train(&session, job, |model, run| judge(args, model, run, &corpus, &validation, &device))
}

fn settings(args: &TextArgs) -> Settings {
    let whole = |number: usize| Value::from(i64::try_from(number).unwrap_or(i64::MAX));
    let own = vec![
        ("file", Value::from(args.file.display().to_string())),
        ("tokenizer", Value::from(args.tokenizer.to_string())),
        ("layers", whole(args.layers)),
        ("heads", whole(args.heads)),
        ("width", whole(args.width)),
        ("context", whole(args.context)),
        ("dropout", Value::from(args.dropout)),
        ("weight-decay", Value::from(args.weight_decay)),
    ];
    Settings::new("text", &args.options, (5, 16, 0.002), own)
}

/// Measures the model on the held-out text, and lets it write samples.
fn judge(
    args: &TextArgs,
    model: &mut Gpt2,
    run: &Run,
    corpus: &Corpus,
    validation: &DataLoader<TokenWindows>,
    device: &Device,
) -> Result<Results> {
    // The last epoch ends with a validation, unless the run was stopped in the middle of it.
    let measured = run.epochs.last().and_then(|epoch| epoch.validation);
    let result = match measured {
        Some(result) => result,
        None => evaluate(model, validation, &next_token_loss::<Gpt2>)?,
    };
    let mut metrics = loss_metrics(result.loss, corpus.bytes_per_token());
    if let Some(loss) = metrics.first_mut() {
        *loss = Metric::number("validation_loss", "Validation loss", result.loss);
    }
    let shown: Vec<String> = metrics.iter().map(|m| format!("{} {}", m.name.to_lowercase(), m.shown())).collect();
    let line = format!("on the text that was held out: {}", shown.join(", "));
    let [learned, held_out] = corpus.lengths();
    let parameters = model.num_parameters();
    let mut page = RunReport::default();
    page.title = format!("Language model of {}", name_of(&args.file));
    page.subtitle = format!(
        "{} tokens ({}), {} held out; {} parameters on {}",
        thousands(learned),
        args.tokenizer,
        thousands(held_out),
        thousands(parameters),
        args.options.common.device
    );
    page.examples = vec![samples(args, model, corpus, device)?];
    Ok(Results {
        metrics,
        lines: vec![line],
        page,
        network: vec![
            ("vocabulary", Value::from(corpus.vocabulary_size() as i64)),
            ("parameters", Value::from(parameters as i64)),
        ],
        counts: vec![("training_tokens", learned), ("validation_tokens", held_out)],
        next: ["generate", "--model", "{out}/model.safetensors"].map(String::from).to_vec(),
    })
}

/// What the model makes of the beginnings of held-out passages.
fn samples(args: &TextArgs, model: &mut Gpt2, corpus: &Corpus, device: &Device) -> Result<Examples> {
    let mut generator = Generator::new(args.options.seed).fork(SAMPLES);
    let text = corpus.held_out();
    let mut all = Vec::new();
    for _ in 0..SAMPLE_COUNT {
        let at = text.floor_char_boundary(generator.below(text.len()));
        // A token is at least a byte, so the beginning fits into the context.
        let end = text.floor_char_boundary(at + SAMPLE_PROMPT.min(args.context).min(text.len() - at));
        let prompt = if end > at { &text[at..end] } else { corpus.start() };
        let options = GenerateOptions {
            max_new_tokens: SAMPLE_TOKENS,
            sampling: Sampling { temperature: SAMPLE_TEMPERATURE, ..Default::default() },
            seed: generator.next_u64(),
            ..Default::default()
        };
        let written: String = write_on(model, corpus.tokenizer(), prompt, device, options)?.collect::<Result<_>>()?;
        all.push(Example {
            text: format!("{prompt}\u{2502}{written}"),
            caption: format!("{SAMPLE_TOKENS} tokens by the model, after the bar"),
            ..Example::default()
        });
    }
    Ok(Examples { title: "Held-out beginnings, and how the model goes on".into(), all })
}
