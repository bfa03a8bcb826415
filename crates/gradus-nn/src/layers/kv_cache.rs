//! [`KvCache`]: the keys and values of earlier tokens.

use gradus_tensor::{Error, ErrorKind, Here, Result, Tensor};

/// The keys and values of the tokens that a [`MultiheadAttention`](super::MultiheadAttention) layer has seen, for
/// decoding one token after the other. Each layer has a cache of its own.
///
/// Memory grows by doubling, so adding a token takes constant time on average. A cache is written in place and passes
/// no gradients on: use it inside [`no_grad`](gradus_tensor::no_grad).
///
/// ```
/// # use gradus_nn::{Init, KvCache, Masks, MultiheadAttention, MultiheadAttentionConfig}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let attention = MultiheadAttention::new(8, 2, MultiheadAttentionConfig::default(), &mut init)?;
/// let x = Tensor::randn([1, 5, 8], DType::F32, &device, init.generator)?;
/// let all = attention.attend(&x, &x, &x, None, Causal::BottomRight)?;
///
/// let mut cache = KvCache::new();
/// for i in 0..5 {
///     let y = no_grad(|| attention.decode(&x.narrow(1, i, 1)?, &mut cache, Masks::default()))?;
///     assert!((y - all.narrow(1, i, 1)?)?.abs()?.max_all()?.item()? < 1e-5);
/// }
/// assert_eq!(cache.len(), 5);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Default)]
pub struct KvCache {
    /// Keys and values `[n, heads, room, size]`, of which the first `length` positions count.
    memory: Option<[Tensor; 2]>,
    length: usize,
}

impl KvCache {
    /// An empty cache. The first tokens determine its batch size, heads, dtype and device.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no tokens in the cache.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Empties the cache, which may then be used for another batch.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Keeps only the first `length` tokens. Errors if there are fewer. With 0, the cache may be used for another batch.
    #[track_caller]
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        if length > self.length {
            let m = format!("{length} tokens are to be kept of {}", self.length);
            return Err(Error::argument("kv_cache", m));
        }
        self.length = length;
        if length == 0 {
            self.memory = None;
        }
        Ok(())
    }

    /// Adds the keys and values `[n, heads, l, size]` of `l` tokens, and returns those of all tokens.
    ///
    /// # Errors
    /// Fails if the batch, the heads, the sizes, the dtype or the device differ from those in the cache, or if keys or
    /// values require a gradient. The cache then stays as it was.
    #[track_caller]
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        const OP: &str = "kv_cache";
        let new = [keys, values];
        let describe = |e: Error| {
            let e = e.operand("keys", keys.shape(), keys.dtype(), keys.device());
            e.operand("values", values.shape(), values.dtype(), values.device())
        };
        if new.iter().any(|t| t.rank() != 4) || keys.shape()[..3] != values.shape()[..3] {
            return Err(describe(Error::shape(OP, "keys and values are [n, heads, length, size]")));
        }
        if gradus_tensor::is_grad_enabled() && new.iter().any(|t| t.requires_grad()) {
            let e = Error::new(ErrorKind::Autograd, OP, "a cache passes no gradients on, and one is required");
            return Err(describe(e).help("decode inside no_grad(|| ..)"));
        }
        let (n, heads, l) = (keys.shape()[0], keys.shape()[1], keys.shape()[2]);
        let end = self.length.checked_add(l).ok_or_else(|| Error::argument(OP, "too many tokens")).here()?;
        if let Some(memory) = &self.memory {
            let fits = |(a, b): (&&Tensor, &Tensor)| {
                let (a_size, b_size) = (a.shape(), b.shape());
                let same = a_size[..2] == b_size[..2] && a_size[3] == b_size[3];
                same && a.dtype() == b.dtype() && a.device() == b.device()
            };
            if !new.iter().zip(memory).all(fits) {
                let e = describe(Error::shape(OP, "the cache holds tokens of another batch or layer"));
                let e = e.operand("cache", memory[0].shape(), memory[0].dtype(), memory[0].device());
                return Err(e.help("begin with an empty cache: cache.reset()"));
            }
        }
        let room = self.memory.as_ref().map_or(0, |m| m[0].shape()[2]);
        if end > room {
            let room = end.max(room.saturating_mul(2));
            let grown = |i: usize, t: &Tensor| -> Result<Tensor> {
                let made = Tensor::zeros([n, heads, room, t.shape()[3]], t.dtype(), t.device())?;
                if let Some(old) = &self.memory {
                    made.narrow(2, 0, self.length)?.copy_(&old[i].narrow(2, 0, self.length)?)?;
                }
                Ok(made)
            };
            self.memory = Some([grown(0, keys).here()?, grown(1, values).here()?]);
        }
        let Some(memory) = &self.memory else { return Err(Error::argument(OP, "the cache has no memory")) };
        for (memory, t) in memory.iter().zip(new) {
            memory.narrow(2, self.length, l)?.copy_(&t.detach())?;
        }
        self.length = end;
        Ok((memory[0].narrow(2, 0, end)?, memory[1].narrow(2, 0, end)?))
    }
}
