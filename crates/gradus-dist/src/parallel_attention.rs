//! [`ParallelAttention`]: attention whose heads are divided among the ranks.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{
    Forward, ForwardPass, HeadFeatures, KvCache, Masks, Module, MultiheadAttention, Parameter, Visitor, VisitorMut,
};
use gradus_tensor::{Causal, Error, ErrorKind, Here, Result, Tensor};

use crate::communicator::Communicator;
use crate::division::{Divided, Output, copied, part_of, whole_of};
use crate::group::Line;
use crate::region::{Border, cross, enter, leave};

const OP: &str = "parallel_attention";

/// A [`MultiheadAttention`] whose heads are divided (Shoeybi et al., 2019). Queries, keys and values are the same on all
/// ranks, and so is the output. Each rank projects them for its heads, computes these, and adds its share of the output
/// projection; with dropout, the heads of each rank draw numbers of their own. Names in the state are those of the whole
/// layer.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, ParallelAttention, threads};
/// use gradus_nn::{Init, Masks, MultiheadAttention, MultiheadAttentionConfig};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut generator = Generator::new(7);
///     // Four query heads, two for each key head.
///     let config = MultiheadAttentionConfig { num_kv_heads: Some(2), ..Default::default() };
///     let whole = MultiheadAttention::new(8, 4, config, &mut Init::new(DType::F64, &device, &mut generator))?;
///     let divided = ParallelAttention::of(&whole, comm)?;
///     let x = Tensor::randn([3, 5, 8], DType::F64, &device, &mut generator)?;
///     let causal = Masks::causal(Causal::TopLeft);
///     let (a, b) = (divided.attend_with(&x, &x, &x, causal)?, whole.attend_with(&x, &x, &x, causal)?);
///     assert!(a.sub(&b)?.abs()?.max_all()?.item()? < 1e-12);
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct ParallelAttention {
    /// This rank's heads. What it computes is this rank's share of the output, without the bias.
    pub heads: MultiheadAttention,
    /// The whole bias of the output, which is added once.
    pub bias: Option<Parameter>,
    sequence: Option<isize>,
    comm: Arc<dyn Communicator>,
}

