//! The [`Backend`] trait: everything that Gradus requires of hardware.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use crate::call::Tell;
use crate::composite;
use crate::{
    ArgReduceOp, AttentionParams, Axes, Binding, Buffer, Claim, ComputeLimits, ComputeModule, CrossEntropyParams,
    DType, Distribution, Error, ErrorKind, Kernel, MapArg, MapOperands, ModuleHash, NativeFunction, Prepared, Reader,
    Reclaim, ReduceOp, Result, Scalar, ScanOp, ScatterOp, Shape, View, ViewMut, Window,
};

/// The kind of hardware behind a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// The processor that runs the program.
    Cpu,
    /// A GPU, driven through WebGPU.
    Wgpu,
    /// A GPU, driven through CUDA.
    Cuda,
    /// Any other hardware.
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
    /// Features that the backend can use: instruction sets, extensions, threads.
    pub features: Vec<String>,
    /// The number of columns of a panel; `None` if products gain nothing from panels. A matrix `[k, n]` of f32 that is
    /// the right operand of many products is best stored as panels `[n / columns, k, columns]`. A product with it is
    /// then a batch of products with the panels: all have the same `a`, and their results are successive columns of `c`.
    /// The weight of a convolution of few positions is then best stored so that its output channels are adjacent.
    pub f32_panel: Option<usize>,
}

/// A backend's memory counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in live buffers, plus those claimed for host vectors.
    pub in_use: usize,
    /// The largest value that `in_use` has had so far.
    pub peak: usize,
    /// Bytes that the pool keeps for reuse.
    pub cached: usize,
    /// Number of live buffers.
    pub buffers: usize,
    /// Number of allocations that the pool could not serve.
    pub system_allocations: u64,
}

/// The parts of a [`Watched`](crate::Watched) backend.
#[derive(Clone, Copy)]
pub struct WatchedParts<'a> {
    /// The backend that computes.
    pub inner: &'a Arc<dyn Backend>,
    /// The functions to which its calls are reported.
    pub tell: &'a [Arc<Tell>],
}

