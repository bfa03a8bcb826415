//! [`Watched`]: a backend that tells what each call of another computed on, and how long it took.

mod telling;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::{
    ArgReduceOp, AttentionParams, Axes, Backend, BackendInfo, Binding, Buffer, Claim, ComputeLimits, ComputeModule,
    CrossEntropyParams, DType, Distribution, Error, Kernel, Layout, MapArg, MemoryStats, ModuleHash, NativeFunction,
    ReduceOp, Result, Scalar, ScanOp, ScatterOp, Shape, View, ViewMut, Window,
};

/// What one operand of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub shape: Shape,
    /// Bytes of memory that hold the elements: those of a stretched axis count once.
    pub bytes: u64,
}

impl Operand {
    fn new(dtype: DType, layout: &Layout) -> Self {
        let places = layout.dims().iter().zip(layout.strides()).filter(|(_, s)| **s != 0).map(|(&d, _)| d as u64);
        let bytes = if layout.numel() == 0 { 0 } else { places.product::<u64>() * dtype.size() as u64 };
        Operand { dtype, shape: *layout.shape(), bytes }
    }

    fn bytes(bytes: usize) -> Self {
        Operand { dtype: DType::U8, shape: Shape::new(&[bytes]).unwrap_or(Shape::SCALAR), bytes: bytes as u64 }
    }

    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.shape.dims().iter().map(|&d| d as u64).product()
    }
}

/// One call of a backend.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The method of [`Backend`]; for [`map`](Backend::map) the kernel's name.
    pub name: &'a str,
    /// What was read, in the order of the method.
    pub inputs: &'a [Operand],
    /// What was written.
    pub outputs: &'a [Operand],
    /// Additions, multiplications and functions of numbers that the definition takes, for the methods that are limited by
    /// them; 0 for those that move data. Causal attention counts the scores that are seen.
    pub operations: u64,
    /// When the call began.
    pub began: Instant,
    /// How long it took, the end of an asynchronous backend's work included.
    pub took: Duration,
    /// Whether it succeeded.
    pub succeeded: bool,
}

impl Call<'_> {
    /// Bytes of all operands.
    pub fn bytes(&self) -> u64 {
        self.inputs.iter().chain(self.outputs).map(|o| o.bytes).sum()
    }
}

type Operands = SmallVec<[Operand; 4]>;

pub use telling::{Postponed, postpone};
use telling::{Tell, WATCHING, ended};

/// A backend that passes every call on to another, and tells functions about those that compute or move data.
///
/// A function is told when the call has ended, on the thread that made it; on threads that [`postpone`] it, after that. What
/// it does with the backend itself it is not told of. If it panics, so does the call, which is done.
///
/// Each call is [waited for](Backend::synchronize), so that its time is its own; what runs beside it on other threads is
/// not taken into account.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use gradus_backend::{Backend, DType, Layout, Scalar, Shape, ViewMut, Watched};
/// # fn demo(backend: Arc<dyn Backend>) -> gradus_backend::Result<()> {
/// let names = Arc::new(Mutex::new(vec![]));
/// let seen = names.clone();
/// let watched = Watched::new(backend, move |call| seen.lock().unwrap().push(call.name.to_owned()));
/// let mut buffer = watched.alloc(16)?;
/// let layout = Layout::contiguous(Shape::new(&[4])?);
/// watched.fill(&mut ViewMut { buffer: &mut buffer, dtype: DType::F32, layout: &layout }, Scalar::Float(1.0))?;
/// assert_eq!(*names.lock().unwrap(), ["fill"]);
/// # Ok(()) }
/// ```
pub struct Watched {
    inner: Arc<dyn Backend>,
    tell: Vec<Arc<Tell>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({:?})", self.inner)
    }
}

fn of(x: &View<'_>) -> Operand {
    Operand::new(x.dtype, x.layout)
}

fn out(y: &ViewMut<'_>) -> Operand {
    Operand::new(y.dtype, y.layout)
}