impl ParallelAttention {
    /// This rank's heads of a layer that has the same weights on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) unless the query heads and the key heads
    /// both divide among the ranks.
    #[track_caller]
    pub fn of(whole: &MultiheadAttention, comm: &Arc<dyn Communicator>) -> Result<Self> {
        let ([query, key], ranks, rank) = (whole.num_heads(), comm.size(), comm.rank());
        if query % ranks != 0 || key % ranks != 0 {
            let m = format!("{query} query heads and {key} key heads do not divide among {ranks} ranks");
            return Err(Error::argument(OP, m).help("take a number of ranks that divides both"));
        }
        let own = |whole: &Parameter, HeadFeatures { axis, pieces }: HeadFeatures<'_>| {
            part_of(whole, Divided { axis, blocks: pieces.to_vec(), output: Output::Own, comm: comm.clone() })
        };
        let mut heads = whole.with_heads([query / ranks, key / ranks], own)?;
        heads.out_proj.bias = None;
        if ranks > 1 {
            for (_, state) in heads.named_random_states() {
                state.set(state.get().fork(rank as u64));
            }
        }
        let bias = whole.out_proj.bias.as_ref().map(copied).transpose()?;
        Ok(ParallelAttention { heads, bias, sequence: None, comm: comm.clone() })
    }

    /// Takes and gives this rank's parts along `axis`, that of the sequence, in place of the whole queries, keys, values
    /// and output. The parts of the others are gathered for the projections.
    #[must_use]
    pub fn sequence(mut self, axis: isize) -> Self {
        self.sequence = Some(axis);
        self
    }

    /// [`MultiheadAttention::attend_with`]. The masks are those of the whole layer, over the whole sequence.
    #[track_caller]
    pub fn attend_with(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: Masks<'_>) -> Result<Tensor> {
        let line = Location::caller();
        let pass = ForwardPass::begin()?;
        let attended = || {
            let q = enter(query, self.sequence, &self.comm, line)?;
            // Self-attention enters once.
            let k = if std::ptr::eq(key, query) { q.clone() } else { enter(key, self.sequence, &self.comm, line)? };
            let v = match () {
                () if std::ptr::eq(value, query) => q.clone(),
                () if std::ptr::eq(value, key) => k.clone(),
                () => enter(value, self.sequence, &self.comm, line)?,
            };
            let [mask, key_mask] = self.own(masks, line)?;
            let masks = Masks { mask: mask.as_ref(), key_mask: key_mask.as_ref(), ..masks };
            let share = self.heads.attend_with(&q, &k, &v, masks)?;
            self.output(&share, line)
        };
        pass.end(self, attended())
    }

    /// [`MultiheadAttention::decode`], with a cache of this rank's heads.
    #[track_caller]
    pub fn decode(&self, x: &Tensor, cache: &mut KvCache, masks: Masks<'_>) -> Result<Tensor> {
        let line = Location::caller();
        let x = enter(x, self.sequence, &self.comm, line).here()?;
        let [mask, key_mask] = self.own(masks, line).here()?;
        let masks = Masks { mask: mask.as_ref(), key_mask: key_mask.as_ref(), ..masks };
        self.output(&self.heads.decode(&x, cache, masks)?, line).here()
    }

    /// The whole layer, with copies of the parameters, on all ranks. All ranks call it. Its random numbers are those of
    /// this rank.
    #[track_caller]
    pub fn whole(&self) -> Result<MultiheadAttention> {
        let (line, ranks) = (Location::caller(), self.comm.size());
        let [query, key] = self.heads.num_heads();
        let all = |part: &Parameter, _: HeadFeatures<'_>| whole_of(part, line);
        let mut whole = self.heads.with_heads([query * ranks, key * ranks], all).here()?;
        whole.out_proj.bias = self.bias.as_ref().map(copied).transpose()?;
        Ok(whole)
    }

    /// The masks for this rank's heads: its part of a mask `[n, heads, lq, lk]`, and any other as it is.
    #[track_caller]
    fn own(&self, masks: Masks<'_>, line: Line) -> Result<[Option<Tensor>; 2]> {
        let enter = |mask: &Tensor| cross(Border::Enter, &self.comm, mask, line);
        let key_mask = masks.key_mask.map(enter).transpose()?;
        let Some(mask) = masks.mask else { return Ok([None, key_mask]) };
        let each = self.heads.num_heads()[0];
        let all = each * self.comm.size();
        let of_heads = if mask.rank() < 3 { 1 } else { mask.size(-3)? };
        let own = match enter(mask)? {
            whole if of_heads == all => whole.narrow(-3, self.comm.rank() * each, each)?,
            whole if of_heads == 1 => whole,
            _ => {
                let m = format!("the mask is for {of_heads} heads, and does not broadcast with the scores of {all}");
                return Err(Error::new(ErrorKind::Broadcast, OP, m).operand(
                    "mask",
                    mask.shape(),
                    mask.dtype(),
                    mask.device(),
                ));
            }
        };
        Ok([Some(own), key_mask])
    }

    fn output(&self, share: &Tensor, line: Line) -> Result<Tensor> {
        leave(share, self.bias.as_ref(), self.sequence, &self.comm, line)
    }
}

impl Module for ParallelAttention {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.wrapped(&self.heads);
        visitor.child("out_proj.bias", &self.bias);
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.wrapped(&mut self.heads);
        visitor.child("out_proj.bias", &mut self.bias);
    }
}

impl fmt::Display for ParallelAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

impl Forward for ParallelAttention {
    /// Self-attention: the input is query, key and value.
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.attend_with(input, input, input, Masks::causal(Causal::No))
    }
}
