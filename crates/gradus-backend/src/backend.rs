//! [`Backend`]: the one contract for hardware.

use std::fmt::Debug;
use std::sync::Arc;

use crate::call::Tell;
use crate::composite;
use crate::{
    ArgReduceOp, AttentionParams, Axes, Binding, Buffer, Claim, ComputeLimits, ComputeModule, CrossEntropyParams,
    DType, Distribution, Error, ErrorKind, Kernel, MapArg, ModuleHash, NativeFunction, ReduceOp, Result, Scalar,
    ScanOp, ScatterOp, View, ViewMut, Window,
};

/// The kind of hardware behind a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// The processor that runs the program.
    Cpu,
    /// A GPU through WebGPU.
    Wgpu,
    /// A GPU through CUDA.
    Cuda,
    /// Anything else.
    Other,
}

/// The description of a backend.
#[derive(Debug, Clone)]
pub struct BackendInfo {
    /// The short name that errors and printed tensors show: `cpu`, `wgpu:0`.
    pub name: String,
    /// The kind of hardware.
    pub kind: BackendKind,
    /// The hardware's own name.
    pub hardware: String,
    /// Bytes of memory, if known.
    pub memory: Option<u64>,
    /// What it can use: instruction sets, extensions, threads.
    pub features: Vec<String>,
}

/// Counts of a backend's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in live buffers, and claimed for vectors of the host.
    pub in_use: usize,
    /// The most bytes that were ever live at once.
    pub peak: usize,
    /// Bytes that the pool keeps for reuse.
    pub cached: usize,
    /// Number of live buffers.
    pub buffers: usize,
    /// Allocations that the pool could not serve.
    pub system_allocations: u64,
}

/// What a [`Watched`](crate::Watched) backend consists of.
#[derive(Clone, Copy)]
pub struct WatchedParts<'a> {
    /// The backend that computes.
    pub inner: &'a Arc<dyn Backend>,
    /// The functions that are told of its calls.
    pub tell: &'a [Arc<Tell>],
}

