//! [`AdaptiveLogSoftmaxWithLoss`].

use gradus_tensor::{DType, Error, ErrorKind, Result, Tensor};

use super::Linear;
use crate::module::ForwardPass;
use crate::{Forward, Init, Module};

const OP: &str = "adaptive_log_softmax";

/// The options of [`AdaptiveLogSoftmaxWithLoss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveLogSoftmaxConfig {
    /// Cluster `i`, counted from 0, is computed from `in_features / div_value^(i + 1)` features. Default 4.
    pub div_value: f64,
    /// Whether the head has a bias. Default false.
    pub head_bias: bool,
}

impl Default for AdaptiveLogSoftmaxConfig {
    fn default() -> Self {
        AdaptiveLogSoftmaxConfig { div_value: 4.0, head_bias: false }
    }
}

/// The log-probabilities of many classes of which few are frequent (Grave et al., 2017), and their loss. Classes are
/// sorted, the most frequent first. The head gives the classes below the first cutoff, and one class for each cluster
/// of the rest; a cluster is only computed for the samples whose class is in it.
///
/// Parameters have PyTorch's names: `head.weight`, `tail.0.0.weight`, `tail.0.1.weight`, and so on.
///
/// ```
/// # use gradus_nn::{AdaptiveLogSoftmaxConfig, AdaptiveLogSoftmaxWithLoss, Init}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut rng = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut rng);
/// let layer = AdaptiveLogSoftmaxWithLoss::new(64, 1000, [10, 100], AdaptiveLogSoftmaxConfig::default(), &mut init)?;
/// let (x, y) = (Tensor::ones([2, 64], DType::F32, &device)?, Tensor::from_vec([3i64, 700], [2], &device)?);
/// let (log_probabilities, loss) = layer.run(&x, &y)?;
/// assert_eq!((log_probabilities.shape(), loss.shape()), (&[2][..], &[][..]));
/// assert_eq!(layer.log_prob(&x)?.shape(), [2, 1000]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct AdaptiveLogSoftmaxWithLoss {
    in_features: usize,
    n_classes: usize,
    head: Linear,
    /// Two layers for each cluster.
    tail: Vec<Vec<Linear>>,
    /// The first class of each cluster, and the number of classes.
    #[module(skip)]
    cutoffs: Vec<usize>,
}

impl AdaptiveLogSoftmaxWithLoss {
    /// Creates the layer with new parameters. `cutoffs` are the first classes of the clusters.
    ///
    /// # Errors
    /// Fails unless the cutoffs rise, are at least 1 and below `n_classes`, and are not empty; if `div_value` is not
    /// finite and above 0; and if a cluster would have no feature.
    #[track_caller]
    pub fn new(
        in_features: usize,
        n_classes: usize,
        cutoffs: impl Into<Vec<usize>>,
        config: AdaptiveLogSoftmaxConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        let mut cutoffs = cutoffs.into();
        let rises = cutoffs.windows(2).all(|pair| pair[0] < pair[1]);
        let within = cutoffs.first().is_some_and(|&c| c > 0) && cutoffs.last().is_some_and(|&c| c < n_classes);
        if !rises || !within {
            let m = format!("the cutoffs {cutoffs:?} do not rise from at least 1 to less than {n_classes} classes");
            return Err(Error::argument(OP, m));
        }
        if !(config.div_value.is_finite() && config.div_value > 0.0) {
            return Err(Error::argument(OP, format!("div_value is {}; it is finite and above 0", config.div_value)));
        }
        let clusters = cutoffs.len();
        cutoffs.push(n_classes);
        let outputs = cutoffs[0] + clusters;
        let make = if config.head_bias { Linear::new } else { Linear::without_bias };
        let head = make(in_features, outputs, init)?;
        // At most as many as there are cutoffs.
        let mut tail = vec![];
        for (i, pair) in cutoffs.windows(2).enumerate() {
            let features = (in_features as f64 / config.div_value.powf(i as f64 + 1.0)).floor();
            if !(1.0..=usize::MAX as f64).contains(&features) {
                let m = format!("cluster {i} would have {features} of {in_features} features; each has at least 1");
                return Err(Error::argument(OP, m).help("use fewer cutoffs or a smaller div_value"));
            }
            let first = Linear::without_bias(in_features, features as usize, init)?;
            let second = Linear::without_bias(features as usize, pair[1] - pair[0], init)?;
            tail.push(vec![first, second]);
        }
        Ok(AdaptiveLogSoftmaxWithLoss { in_features, n_classes, head, tail, cutoffs })
    }