impl Watched {
    /// Watches `inner`. One that is watched already is not wrapped again: its functions are told first, then `tell`.
    pub fn new(inner: Arc<dyn Backend>, tell: impl Fn(&Call<'_>) + Send + Sync + 'static) -> Self {
        let (inner, mut all) = match inner.as_watched() {
            Some(watched) => (watched.inner.clone(), watched.tell.clone()),
            None => (inner, vec![]),
        };
        all.push(Arc::new(tell));
        WATCHING.fetch_add(1, Ordering::Relaxed);
        Watched { inner, tell: all }
    }

    fn call<R>(
        &self,
        name: &str,
        inputs: impl IntoIterator<Item = Operand>,
        outputs: impl IntoIterator<Item = Operand>,
        operations: impl FnOnce(&[Operand], &[Operand]) -> u64,
        run: impl FnOnce(&dyn Backend) -> Result<R>,
    ) -> Result<R> {
        let (inputs, outputs): (Operands, Operands) = (inputs.into_iter().collect(), outputs.into_iter().collect());
        let operations = operations(&inputs, &outputs);
        let began = Instant::now();
        let result = run(&*self.inner).and_then(|r| self.inner.synchronize().map(|()| r));
        let took = began.elapsed();
        let (inputs, outputs, succeeded) = (&inputs[..], &outputs[..], result.is_ok());
        let call = Call { name, inputs, outputs, operations, began, took, succeeded };
        self.tell.iter().for_each(|tell| ended(tell, &call));
        result
    }
}

/// Of a call that moves data.
fn none(_: &[Operand], _: &[Operand]) -> u64 {
    0
}

/// One for each element of the first input.
fn each(inputs: &[Operand], _: &[Operand]) -> u64 {
    inputs.first().map_or(0, Operand::numel)
}

/// Twice the elements of `x` times those of a filter of `w`.
fn windows(x: &Operand, w: &Operand) -> u64 {
    let filters = w.shape.dims().first().map_or(1, |&n| n.max(1) as u64);
    2 * x.numel() * (w.numel() / filters)
}

/// So many products over the visible scores with the width of the queries and with that of the values.
fn scores(causal: bool, [of_queries, of_values]: [u64; 2], qkv: &[Operand]) -> u64 {
    let last = |x: &Operand, back| x.shape.dims().iter().rev().nth(back).map_or(1, |&n| n as u64);
    let [q, k, v] = [&qkv[0], &qkv[1], &qkv[2]];
    let (rows, keys) = (last(q, 1), last(k, 1));
    // Causal: the last row sees all keys, each row before it one fewer.
    let hidden = if causal {
        rows.min(keys) * rows.min(keys).saturating_sub(1) / 2 + rows.saturating_sub(keys) * keys
    } else {
        0
    };
    let matrices = q.numel() / (rows * last(q, 0)).max(1);
    2 * matrices * (rows * keys - hidden) * (of_queries * last(q, 0) + of_values * last(v, 0))
}

impl Backend for Watched {
    fn as_watched(&self) -> Option<&Watched> {
        Some(self)
    }
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn supports(&self, dtype: DType) -> bool {
        self.inner.supports(dtype)
    }

