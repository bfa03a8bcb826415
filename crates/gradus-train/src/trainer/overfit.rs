//! [`Trainer::overfit_batch`]: a test of whether a model can learn at all.

use gradus_data::{DataLoader, Dataset, Sample};
use gradus_nn::{Module, Optimizer};
use gradus_tensor::{Error, Result};

use super::failure::Failure;
use super::options::Trainer;
use super::passes::Passes;
use super::step::explained;
use crate::Task;

impl Trainer {
    /// Makes `steps` steps on the first batch of `train`, and returns the loss before each of them. If the model can
    /// learn and the learning rate is suitable, the loss falls towards its minimum. If it does not, look for a mistake
    /// in the model, the labels or the loss. The model and the optimiser keep their new state. The learning rate of the
    /// optimiser is used unchanged.
    ///
    /// # Errors
    /// Returns the errors of the dataset and the model, and fails if a loss is not finite.
    #[track_caller]
    pub fn overfit_batch<M, D, T>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        train: &DataLoader<D>,
        task: &T,
        steps: usize,
    ) -> Result<Vec<f64>>
    where
        M: Module + ?Sized,
        D: Dataset + 'static,
        D::Item: Sample,
        T: Task<M, <D::Item as Sample>::Batch> + ?Sized,
    {
        let Some(batch) = self.batches(train, 0, 0)?.next() else {
            return Err(Error::argument("overfit_batch", "the dataset has no batch").help("give at least one sample"));
        };
        let batch = [batch?];
        let factor = optimizer.lr_factor();
        let mut passes = Passes::new(self, &*optimizer, task, D::Item::tensors);
        model.train();
        // At most `steps` numbers.
        let mut losses = Vec::new();
        for step in 0..steps {
            match self.step_at((factor, None), model, optimizer, task, &batch, &mut passes) {
                Ok(done) => losses.push(done.loss),
                Err(Failure::Other(e)) => return Err(e),
                Err(Failure::NonFinite(trouble)) => {
                    return Err(explained(trouble, (0, step + 1), model, task, &batch));
                }
            }
        }
        Ok(losses)
    }
}
