//! Tables: a column is predicted from the others, as a class or as a number.
//!
//! [`Spec::fit`] learns from a training table how its columns become the inputs of a network, and [`Network`] is that
//! network. [`crate::write`] saves both in one file, and [`crate::load`] reads it as a [`Tabular`].
//!
//! ```
//! # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! use gradus_data::{CsvOptions, Table};
//! use gradus_tasks::tabular::{Goal, Network, Options, Spec};
//!
//! let text = b"mass,sex,kind\n1,f,cat\n30,m,wolf\n2,m,cat\n35,f,wolf\n";
//! let table = Table::from_csv(text, "pets.csv", &CsvOptions::default())?;
//! let spec = Spec::fit(&table, "kind", Options::default())?;
//! assert_eq!(spec.goal, Goal::Classification { classes: vec!["cat".into(), "wolf".into()] });
//!
//! let network = Network::new(&spec, &device, 0)?;
//! assert_eq!(spec.inputs(&table, &device)?.shape(), [4, 3]); // the mass, and a feature for each sex
//! assert_eq!(spec.targets(&table, &device)?.to_vec::<i64>()?, [0, 1, 0, 1]);
//! # Ok::<(), Error>(())
//! ```

mod design;
mod measure;
mod network;
mod outputs;
mod spec;

use std::path::Path;

use gradus_data::{CsvOptions, Kind, Table};
use gradus_nn::{Module, StateDict, Strict};
use gradus_tensor::{Device, Result};

use crate::{Answer, Measured};

pub use design::Design;
pub use measure::measure;
pub use network::{FtTransformer, Mlp, Network};
pub use spec::{Goal, Options, Spec};

/// A trained model for tables.
pub struct Tabular {
    spec: Spec,
    network: Network,
    device: Device,
}

impl Tabular {
    /// The network with the weights of `state`, ready to predict.
    #[track_caller]
    pub(crate) fn from_state(spec: Spec, state: &StateDict, device: &Device) -> Result<Tabular> {
        let help =
            "the file was changed, or made by another version; give a model.safetensors of `gradus train tabular`";
        let mut network = Network::empty(&spec, state, device).map_err(|e| e.help(help))?;
        network.load_state_dict(state, Strict::Yes).map_err(|e| e.help(help))?;
        network.eval();
        Ok(Tabular { spec, network, device: device.clone() })
    }

    /// What is predicted, and from what.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Reads a file to predict ([`Table::read`]), whose columns are those of the training table. The target may be absent, and what
    /// its column holds does not matter.
    ///
    /// # Errors
    /// Fails if the file cannot be read, if a column is missing or new, or if a value is not of the kind that its column
    /// had in training. The error names the file, the line and the column.
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Table> {
        self.read_as(path.as_ref(), self.spec.preprocessor.kinds())
    }

    /// Reads a file to evaluate on. The errors are those of [`read`](Tabular::read), also for the target column.
    #[track_caller]
    pub fn read_with_target(&self, path: impl AsRef<Path>) -> Result<Table> {
        self.read_as(path.as_ref(), self.spec.kinds())
    }

    #[track_caller]
    fn read_as(&self, path: &Path, kinds: Vec<(String, Kind)>) -> Result<Table> {
        let options = CsvOptions { delimiter: self.spec.delimiter, ..CsvOptions::default() };
        let table = Table::read(path, &options)?;
        // The kinds are inferred from the values, and a small table may have too few of them. Where they differ from
        // those of training, the file is read again as what it should be: the error then names the value.
        let known = kinds.iter().filter_map(|(name, kind)| Some((table.column(name).ok()?.kind(), *kind)));
        if known.into_iter().all(|(found, kind)| found == kind) {
            return Ok(table);
        }
        let here = |name: &str| table.column(name).is_ok();
        let kinds = kinds.into_iter().filter(|(name, _)| here(name)).collect();
        Table::read(path, &CsvOptions { kinds, ..options })
    }

    /// The answer to each row of a table. The column of the target and those that training left out are ignored.
    ///
    /// # Errors
    /// Fails if the other columns are not those of training, or if a category is new, with the file, line and column.
    #[track_caller]
    pub fn predict(&self, table: &Table) -> Result<Vec<Answer>> {
        predict(&self.spec, &self.network, table, &self.device)
    }

    /// Compares the answers with the target column of a table, which must be there.
    #[track_caller]
    pub fn evaluate(&self, table: &Table) -> Result<Measured> {
        measure(&self.spec, &self.network, table, &self.device)
    }
}

/// The answer of a network in evaluation mode to each row of a table. See [`Tabular::predict`].
#[track_caller]
pub fn predict(spec: &Spec, network: &Network, table: &Table, device: &Device) -> Result<Vec<Answer>> {
    let outputs = outputs::outputs(spec, network, table, device)?;
    match &spec.goal {
        Goal::Classification { classes } => Answer::of_logits(&outputs, classes),
        Goal::Regression { mean, std } => Answer::of_numbers(&outputs::unscaled(&outputs, *mean, *std)?),
    }
}