    fn unsupported(&self, op: &str, dtype: DType) -> Error {
        self.inner.unsupported(op, dtype)
    }
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.inner.alloc(bytes)
    }
    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let n = Operand::bytes(bytes.len());
        self.call("upload", [], [n], none, |b| b.upload(dst, offset, bytes))
    }
    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let n = Operand::bytes(bytes.len());
        self.call("download", [n], [], none, |b| b.download(src, offset, bytes))
    }
    fn copy_buffer(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &mut Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let n = Operand::bytes(bytes);
        self.call("copy_buffer", [n], [n], none, |b| b.copy_buffer(src, src_offset, dst, dst_offset, bytes))
    }
    fn fill(&self, y: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        self.call("fill", [], [out(y)], none, |b| b.fill(y, value))
    }
    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }
    fn memory_stats(&self) -> MemoryStats {
        self.inner.memory_stats()
    }
    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        self.inner.set_memory_budget(bytes)
    }
    fn host_claim(&self) -> Claim {
        self.inner.host_claim()
    }
    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }
    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        let inputs = args.iter().filter_map(|a| match a {
            MapArg::View(v) => Some(of(v)),
            MapArg::Output(i) => outs.get(*i).map(out),
            MapArg::Scalar(_) => None,
        });
        let inputs: Operands = inputs.collect();
        let outputs: Operands = outs.iter().map(out).collect();
        let computed = kernel.insts().len().saturating_sub(kernel.args().len()) as u64;
        let count = |_: &[Operand], outputs: &[Operand]| computed * outputs.first().map_or(0, Operand::numel);
        self.call(kernel.name(), inputs, outputs, count, |b| b.map(kernel, args, outs))
    }
    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("reduce", [of(&x)], [out(y)], each, |b| b.reduce(op, x, axes, y))
    }
    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("arg_reduce", [of(&x)], [out(y)], each, |b| b.arg_reduce(op, x, axis, y))
    }
    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("scan", [of(&x)], [out(y)], each, |b| b.scan(op, x, axis, y))
    }
    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        let count = |i: &[Operand], o: &[Operand]| {
            let inner = i.first().and_then(|a| a.shape.dims().last().copied()).unwrap_or(0) as u64;
            2 * inner * o.first().map_or(0, Operand::numel)
        };
        self.call("gemm", [of(&a), of(&b)], [out(c)], count, |x| x.gemm(alpha, a, b, beta, c))
    }
    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("unfold", [of(&x)], [out(y)], none, |b| b.unfold(window, x, pad, y))
    }
    fn fold(&self, window: &Window, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("fold", [of(&x)], [out(y)], each, |b| b.fold(window, x, y))
    }
    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("gather", [of(&x), of(&index)], [out(y)], none, |b| b.gather(x, axis, index, y))
    }
    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("scatter", [of(&index), of(&src)], [out(y)], none, |b| b.scatter(op, axis, index, src, y))
    }
    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()> {
        let outputs = [out(values), out(indices)];
        self.call("sort", [of(&x)], outputs, none, |b| b.sort(x, axis, descending, values, indices))
    }
    fn random(&self, dist: Distribution, seed: u64, offset: u64, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("random", [], [out(y)], none, |b| b.random(dist, seed, offset, y))
    }
    fn copy_strided(&self, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("copy_strided", [of(&x)], [out(y)], none, |b| b.copy_strided(x, y))
    }
    fn conv(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        w: View<'_>,
        bias: Option<View<'_>>,
        y: &mut ViewMut<'_>,
    ) -> Result<()> {
        let inputs = [x, w].iter().chain(&bias).map(of).collect::<Operands>();
        let count = |i: &[Operand], o: &[Operand]| windows(&o[0], &i[1]);
        self.call("conv", inputs, [out(y)], count, |b| b.conv(window, groups, x, w, bias, y))
    }
    fn conv_backward_input(
        &self,
        window: &Window,
        groups: usize,
        g: View<'_>,
        w: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        let count = |i: &[Operand], _: &[Operand]| windows(&i[0], &i[1]);
        self.call("conv_backward_input", [of(&g), of(&w)], [out(dx)], count, |b| {
            b.conv_backward_input(window, groups, g, w, dx)
        })
    }
    fn conv_backward_weight(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        g: View<'_>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        let count = |i: &[Operand], o: &[Operand]| windows(&i[1], &o[0]);
        self.call("conv_backward_weight", [of(&x), of(&g)], [out(dw)], count, |b| {
            b.conv_backward_weight(window, groups, x, g, dw)
        })
    }
    fn max_pool(&self, window: &Window, x: View<'_>, y: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()> {
        self.call("max_pool", [of(&x)], [out(y), out(indices)], none, |b| b.max_pool(window, x, y, indices))
    }
    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("avg_pool", [of(&x)], [out(y)], none, |b| b.avg_pool(window, count_include_pad, x, y))
    }
    fn avg_pool_backward(
        &self,
        window: &Window,
        count_include_pad: bool,
        g: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.call("avg_pool_backward", [of(&g)], [out(dx)], none, |b| {
            b.avg_pool_backward(window, count_include_pad, g, dx)
        })
    }
    fn softmax(&self, log: bool, x: View<'_>, axis: usize, y: &mut ViewMut<'_>) -> Result<()> {
        self.call("softmax", [of(&x)], [out(y)], none, |b| b.softmax(log, x, axis, y))
    }
    fn softmax_backward(&self, log: bool, y: View<'_>, g: View<'_>, axis: usize, dx: &mut ViewMut<'_>) -> Result<()> {
        self.call("softmax_backward", [of(&y), of(&g)], [out(dx)], none, |b| b.softmax_backward(log, y, g, axis, dx))
    }
    fn normalize(
        &self,
        rms: bool,
        axes: Axes,
        eps: f64,
        x: View<'_>,
        scale: Option<View<'_>>,
        shift: Option<View<'_>>,
        y: &mut ViewMut<'_>,
        mean: &mut ViewMut<'_>,
        rstd: &mut ViewMut<'_>,
    ) -> Result<()> {
        let inputs = [x].iter().chain(&scale).chain(&shift).map(of).collect::<Operands>();
        let outputs = [out(y), out(mean), out(rstd)];
        self.call("normalize", inputs, outputs, none, |b| b.normalize(rms, axes, eps, x, scale, shift, y, mean, rstd))
    }
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
        let inputs = [g, x].iter().chain(&scale).chain(&[mean, rstd]).map(of).collect::<Operands>();
        self.call("normalize_backward", inputs, [out(dx)], none, |b| {
            b.normalize_backward(rms, axes, g, x, scale, mean, rstd, dx)
        })
    }
    fn normalize_affine_backward(
        &self,
        g: View<'_>,
        x: View<'_>,
        mean: View<'_>,
        rstd: View<'_>,
        dscale: &mut ViewMut<'_>,
        dshift: Option<&mut ViewMut<'_>>,
    ) -> Result<()> {
        let inputs = [g, x, mean, rstd].iter().map(of).collect::<Operands>();
        let outputs = [&*dscale].into_iter().chain(dshift.as_deref()).map(out).collect::<SmallVec<[_; 2]>>();
        self.call("normalize_affine_backward", inputs, outputs, none, |b| {
            b.normalize_affine_backward(g, x, mean, rstd, dscale, dshift)
        })
    }
    fn attention(
        &self,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        mask: Option<View<'_>>,
        y: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        let inputs = [q, k, v].iter().chain(&mask).map(of).collect::<Operands>();
        let count = |i: &[Operand], _: &[Operand]| scores(params.causal, [1, 1], i);
        let outputs = [out(y), out(lse)];
        self.call("attention", inputs, outputs, count, |b| b.attention(params, q, k, v, mask, y, lse))
    }
    fn attention_backward(
        &self,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        v: View<'_>,
        mask: Option<View<'_>>,
        y: View<'_>,
        lse: View<'_>,
        g: View<'_>,
        dq: &mut ViewMut<'_>,
        dk: &mut ViewMut<'_>,
        dv: &mut ViewMut<'_>,
    ) -> Result<()> {
        let inputs = [q, k, v].iter().chain(&mask).chain(&[y, lse, g]).map(of).collect::<Operands>();
        let count = |i: &[Operand], _: &[Operand]| scores(params.causal, [3, 2], i);
        let outputs = [out(dq), out(dk), out(dv)];
        self.call("attention_backward", inputs, outputs, count, |b| {
            b.attention_backward(params, q, k, v, mask, y, lse, g, dq, dk, dv)
        })
    }
    fn cross_entropy(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        loss: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        let outputs = [out(loss), out(lse)];
        self.call("cross_entropy", [of(&logits), of(&target)], outputs, none, |b| {
            b.cross_entropy(params, logits, target, loss, lse)
        })
    }
    fn cross_entropy_backward(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        lse: View<'_>,
        g: View<'_>,
        dlogits: &mut ViewMut<'_>,
    ) -> Result<()> {
        let inputs = [logits, target, lse, g].iter().map(of).collect::<Operands>();
        self.call("cross_entropy_backward", inputs, [out(dlogits)], none, |b| {
            b.cross_entropy_backward(params, logits, target, lse, g, dlogits)
        })
    }
    fn embedding(&self, weight: View<'_>, index: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        // What is read of the weight are the rows that are written.
        let rows = out(y);
        self.call("embedding", [rows, of(&index)], [rows], none, |b| b.embedding(weight, index, y))
    }
    fn embedding_backward(
        &self,
        index: View<'_>,
        g: View<'_>,
        padding_index: Option<usize>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.call("embedding_backward", [of(&index), of(&g)], [out(dw)], none, |b| {
            b.embedding_backward(index, g, padding_index, dw)
        })
    }
    fn compute_limits(&self) -> Option<ComputeLimits> {
        self.inner.compute_limits()
    }
    fn register_native(&self, name: &str, function: NativeFunction) -> Result<()> {
        self.inner.register_native(name, function)
    }
    fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        self.inner.allow_modules(hashes)
    }
    fn check_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: usize,
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        self.inner.check_compute(module, bindings, constants, groups)
    }
    fn dispatch_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: &mut [Binding<'_>],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        let (mut inputs, mut outputs) = (Operands::new(), Operands::new());
        for binding in bindings.iter() {
            match binding {
                Binding::Read(x) => inputs.push(of(x)),
                Binding::Write(y) => outputs.push(out(y)),
            }
        }
        self.call("dispatch_compute", inputs, outputs, none, |b| {
            b.dispatch_compute(module, bindings, constants, groups)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(dims: &[usize]) -> Operand {
        Operand { dtype: DType::F32, shape: Shape::new(dims).unwrap(), bytes: 0 }
    }

    #[test]
    fn attention_counts_what_is_seen() {
        let count = |causal, rows: usize, keys: usize| {
            let qkv = [[2, 3, rows, 4], [2, 3, keys, 4], [2, 3, keys, 5]].map(|dims| operand(&dims));
            scores(causal, [3, 2], &qkv)
        };
        for (rows, keys) in [(1, 1000), (4, 4), (3, 5), (5, 3), (0, 3), (3, 0)] {
            let seen = |row: usize| (0..keys).filter(|key| key + rows <= row + keys).count();
            let seen = (0..rows).map(seen).sum::<usize>();
            assert_eq!(count(false, rows, keys), (2 * 6 * rows * keys * (3 * 4 + 2 * 5)) as u64);
            assert_eq!(count(true, rows, keys), (2 * 6 * seen * (3 * 4 + 2 * 5)) as u64, "{rows} rows, {keys} keys");
        }
    }
}
