//! The training of a network for tables: the same for every fold and for the model that is saved.

use gradus::prelude::*;
use gradus::tasks::tabular::{Goal, Network, Spec};

use super::job::Settings;

/// The number of rows from which batches are large, and the default sizes of batches.
const MANY_ROWS: usize = 10_000;
const BATCH: (usize, usize) = (32, 256);

/// The number of steps that the default number of epochs has at least, and the limits of that number.
const STEPS: usize = 2000;
const EPOCHS: (usize, usize) = (10, 100);

/// The largest default number of epochs of a transformer, which learns in fewer steps, each of which takes longer.
const TRANSFORMER_EPOCHS: usize = 40;

/// The decay of the weights, and the share of a label's probability that is spread over all classes.
const WEIGHT_DECAY: f64 = 0.01;
const LABEL_SMOOTHING: f64 = 0.05;

/// A network with all that trains it.
pub(super) struct Fit {
    pub(super) network: Network,
    pub(super) optimizer: AdamW,
    pub(super) loader: DataLoader<TensorDataset>,
    pub(super) trainer: Trainer,
    pub(super) task: TableTask,
}

/// Cross-entropy for classes, and the mean squared error for numbers.
pub(super) struct TableTask {
    is_class: bool,
}

impl Task<Network, (Tensor, Tensor)> for TableTask {
    fn run(&self, network: &Network, batch: &(Tensor, Tensor)) -> Result<Outcome> {
        if self.is_class {
            return Classification { label_smoothing: LABEL_SMOOTHING }.run(network, batch);
        }
        let (inputs, targets) = batch;
        let loss = network.forward(inputs)?.mse_loss(targets, Reduction::Mean)?;
        Ok(Outcome { loss, samples: targets.numel(), correct: None })
    }

    fn is_fixed(&self) -> bool {
        true
    }
}

/// The default size of a batch, and the default number of epochs for it or for the size that the user chose.
pub(super) fn batch_and_epochs(rows: usize, batch_size: Option<usize>, is_transformer: bool) -> (usize, usize) {
    let batch = batch_size.unwrap_or(if rows < MANY_ROWS { BATCH.0 } else { BATCH.1 });
    let steps = rows.div_ceil(batch).max(1);
    (batch, STEPS.div_ceil(steps).clamp(EPOCHS.0, if is_transformer { TRANSFORMER_EPOCHS } else { EPOCHS.1 }))
}

/// A new network for the rows of `table`, and what trains it.
pub(super) fn fit(spec: &Spec, table: &Table, settings: &Settings, device: &Device, seed: u64) -> Result<Fit> {
    let data = TensorDataset::new(spec.inputs(table, device)?, spec.targets(table, device)?)?;
    let loader = DataLoader::new(data, device).batch_size(settings.batch_size).shuffle(seed).build()?;
    let network = Network::new(spec, device, seed)?;
    let config = AdamConfig { lr: settings.lr, weight_decay: WEIGHT_DECAY, ..Default::default() };
    let optimizer = AdamW::new(network.named_parameters(), config)?;
    let schedule = settings.schedule(loader.len(), 10, 0.01)?;
    let trainer = Trainer::new(settings.epochs)?.schedule(schedule).clip_norm(1.0)?;
    let task = TableTask { is_class: matches!(spec.goal, Goal::Classification { .. }) };
    Ok(Fit { network, optimizer, loader, trainer, task })
}