    /// The log-probability of each sample's class, `[n]`, and the mean of their negatives. The input is
    /// `[n, in_features]`, or `[in_features]` for one sample; the target has integers, `[n]` or `[]`. It is read by the
    /// host, because it decides what is computed.
    ///
    /// # Errors
    /// Fails if a shape does not fit, and if a target is not below `n_classes`.
    #[track_caller]
    pub fn run(&self, input: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor)> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.loss(input, target))
    }

    #[track_caller]
    fn loss(&self, input: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor)> {
        let describe = |e: Error| {
            let e = e.operand("input", input.shape(), input.dtype(), input.device());
            e.operand("target", target.shape(), target.dtype(), target.device())
        };
        let x = self.rows(input).map_err(describe)?;
        if target.rank() + 1 != input.rank() || target.numel() != x.shape()[0] {
            return Err(describe(Error::shape(OP, "the target has one class for each sample of the input")));
        }
        if target.dtype().is_float() || target.dtype() == DType::Bool {
            return Err(describe(Error::dtype(OP, target.dtype(), "integers")));
        }
        let classes = target.to_dtype(DType::I64)?.to_vec::<i64>()?;
        let shortlist = self.cutoffs[0];
        // At most one entry for each sample.
        let (mut of_head, mut in_clusters) = (Vec::with_capacity(classes.len()), vec![vec![]; self.tail.len()]);
        for (row, &class) in classes.iter().enumerate() {
            let Some(class) = usize::try_from(class).ok().filter(|&class| class < self.n_classes) else {
                let (index, size) = (class, self.n_classes);
                let m = format!("the target of sample {row} is {class}; it is 0 to {}", size - 1);
                return Err(describe(Error::new(ErrorKind::IndexOutOfBounds { pos: row, index, size }, OP, m)));
            };
            match self.cutoffs.partition_point(|&cutoff| cutoff <= class) {
                0 => of_head.push(class as i64),
                cluster => {
                    of_head.push((shortlist + cluster - 1) as i64);
                    in_clusters[cluster - 1].push((row as i64, (class - self.cutoffs[cluster - 1]) as i64));
                }
            }
        }
        let n = classes.len();
        let column = |list: Vec<i64>| {
            let rows = list.len();
            Tensor::from_vec(list, [rows, 1], input.device())
        };
        let mut y = self.head.forward(&x)?.log_softmax(1)?.gather(1, &column(of_head)?)?.reshape([n])?;
        for (tail, samples) in self.tail.iter().zip(in_clusters) {
            if samples.is_empty() {
                continue;
            }
            let (rows, classes): (Vec<i64>, Vec<i64>) = samples.into_iter().unzip();
            let rows = column(rows)?.squeeze(1)?;
            let found = of_cluster(tail, &x.index_select(0, &rows)?)?.gather(1, &column(classes)?)?;
            y = y.index_add(0, &rows, &found.squeeze(1)?)?;
        }
        let loss = y.mean_all()?.neg()?;
        Ok((y.reshape(target.shape())?, loss))
    }

    /// The log-probabilities of all classes: `[n, in_features]` to `[n, n_classes]`. Errors if the shape does not fit.
    #[track_caller]
    pub fn log_prob(&self, input: &Tensor) -> Result<Tensor> {
        let pass = ForwardPass::begin()?;
        pass.end(self, self.all(input))
    }

    #[track_caller]
    fn all(&self, input: &Tensor) -> Result<Tensor> {
        let x = self.rows(input).map_err(|e| e.operand("input", input.shape(), input.dtype(), input.device()))?;
        let shortlist = self.cutoffs[0];
        let head = self.head.forward(&x)?.log_softmax(1)?;
        // At most as many as there are cutoffs, and one.
        let mut parts = vec![head.narrow(1, 0, shortlist)?];
        for (i, tail) in self.tail.iter().enumerate() {
            parts.push(of_cluster(tail, &x)?.add(head.narrow(1, shortlist + i, 1)?)?);
        }
        let all = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        if input.rank() == 1 { all.squeeze(0) } else { Ok(all) }
    }

    /// The most probable class of each sample, i64: `[n, in_features]` to `[n]`. Errors if the shape does not fit.
    #[track_caller]
    pub fn predict(&self, input: &Tensor) -> Result<Tensor> {
        self.log_prob(input)?.argmax(-1, false)
    }

    /// The input as `[n, in_features]`.
    #[track_caller]
    fn rows(&self, input: &Tensor) -> Result<Tensor> {
        match *input.shape() {
            [_, features] if features == self.in_features => Ok(input.clone()),
            [features] if features == self.in_features => input.unsqueeze(0),
            _ => Err(Error::shape(OP, format!("the input is not [n, {0}] or [{0}]", self.in_features))),
        }
    }
}

/// The log-probabilities of the classes of a cluster within it.
#[track_caller]
fn of_cluster(tail: &[Linear], x: &Tensor) -> Result<Tensor> {
    tail.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))?.log_softmax(1)
}