/// The operations that hardware provides to Gradus. Object-safe; every call takes `&self` and may come from any thread.
///
/// # What holds for every operation
/// * **Views**: inputs have any strides, 0 and negative included, and any offset; outputs have any strides but no two
///   elements in one place. Shapes and dtypes are those that the method states; a caller inside Gradus has checked them,
///   and a backend that is called directly answers a violation with an error, not a panic or a stray access.
/// * **Aliasing**: no output shares memory with an input, but for [`MapArg::Output`] and the operands documented as read
///   and written.
/// * **Locks**: the operands of a call are locked while it runs; a backend must not use tensors that share memory with them.
/// * **Empty tensors** are legal everywhere and cost no kernel launch.
/// * **Errors** name the operation; on an error no output is promised any contents.
/// * **Half precision** computes and accumulates in f32 and rounds once.
/// * **NaN** propagates.
/// * **Order**: calls take effect as if one after the other.
/// * **Late failures**: an asynchronous backend may find a failure after the call has returned. It spoils what the call
///   wrote and everything computed from that: every [`download`](Backend::download) of a spoiled buffer is the error, made
///   with [`Error::late`]. Other buffers are not affected. [`synchronize`](Backend::synchronize) returns the errors that
///   no download has returned yet.
///
/// The composites have default bodies over the primitives; an override must agree with the default.
pub trait Backend: Send + Sync + Debug + 'static {
    // ---- identity ---------------------------------------------------------------------------------------------------

    /// Name, kind, memory and features.
    fn info(&self) -> BackendInfo;

    /// The name that errors show. Cheap.
    fn name(&self) -> &str;

    /// Whether tensors of this dtype can live and compute here.
    fn supports(&self, dtype: DType) -> bool;

    /// The error of `op` for a dtype that is not supported. A backend overrides it to say which feature is missing.
    fn unsupported(&self, op: &str, dtype: DType) -> Error {
        Error::dtype(op, dtype, &format!("the dtypes of {}", self.name()))
    }

    /// Its parts, if this is a [`Watched`](crate::Watched) backend.
    fn as_watched(&self) -> Option<WatchedParts<'_>> {
        None
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    /// A buffer of `bytes` bytes, 0 being legal, with unspecified but initialised contents, aligned for every dtype.
    /// [`ErrorKind::OutOfMemory`] when the budget or the device is exhausted; everything allocated stays intact.
    fn alloc(&self, bytes: usize) -> Result<Buffer>;

    /// Copies `bytes` to position `offset` (in bytes) of `dst`.
    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Copies from position `offset` (in bytes) of `src` into `bytes`, after all earlier calls have finished. The error of a
    /// late failure if that spoiled the buffer.
    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// Copies `bytes` bytes between two buffers of this device.
    fn copy_buffer(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &mut Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()>;

    /// Sets every element of `out` to `value`, which its dtype must be able to represent.
    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()>;

    /// Waits until all earlier calls have finished, and returns the late failures that no download has returned yet.
    fn synchronize(&self) -> Result<()>;

    /// How much memory is in use and cached.
    fn memory_stats(&self) -> MemoryStats;

    /// The most bytes that buffers, and [claims](Backend::host_claim) on memory of the host, may hold; `None` lifts the
    /// limit. Memory that is in use already stays.
    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()>;

    /// An empty claim on the memory budget, which a [`HostVec`](crate::HostVec) grows as needed. A backend whose
    /// buffers are not in host memory returns a claim that is not counted; this is the default.
    fn host_claim(&self) -> Claim {
        Claim::new(None)
    }

    /// Gives memory that the pool keeps back to the system.
    fn trim(&self) -> Result<()>;

    // ---- required primitives ----------------------------------------------------------------------------------------

    /// Runs an elementwise kernel. `args` and `outs` correspond to the kernel's arguments and outputs; every view has the
    /// shape of the outputs and the dtype that the kernel states.
    ///
    /// Integer division by zero and negative integer powers are [`ErrorKind::InvalidArgument`] errors.
    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()>;

    /// Combines the elements along `axes`; `out` has size 1 there. The dtype of `out` is that of `x`, but
    /// [`DType::accumulate`] of it for sums and products, and bool for any and all.
    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()>;

    /// Index of the largest or smallest element along an axis; `out` is i64 and has size 1 there. An empty axis is an
    /// error.
    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()>;

    /// Accumulates along an axis, first to last; `out` has the shape and dtype of `x`, but [`DType::accumulate`] of it
    /// for sums and products. Those of floats run in f64, and each is rounded once.
    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()>;

    /// `c = alpha * (a @ b) + beta * c` with `a [batch.., m, k]`, `b [batch.., k, n]`, `c [batch.., m, n]` of one dtype
    /// (any but bool), batch axes equal in all three (a stretched batch axis has stride 0; transposed operands are
    /// strided views). With `beta` 0 the old contents of `c` are not read; with `k` 0 the result is `beta * c`. Products
    /// with zero are not skipped: NaN and infinity propagate.
    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()>;

    /// The elements under every position of a window: `x [n, c, spatial..]` to `out [n, c, kernel.., positions..]`, with
    /// `pad` outside `x`.
    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()>;

    /// The adjoint of unfold: `x [n, c, kernel.., positions..]` summed into `out [n, c, spatial..]`, in a fixed order,
    /// leaving out the padding. `out` is overwritten.
    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    /// `out[.., i, ..] = x[.., index[.., i, ..], ..]` at `axis`. `index` (i64, i32 or u32) has the shape of `out`, which
    /// is that of `x` but at `axis`. An index outside `0..size` is [`ErrorKind::IndexOutOfBounds`].
    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    /// `out[.., index[.., i, ..], ..] = (or +=) src[.., i, ..]` at `axis`, in row-major order of the indices; `out` is
    /// read and written. Shapes as in gather with `src` in the place of its `out`. Half precision accumulates in f32.
    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    /// Sorts along an axis, stably, NaN last in ascending and first in descending order; zeros are equal whatever their
    /// signs. The values, and the i64 index that each had.
    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()>;

    /// Fills `out`, in row-major order, with a draw from position `offset` of the stream of `seed`: element `i` is
    /// [`philox::element`](crate::philox::element)`(dist, dtype, seed, offset, i)`.
    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()>;

    /// Copies elements between two views of one shape and dtype.
    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    // ---- composites -------------------------------------------------------------------------------------------------

    /// Convolution (cross-correlation): `x [n, c, spatial..]` with `w [k, c / groups, kernel..]` and `bias [k]` to
    /// `out [n, k, positions..]`.
    fn conv(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        w: View<'_>,
        bias: Option<View<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::conv::forward(self, window, groups, x, w, bias, out)
    }

    /// The gradient of [`conv`](Backend::conv) for its input: `g [n, k, positions..]` and `w` to `dx [n, c, spatial..]`.
    fn conv_backward_input(
        &self,
        window: &Window,
        groups: usize,
        g: View<'_>,
        w: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::conv::backward_input(self, window, groups, g, w, dx)
    }

    /// The gradient of [`conv`](Backend::conv) for its weight: `x` and `g` to `dw [k, c / groups, kernel..]`.
    fn conv_backward_weight(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        g: View<'_>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::conv::backward_weight(self, window, groups, x, g, dw)
    }

    /// The largest element under each position of a window: `x [n, c, spatial..]` to `out [n, c, positions..]`, and the
    /// position (i64) that it has in the flattened spatial axes of `x`. NaN wins; of equal ones the first. Padding never
    /// wins; every window covers at least one element (checked: [`Window::check_pool`]).
    fn max_pool(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()> {
        composite::pool::max_forward(self, window, x, out, indices)
    }

    /// The mean under each position of a window; padding counts as zeros if `count_include_pad`, else not at all.
    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        composite::pool::avg_forward(self, window, count_include_pad, x, out)
    }

    /// The adjoint of [`avg_pool`](Backend::avg_pool): `g [n, c, positions..]` to `dx [n, c, spatial..]`.
    fn avg_pool_backward(
        &self,
        window: &Window,
        count_include_pad: bool,
        g: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::pool::avg_backward(self, window, count_include_pad, g, dx)
    }

    /// `softmax` along an axis, or its logarithm: `x` and `out` of one shape and float dtype. The largest element is
    /// subtracted first. A row of -inf gives NaN.
    fn softmax(&self, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        composite::softmax::forward(self, log, x, axis, out)
    }

    /// The gradient of [`softmax`](Backend::softmax) from its result `y`: `y * (g - sum(g * y))`, or
    /// `g - exp(y) * sum(g)` for the logarithm.
    fn softmax_backward(&self, log: bool, y: View<'_>, g: View<'_>, axis: usize, dx: &mut ViewMut<'_>) -> Result<()> {
        composite::softmax::backward(self, log, y, g, axis, dx)
    }

    /// Normalises over `axes`: `out = (x - mean) * rstd * scale + shift`, `rstd = 1 / sqrt(var + eps)` with the biased
    /// variance, two-pass. With `rms`, `mean` is 0 and `var` is the mean square. `scale` and `shift` are stretched to
    /// the shape of `x` and have its dtype. `mean` and `rstd` have size 1 at `axes` and the compute dtype of `x`. Layer,
    /// batch, group, instance and RMS norm are this with different axes.
    fn normalize(
        &self,
        rms: bool,
        axes: Axes,
        eps: f64,
        x: View<'_>,
        scale: Option<View<'_>>,
        shift: Option<View<'_>>,
        out: &mut ViewMut<'_>,
        mean: &mut ViewMut<'_>,
        rstd: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::norm::forward(self, rms, axes, eps, x, scale, shift, out, mean, rstd)
    }

    /// The gradient of [`normalize`](Backend::normalize) for `x`, from `g`, `x` and the statistics:
    /// `dx = rstd * (h - mean(h) - n * mean(h * n))` with `h = g * scale` and `n = (x - mean) * rstd` (with `rms`, without
    /// the term `mean(h)`).
    fn normalize_backward(
        &self,
        rms: bool,
        axes: Axes,
        g: View<'_>,
        x: View<'_>,
        scale: Option<View<'_>>,
        mean: View<'_>,
        rstd: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::norm::backward(self, rms, axes, g, x, scale, mean, rstd, dx)
    }

    /// The gradients of [`normalize`](Backend::normalize) for scale and shift: the sums of `g * n` with
    /// `n = (x - mean) * rstd`, and of `g`, along the axes at which `dscale` has size 1. `g` has the shape and dtype of `x`;
    /// `mean` and `rstd` are stretched to that shape. `dscale` has the rank of `x`, and at each axis size 1 or that of `x`;
    /// `dshift` has its shape. The statistics and both gradients have the compute dtype of `x`.
    fn normalize_affine_backward(
        &self,
        g: View<'_>,
        x: View<'_>,
        mean: View<'_>,
        rstd: View<'_>,
        dscale: &mut ViewMut<'_>,
        dshift: Option<&mut ViewMut<'_>>,
    ) -> Result<()> {
        composite::norm::affine_backward(self, g, x, mean, rstd, dscale, dshift)
    }

    /// Scaled dot-product attention: `q [b, h, lq, d]`, `k [b, hk, lk, d]`, `v [b, hk, lk, dv]` with `h` a multiple of
    /// `hk`, to `out [b, h, lq, dv]` and `lse [b, h, lq]` (compute dtype), the log-sum-exp of each row of scores. `mask`
    /// is stretched to `[b, h, lq, lk]`: bool keeps where true, a float is added. A fully masked row gives 0 (lse -inf).
    fn attention(
        &self,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        mask: Option<View<'_>>,
        out: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::attention::forward(self, params, q, k, v, mask, out, lse)
    }

    /// The gradients of [`attention`](Backend::attention) for `q`, `k` and `v`, from its inputs, outputs and the
    /// gradient `g` of `out`.
    fn attention_backward(
        &self,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        mask: Option<View<'_>>,
        out: View<'_>,
        lse: View<'_>,
        g: View<'_>,
        dq: &mut ViewMut<'_>,
        dk: &mut ViewMut<'_>,
        dv: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::attention::backward(self, params, q, k, v, mask, out, lse, g, dq, dk, dv)
    }

    /// Cross-entropy of each row: `logits [n, c]`, `target [n]` (i64, i32 or u32), to `loss [n]` and `lse [n]`, the
    /// log-sum-exp of each row (both of the compute dtype). A target outside `0..c` that is not `ignore_index` is
    /// [`ErrorKind::IndexOutOfBounds`].
    fn cross_entropy(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        loss: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::cross_entropy::forward(self, params, logits, target, loss, lse)
    }

    /// The gradient of [`cross_entropy`](Backend::cross_entropy) for the logits: `g [n]` (compute dtype) times
    /// `softmax - target distribution`, 0 in ignored rows.
    fn cross_entropy_backward(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        lse: View<'_>,
        g: View<'_>,
        dlogits: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::cross_entropy::backward(self, params, logits, target, lse, g, dlogits)
    }

    /// Rows of `weight [v, d]` by `index [..]`, to `out [.., d]`.
    fn embedding(&self, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        composite::embedding::forward(self, weight, index, out)
    }

    /// The gradient of [`embedding`](Backend::embedding) for the weight: the rows `g [.., d]` added into
    /// `dw [v, d]`, which is overwritten; rows at `padding_index` stay 0.
    fn embedding_backward(
        &self,
        index: View<'_>,
        g: View<'_>,
        padding_index: Option<usize>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::embedding::backward(self, index, g, padding_index, dw)
    }

    // ---- escape hatch -----------------------------------------------------------------------------------------------

    /// The limits of one dispatch; `None` if the backend runs no compute modules.
    fn compute_limits(&self) -> Option<ComputeLimits> {
        None
    }

    /// Whether [`dispatch_compute`](Backend::dispatch_compute) would accept a call with this number of bindings, and its
    /// error if not, as far as that is known before the operands are locked and count as written. The default body checks
    /// the limits. What depends on the operands themselves (dtypes, sizes, which are written) only the dispatch checks; at
    /// that time its outputs count as written already.
    fn check_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: usize,
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        match self.compute_limits() {
            Some(limits) => crate::compute::check_size(&limits, bindings, constants, groups),
            None => {
                let m = format!("backend {} runs no compute modules, so no {} module", self.name(), module.form());
                Err(Error::new(ErrorKind::Unsupported, "dispatch_compute", m))
            }
        }
    }

    /// Runs a program that the user wrote: `bindings` in order, `constants` as push constants, over `groups` work-groups.
    /// Bindings are contiguous, and no buffer is bound for writing and otherwise too.
    /// [`compute::check`](crate::compute::check) has the rules. A module is made ready once, and found again by its content.
    ///
    /// [`ErrorKind::Unsupported`] where the backend cannot run a module of this form; [`ErrorKind::InvalidArgument`] for a
    /// module that is malformed, is not [allowed](Backend::allow_modules) or names an unknown function.
    fn dispatch_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: &mut [Binding<'_>],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        let m = format!(
            "backend {} runs no {} modules ({} bindings, {} bytes of constants, groups {groups:?})",
            self.name(),
            module.form(),
            bindings.len(),
            constants.len()
        );
        Err(Error::new(ErrorKind::Unsupported, "dispatch_compute", m))
    }

    /// Makes `function` what [`ComputeModule::Native`]`(name)` runs, for the life of the backend. An error if the name is
    /// taken; [`ErrorKind::Unsupported`] where functions of the host cannot reach the memory.
    fn register_native(&self, name: &str, function: NativeFunction) -> Result<()> {
        let m = format!("backend {} runs no functions of the host, so neither {name:?}, {function:?}", self.name());
        Err(Error::new(ErrorKind::Unsupported, "register_native", m))
    }

    /// From now on only modules with these hashes run; with `None`, all. [`ErrorKind::Unsupported`] if the backend runs no
    /// compute modules.
    fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        let m = format!("backend {} runs no compute modules: {hashes:?}", self.name());
        Err(Error::new(ErrorKind::Unsupported, "allow_modules", m))
    }
}
