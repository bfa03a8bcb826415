//! Layers with some of the heads of another.

use gradus_tensor::{Error, Result};

use super::MultiheadAttention;
use super::masks::OP;
use crate::{Linear, Parameter, RandomState};

/// Where the features of the heads lie in a parameter of a [`MultiheadAttention`].
#[derive(Debug, Clone, Copy)]
pub struct HeadFeatures<'a> {
    /// Their axis.
    pub axis: usize,
    /// The lengths of the pieces that are stacked along it, each of which has features of all heads in order: one piece,
    /// or three of queries, keys and values.
    pub pieces: &'a [usize],
}

impl MultiheadAttention {
    /// The number of query heads, and of heads of keys and values.
    pub fn num_heads(&self) -> [usize; 2] {
        [self.num_heads, self.num_kv_heads]
    }

    /// A layer like this one with other numbers of heads `[query heads, key heads]`, of the same size. `of` makes its
    /// parameters from those of this layer, of which it is told where the features of the heads lie; the output's bias,
    /// which belongs to no head, is shared. Random numbers are those of this layer, but each layer draws its own.
    ///
    /// A layer with some of the heads computes its share of the output: without the output's bias, the shares of
    /// layers that have all heads between them add up to the output of the whole layer.
    ///
    /// # Errors
    /// Those of `of`, and fails if the key heads do not divide the query heads.
    ///
    /// ```
    /// # use gradus_nn::{Forward, Init, MultiheadAttention, Parameter}; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// # let mut generator = Generator::new(0);
    /// let whole = MultiheadAttention::new(8, 2, Default::default(), &mut Init::new(DType::F64, &device, &mut generator))?;
    /// let x = Tensor::randn([1, 5, 8], DType::F64, &device, &mut generator)?;
    /// // Bias and all, since it is 0 in a new layer.
    /// let mut sum = Tensor::zeros([1, 5, 8], DType::F64, &device)?;
    /// for head in 0..2 {
    ///     let one = whole.with_heads([1, 1], |parameter, features| {
    ///         let mut first = 0;
    ///         let mut mine = Vec::new();
    ///         for piece in features.pieces {
    ///             mine.push(parameter.values().narrow(features.axis as isize, first + head * piece / 2, piece / 2)?);
    ///             first += piece;
    ///         }
    ///         Parameter::new(Tensor::cat(&mine.iter().collect::<Vec<_>>(), features.axis as isize)?)
    ///     })?;
    ///     sum = sum.add(&one.forward(&x)?)?;
    /// }
    /// assert!(sum.sub(&whole.forward(&x)?)?.abs()?.max_all()?.item()? < 1e-12);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn with_heads(
        &self,
        [num_heads, num_kv_heads]: [usize; 2],
        mut of: impl FnMut(&Parameter, HeadFeatures<'_>) -> Result<Parameter>,
    ) -> Result<Self> {
        if num_kv_heads == 0 || num_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            return Err(Error::argument(OP, format!("{num_kv_heads} key heads do not divide {num_heads} query heads")));
        }
        let size = self.embed_dim / self.num_heads;
        let (e, kv) = (self.embed_dim, size * self.num_kv_heads);
        let mut made =
            |parameter: &Parameter, axis: usize, pieces: &[usize]| of(parameter, HeadFeatures { axis, pieces });
        let out_weight = made(&self.out_proj.weight, 1, &[e])?;
        let mut made = |parameter: &Option<Parameter>, axis: usize, pieces: &[usize]| {
            parameter.as_ref().map(|parameter| made(parameter, axis, pieces)).transpose()
        };
        Ok(MultiheadAttention {
            embed_dim: num_heads * size,
            num_heads,
            num_kv_heads,
            in_proj_weight: made(&self.in_proj_weight, 0, &[e, kv, kv])?,
            q_proj_weight: made(&self.q_proj_weight, 0, &[e])?,
            k_proj_weight: made(&self.k_proj_weight, 0, &[kv])?,
            v_proj_weight: made(&self.v_proj_weight, 0, &[kv])?,
            in_proj_bias: made(&self.in_proj_bias, 0, &[e, kv, kv])?,
            bias_k: made(&self.bias_k, 2, &[kv])?,
            bias_v: made(&self.bias_v, 2, &[kv])?,
            out_proj: Linear::from_parameters(out_weight, self.out_proj.bias.clone())?,
            random: RandomState::new(self.random.get()),
            ..self.clone()
        })
    }
}