/// The operations that hardware provides to Gradus. The trait is object-safe. Every method takes `&self` and may be
/// called from any thread.
///
/// # Rules for every operation
/// * **Views**: inputs may have any offset and any strides, including 0 and negative ones. Outputs may have any strides
///   as long as no two elements share a memory location. Shapes and dtypes are as the method states. Callers inside
///   Gradus have checked them; a backend that is called directly answers a violation with an error, never with a panic
///   or a stray memory access.
/// * **Aliasing**: no output shares memory with an input, except through [`MapArg::Output`] and operands that are
///   documented as both read and written.
/// * **Locks**: the operands of a call are locked while it runs; a backend must not use tensors that share memory with
///   them.
/// * **Empty tensors** are legal everywhere and launch no kernel.
/// * **Errors** name the operation. After an error, the contents of the outputs are unspecified.
/// * **Half precision** operations compute and accumulate in f32 and round once.
/// * **NaN** propagates.
/// * **Order**: calls take effect as if they ran one after the other.
/// * **Late failures**: an asynchronous backend may discover a failure after the call has returned. The failure spoils
///   what the call wrote and everything computed from it: every [`download`](Backend::download) of a spoiled buffer
///   returns the error, which is created with [`Error::late`]. Other buffers are not affected.
///   [`synchronize`](Backend::synchronize) returns the errors that no download has returned yet.
///
/// The composites have default implementations built on the primitives; an override must agree with the default.
pub trait Backend: Send + Sync + Debug + 'static {
    // ---- identity ---------------------------------------------------------------------------------------------------

    /// The name, kind, memory and features of the backend.
    fn info(&self) -> BackendInfo;

    /// The name that errors show. The call is cheap.
    fn name(&self) -> &str;

    /// Whether this backend can store and compute with tensors of this dtype.
    fn supports(&self, dtype: DType) -> bool;

    /// The error that `op` returns for an unsupported dtype. Backends override this to name the missing feature.
    fn unsupported(&self, op: &str, dtype: DType) -> Error {
        Error::dtype(op, dtype, &format!("the dtypes of {}", self.name()))
    }

    /// The parts of this backend if it is a [`Watched`](crate::Watched) backend.
    fn as_watched(&self) -> Option<WatchedParts<'_>> {
        None
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    /// Allocates a buffer of `bytes` bytes, aligned for every dtype. Its contents are unspecified but initialised; a
    /// size of 0 is legal. Returns [`ErrorKind::OutOfMemory`] when the budget or the device is exhausted; existing
    /// buffers stay intact.
    fn alloc(&self, bytes: usize) -> Result<Buffer>;

    /// Copies `bytes` into `dst`, starting at byte `offset`.
    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Fills `bytes` with the contents of `src`, starting at byte `offset`, after all earlier calls have finished. If a
    /// late failure spoiled the buffer, returns the error of that failure.
    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// Copies `bytes` bytes from one buffer of this device to another.
    fn copy_buffer(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &mut Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()>;

    /// Sets every element of `out` to `value`, which the dtype of `out` must be able to represent.
    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()>;

    /// Waits until all earlier calls have finished, and returns the late failures that no download has returned yet.
    fn synchronize(&self) -> Result<()>;

    /// How much memory is in use and cached.
    fn memory_stats(&self) -> MemoryStats;

    /// Sets the maximum number of bytes that buffers and [claims](Backend::host_claim) on host memory may hold; `None`
    /// lifts the limit. Memory already in use is kept.
    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()>;

    /// An empty claim on the memory budget, which a [`HostVec`](crate::HostVec) grows as needed. The default is meant
    /// for backends whose buffers are not in host memory: a claim that no budget limits.
    fn host_claim(&self) -> Claim {
        Claim::new(None)
    }

    /// Returns the memory that the pool keeps for reuse to the system.
    fn trim(&self) -> Result<()>;

    /// Notes that nobody needs what `buffer` holds: until a call writes it, its contents are unspecified, as those of a
    /// buffer that was just allocated. A backend that finds failures late forgets one that spoiled the buffer. The default
    /// does nothing.
    fn renew(&self, buffer: &mut Buffer) -> Result<()> {
        let _ = buffer;
        Ok(())
    }

    // ---- lists of calls ---------------------------------------------------------------------------------------------

    /// Whether [`run_prepared`](Backend::run_prepared) does more than to make the calls if the list runs in the same memory
    /// again. If so, it is worth a copy to have results there each time.
    fn prepares(&self) -> bool {
        false
    }

    /// Runs a list of calls that runs many times, such as a captured step or a part of one. `calls` makes them, in
    /// order, on this thread, and stops at the first that fails. `prepared` belongs to the list with its operands in
    /// certain memory. `is_same` says that the list last ran there without an error, and that since then no parameter
    /// has changed. Meanwhile it may have run elsewhere, and other tensors may have had the memory.
    ///
    /// The default makes the calls. A backend whose calls cost time on the host may record them, keep the recording in
    /// `prepared`, and start it instead of making the calls if `is_same`. The results must be those of the calls. An
    /// error must be the one that `calls` returns, or one of the device before anything of the list was done.
    fn run_prepared(
        &self,
        prepared: &mut Prepared,
        is_same: bool,
        calls: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let _ = (prepared, is_same);
        calls()
    }

    /// Tells the backend of buffers that it may free when memory runs short. The default does nothing.
    fn offer(&self, memory: Weak<dyn Reclaim>) {
        let _ = memory;
    }

    /// Whether [`map_into`](Backend::map_into) with this reader of elements of a shape and dtype is faster than the two calls
    /// that it stands for. If so, its results must have the bits of theirs.
    fn joins_load(&self, reader: Reader, shape: &Shape, dtype: DType) -> bool {
        let _ = (reader, shape, dtype);
        false
    }

    // ---- required primitives ----------------------------------------------------------------------------------------

    /// Runs an elementwise kernel. `args` and `outs` correspond to the kernel's arguments and outputs. All views have
    /// the same shape, and the dtypes that the kernel states.
    ///
    /// Integer division by zero and negative integer exponents are [`ErrorKind::InvalidArgument`] errors.
    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()>;

    /// Runs an elementwise kernel, as [`map`](Backend::map) does, for each of several lists of operands. No output of a list
    /// shares memory with an operand of another list, so their order does not matter. The default calls `map` for each.
    fn map_each(&self, kernel: &Kernel, calls: &mut [MapOperands<'_, '_>]) -> Result<()> {
        calls.iter_mut().try_for_each(|call| self.map(kernel, call.args, call.outs))
    }

    /// Reduces the elements of `x` along `axes`; `out` has size 1 at these axes. The dtype of `out` is the dtype of
    /// `x`, except that sums and products have the dtype that [`DType::accumulate`] returns, and `any` and `all` have
    /// bool.
    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()>;

    /// The index of the largest or smallest element along an axis. `out` is i64 and has size 1 at that axis. An empty
    /// axis is an error.
    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()>;

    /// Accumulates along an axis, from first to last. `out` has the shape of `x`. Its dtype is the dtype of `x`, except
    /// that sums and products have the dtype that [`DType::accumulate`] returns. Sums and products of floats accumulate
    /// in f64, and each result is rounded once.
    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()>;

    /// `c = alpha * (a @ b) + beta * c` with `a [batch.., m, k]`, `b [batch.., k, n]` and `c [batch.., m, n]`. All
    /// three have the same dtype (any except bool) and the same batch axes; a broadcast batch axis has stride 0, and
    /// transposed operands are strided views. If `beta` is 0, the old contents of `c` are not read. If `k` is 0, the
    /// result is `beta * c`. Products with zero are not skipped, so NaN and infinity propagate.
    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()>;

    /// Copies the elements under every position of a window, from `x [n, c, spatial..]` to
    /// `out [n, c, kernel.., positions..]`. Elements outside `x` are `pad`.
    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()>;

    /// The adjoint of unfold: sums `x [n, c, kernel.., positions..]` into `out [n, c, spatial..]` in a fixed order and
    /// drops the padding. `out` is overwritten.
    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    /// `out[.., i, ..] = x[.., index[.., i, ..], ..]` at `axis`. `index` (i64, i32 or u32) has the shape of `out`,
    /// which equals that of `x` except at `axis`. An index outside `0..size` fails with
    /// [`ErrorKind::IndexOutOfBounds`].
    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    /// `out[.., index[.., i, ..], ..] = (or +=) src[.., i, ..]` at `axis`, in row-major order of the indices. `out` is
    /// read and written. `index` (i64, i32 or u32) has the shape of `src`, which equals that of `out` except at `axis`.
    /// Half precision accumulates in f32.
    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    /// Sorts stably along an axis and returns the sorted values with the original index (i64) of each. NaN comes last
    /// in ascending order and first in descending order. Positive and negative zeros are equal.
    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()>;

    /// Fills `out`, in row-major order, with random numbers from the stream of `seed`, starting at position `offset`.
    /// Element `i` is [`philox::element`](crate::philox::element)`(dist, dtype, seed, offset, i)`.
    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()>;

    /// Copies elements between two views of the same shape and dtype.
    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;

    // ---- composites -------------------------------------------------------------------------------------------------

    /// Runs an elementwise kernel with one output, as [`map`](Backend::map) does, and then `reader` on that output, which
    /// has this shape, is rounded to its dtype, and is not kept. `out` is the output of the reader. No argument is
    /// [`MapArg::Output`]. The default stores the whole output. A backend that computes it piece by piece, where the
    /// reader loads it, says so in [`joins_load`](Backend::joins_load).
    fn map_into(
        &self,
        kernel: &Kernel,
        args: &[MapArg<'_>],
        shape: Shape,
        reader: Reader,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::mapped::map_into(self, kernel, args, shape, reader, out)
    }

    /// Writes `start + i * step`, wrapping in 64 bits, to element `i` in row-major order. The dtype of `out` must be
    /// able to represent all these values.
    fn arange(&self, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
        composite::arange::arange(self, start, step, out)
    }

    /// `c = a @ b` for integers of 8 and 16 bits: `a [batch.., m, k]` and `b [batch.., k, n]` are i8, u8 or i16, each its
    /// own, and `c [batch.., m, n]` is i32. Sums wrap. Batch axes and strides are as in [`gemm`](Backend::gemm).
    fn gemm_i32(&self, a: View<'_>, b: View<'_>, c: &mut ViewMut<'_>) -> Result<()> {
        composite::gemm_i32::gemm_i32(self, a, b, c)
    }

    /// `out = scales * (b @ w - zeros * sums) + bias`, where `b` are the floats of `x`, rounded to 8 bits. With `add`, that
    /// is added to what `out` has.
    ///
    /// The floats of each matrix of `x [groups, m, k]` and 0 lie in a range, a 255th of which is `x_scale` (1 if that is
    /// 0). `zero` is how far the lower end lies below 0, divided by `x_scale`, rounded to an integer from 0 to 255. Then
    /// `b` is `x / x_scale`, rounded, plus `zero`, and clamped to 0 to 255. `scales` is `x_scale * scale`. These are the numbers of
    /// ONNX's `DynamicQuantizeLinear`.
    ///
    /// `x`, `scale [groups, n]`, `bias [groups, n]` and `out [groups, m, n]` are f32, `w [groups, k, n]` is i8, and
    /// `sums [groups, n]`, the sums of the columns of `w`, are i32. Integers are summed in i32, which wraps.
    fn linear_i8(
        &self,
        add: bool,
        x: View<'_>,
        w: View<'_>,
        sums: View<'_>,
        scale: View<'_>,
        bias: View<'_>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::linear_i8::linear_i8(self, add, x, w, sums, scale, bias, out)
    }

    /// Convolution (cross-correlation) of `x [n, c, spatial..]` with `w [k, c / groups, kernel..]` and `bias [k]`, into
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

    /// The gradient of [`conv`](Backend::conv) with respect to its input: from `g [n, k, positions..]` and `w` to
    /// `dx [n, c, spatial..]`.
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

    /// The gradient of [`conv`](Backend::conv) with respect to its weight: from `x` and `g` to
    /// `dw [k, c / groups, kernel..]`.
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

    /// The largest element under each position of a window, from `x [n, c, spatial..]` to `out [n, c, positions..]`,
    /// and its index (i64) into the flattened spatial axes of `x`. NaN counts as the largest; among equal elements, the
    /// first wins. Padding never wins, because every window covers at least one element ([`Window::check_pool`] checks
    /// this).
    fn max_pool(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()> {
        composite::pool::max_forward(self, window, x, out, indices)
    }

    /// The mean of the elements under each position of a window. Padding counts as zeros if `count_include_pad` is set;
    /// otherwise it is left out.
    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        composite::pool::avg_forward(self, window, count_include_pad, x, out)
    }

    /// The adjoint of [`avg_pool`](Backend::avg_pool): from `g [n, c, positions..]` to `dx [n, c, spatial..]`.
    fn avg_pool_backward(
        &self,
        window: &Window,
        count_include_pad: bool,
        g: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::pool::avg_backward(self, window, count_include_pad, g, dx)
    }

    /// `softmax` along an axis, or its logarithm if `log` is set. `x` and `out` have the same shape and float dtype. To
    /// avoid overflow, the largest element is subtracted first. If all elements along the axis are -inf, the results
    /// are NaN.
    fn softmax(&self, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        composite::softmax::forward(self, log, x, axis, out)
    }

    /// The gradient of [`softmax`](Backend::softmax), computed from its result `y`: `y * (g - sum(g * y))`, or
    /// `g - exp(y) * sum(g)` for the logarithm.
    fn softmax_backward(&self, log: bool, y: View<'_>, g: View<'_>, axis: usize, dx: &mut ViewMut<'_>) -> Result<()> {
        composite::softmax::backward(self, log, y, g, axis, dx)
    }

    /// Normalises over `axes`: `out = (x - mean) * rstd * scale + shift`, where `rstd = 1 / sqrt(var + eps)` with the
    /// biased variance, computed in two passes. With `rms`, `mean` is 0 and `var` is the mean square. `scale` and
    /// `shift` have the dtype of `x` and are broadcast to its shape. `mean` and `rstd` have size 1 at `axes` and the
    /// compute dtype of `x`. Layer, batch, group, instance and RMS normalisation are all this operation over different
    /// axes.
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

    /// The gradient of [`normalize`](Backend::normalize) with respect to `x`, computed from `g`, `x` and the
    /// statistics: `dx = rstd * (h - mean(h) - n * mean(h * n))` with `h = g * scale` and `n = (x - mean) * rstd`. With
    /// `rms`, the term `mean(h)` is absent.
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

    /// The gradients of [`normalize`](Backend::normalize) with respect to scale and shift: `dscale` is the sum of
    /// `g * n` with `n = (x - mean) * rstd`, and `dshift` the sum of `g`, both along the axes at which `dscale` has
    /// size 1. `g` has the shape and dtype of `x`; `mean` and `rstd` are broadcast to that shape. `dscale` has the rank
    /// of `x`, and each of its axes has size 1 or the size of that axis of `x`. `dshift` has the shape of `dscale`. The
    /// statistics and both gradients have the compute dtype of `x`.
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

    /// Scaled dot-product attention of `q [b, h, lq, d]`, `k [b, hk, lk, d]` and `v [b, hk, lk, dv]`, where `h` is a
    /// multiple of `hk`. Writes `out [b, h, lq, dv]` and `stats [b, h, lq, 2]` (compute dtype): for each
    /// row a shift, which is the largest score or up to 6 less, and the sum of `e^(score - shift)`. They stay two
    /// numbers, because their log-sum-exp loses the sum to rounding where the scores are large. `mask` is broadcast to
    /// `[b, h, lq, lk]`: a bool mask keeps the scores where it is true, and a float mask is added to them. A fully
    /// masked row yields 0, with the shift -inf and the sum 0. A score that is NaN or +inf makes the sum NaN.
    fn attention(
        &self,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        mask: Option<View<'_>>,
        out: &mut ViewMut<'_>,
        stats: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::attention::forward(self, params, q, k, v, mask, out, stats)
    }

    /// The gradients of [`attention`](Backend::attention) with respect to `q`, `k` and `v`, computed from its inputs,
    /// its outputs and the gradient `g` of `out`.
    fn attention_backward(
        &self,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        mask: Option<View<'_>>,
        out: View<'_>,
        stats: View<'_>,
        g: View<'_>,
        dq: &mut ViewMut<'_>,
        dk: &mut ViewMut<'_>,
        dv: &mut ViewMut<'_>,
    ) -> Result<()> {
        composite::attention::backward(self, params, q, k, v, mask, out, stats, g, dq, dk, dv)
    }

    /// The cross-entropy of each row: from `logits [n, c]` and `target [n]` (i64, i32 or u32) to `loss [n]` and
    /// `lse [n]`, the log-sum-exp of each row (both in the compute dtype). A target outside `0..c` that is not
    /// `ignore_index` fails with [`ErrorKind::IndexOutOfBounds`].
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

    /// The gradient of [`cross_entropy`](Backend::cross_entropy) with respect to the logits: `g [n]` (compute dtype)
    /// times `softmax - target distribution`, and 0 in ignored rows.
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

    /// Looks up the rows of `weight [v, d]` that `index [..]` selects, into `out [.., d]`.
    fn embedding(&self, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        composite::embedding::forward(self, weight, index, out)
    }

    /// The gradient of [`embedding`](Backend::embedding) with respect to the weight: sums the rows of `g [.., d]` into
    /// `dw [v, d]`, which is overwritten. The row at `padding_index` stays 0.
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

    /// The limits on one dispatch; `None` if the backend runs no compute modules.
    fn compute_limits(&self) -> Option<ComputeLimits> {
        None
    }

    /// Checks whether [`dispatch_compute`](Backend::dispatch_compute) would accept a call with this number of bindings.
    /// If not, returns the error that it would return. This check runs before the operands are locked and the outputs
    /// are marked as written, so it cannot depend on the operands themselves; the default checks the limits. The dtypes
    /// and sizes of the operands, and which of them are written, are checked by the dispatch, after the outputs have
    /// been marked as written.
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

    /// Runs a user-written compute module over `groups` work-groups, with `bindings` in order and `constants` as push
    /// constants. Bindings must be contiguous, and a buffer bound for writing must not be bound a second time.
    /// [`compute::check`](crate::compute::check) states the rules. A module is compiled at its first use and then
    /// looked up by its content.
    ///
    /// Returns [`ErrorKind::Unsupported`] if the backend cannot run a module of this form, and
    /// [`ErrorKind::InvalidArgument`] if the module is malformed, is not [allowed](Backend::allow_modules) or names an
    /// unknown function.
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

    /// Registers `function` as the one that [`ComputeModule::Native`]`(name)` runs, for the life of the backend.
    /// Returns an error if the name is taken, and [`ErrorKind::Unsupported`] if functions on the host cannot access the
    /// backend's memory, or if the function is one [on a device](NativeFunction::on_device) and the memory is the host's.
    fn register_native(&self, name: &str, function: NativeFunction) -> Result<()> {
        let m = format!("backend {} runs no functions of the host, so neither {name:?}, {function:?}", self.name());
        Err(Error::new(ErrorKind::Unsupported, "register_native", m))
    }

    /// Restricts compute modules to those with these hashes; `None` allows all. Returns [`ErrorKind::Unsupported`] if
    /// the backend runs no compute modules.
    fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        let m = format!("backend {} runs no compute modules: {hashes:?}", self.name());
        Err(Error::new(ErrorKind::Unsupported, "allow_modules", m))
    }
}
