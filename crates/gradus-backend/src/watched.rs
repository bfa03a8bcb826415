//! [`Watched`]: a backend that reports the operands and the duration of each call of another backend.

mod telling;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::backend::WatchedParts;
use crate::call::{Call, CallOperand, Operands, Tell};
use crate::{
    ArgReduceOp, AttentionParams, Axes, Backend, BackendInfo, Binding, Buffer, Claim, ComputeLimits, ComputeModule,
    CrossEntropyParams, DType, Distribution, Error, Kernel, MapArg, MemoryStats, ModuleHash, NativeFunction, Reader,
    Reclaim, ReduceOp, Result, Scalar, ScanOp, ScatterOp, Shape, View, ViewMut, Window,
};

pub use telling::{Postponed, postpone};
use telling::{WATCHING, ended};

/// A backend that forwards every call to another one, and reports calls that compute or move data to watching
/// functions.
///
/// A watching function runs on the thread that made the call, after the call has ended. If that thread has
/// [postponed](postpone) reports, the function runs when the guard is dropped. Calls that a watching function makes
/// itself are not reported to it. If the function panics, the panic propagates out of the call, which has already done
/// its work.
///
/// The device is [synchronized](Backend::synchronize) after each call, so that the call's time does not include earlier
/// or later calls. Work on other threads at the same time is not subtracted.
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

/// The operands of a call, collected from its arguments.
#[derive(Default)]
struct Asked {
    inputs: Operands,
    outputs: Operands,
    /// Whether attention is causal.
    causal: bool,
}

/// An argument of a method of [`Backend`].
trait Argument {
    fn note(&self, _asked: &mut Asked) {}
}

macro_rules! nothing {
    ($($type:ty),*) => { $(impl Argument for $type {})* };
}
nothing!(
    ArgReduceOp,
    Axes,
    ComputeModule<'_>,
    CrossEntropyParams,
    Distribution,
    Option<usize>,
    ReduceOp,
    Scalar,
    ScanOp,
    ScatterOp,
    Window,
    [u8],
    [u32; 3],
    bool,
    f64,
    i64,
    u64,
    usize
);

impl Argument for View<'_> {
    fn note(&self, asked: &mut Asked) {
        asked.inputs.push(CallOperand::new(self.dtype, self.layout));
    }
}

impl Argument for ViewMut<'_> {
    fn note(&self, asked: &mut Asked) {
        asked.outputs.push(CallOperand::new(self.dtype, self.layout));
    }
}

impl Argument for Option<View<'_>> {
    fn note(&self, asked: &mut Asked) {
        self.iter().for_each(|x| x.note(asked));
    }
}

impl Argument for Option<&mut ViewMut<'_>> {
    fn note(&self, asked: &mut Asked) {
        self.iter().for_each(|y| y.note(asked));
    }
}

impl Argument for [Binding<'_>] {
    fn note(&self, asked: &mut Asked) {
        self.iter().for_each(|binding| match binding {
            Binding::Read(x) => x.note(asked),
            Binding::Write(y) => y.note(asked),
        });
    }
}

impl Argument for AttentionParams {
    fn note(&self, asked: &mut Asked) {
        asked.causal = self.causal;
    }
}

impl Watched {
    /// Watches `inner`. A backend that is already watched is not wrapped again: its functions run first, then `tell`.
    pub fn new(inner: Arc<dyn Backend>, tell: impl Fn(&Call<'_>) + Send + Sync + 'static) -> Self {
        let (inner, mut all) = match inner.as_watched() {
            Some(parts) => (parts.inner.clone(), parts.tell.to_vec()),
            None => (inner, vec![]),
        };
        all.push(Arc::new(tell));
        WATCHING.fetch_add(1, Ordering::Relaxed);
        Watched { inner, tell: all }
    }

    fn call<R>(
        &self,
        name: &str,
        Asked { inputs, outputs, .. }: Asked,
        operations: u64,
        run: impl FnOnce(&dyn Backend) -> Result<R>,
    ) -> Result<R> {
        let began = Instant::now();
        let result = run(&*self.inner).and_then(|r| self.inner.synchronize().map(|()| r));
        let took = began.elapsed();
        let (inputs, outputs, succeeded) = (&inputs[..], &outputs[..], result.is_ok());
        let call = Call { name, inputs, outputs, operations, began, took, succeeded };
        self.tell.iter().for_each(|tell| ended(tell, &call));
        result
    }

    /// Runs and reports a call that moves bytes.
    fn moved(
        &self,
        name: &str,
        read: Option<usize>,
        written: Option<usize>,
        run: impl FnOnce(&dyn Backend) -> Result<()>,
    ) -> Result<()> {
        let operands = |n: Option<usize>| n.map(CallOperand::of_bytes).into_iter().collect();
        self.call(name, Asked { inputs: operands(read), outputs: operands(written), causal: false }, 0, run)
    }
}

/// The operands of a kernel.
fn asked_of_map(args: &[MapArg<'_>], outs: &[ViewMut<'_>]) -> Asked {
    let mut asked = Asked::default();
    outs.iter().for_each(|y| y.note(&mut asked));
    let inputs = args.iter().filter_map(|a| match a {
        MapArg::View(x) => Some(CallOperand::new(x.dtype, x.layout)),
        MapArg::Output(i) => asked.outputs.get(*i).copied(),
        MapArg::Scalar(_) => None,
    });
    asked.inputs = inputs.collect();
    asked
}

/// The number of instructions of a kernel that compute.
fn instructions(kernel: &Kernel) -> u64 {
    kernel.insts().len().saturating_sub(kernel.args().len()) as u64
}

/// The number of elements of the first operand.
fn elements(operands: &[CallOperand]) -> u64 {
    operands.first().map_or(0, CallOperand::numel)
}

/// Number of additions, multiplications and function evaluations in the definition of a method; 0 for methods that
/// mostly move data.
fn operations(method: &str, Asked { inputs: i, outputs: o, causal }: &Asked) -> u64 {
    match method {
        "reduce" | "arg_reduce" | "scan" | "fold" => elements(i),
        "gemm" | "gemm_i32" | "linear_i8" => 2 * i[0].shape.dims().last().map_or(0, |&n| n as u64) * elements(o),
        "conv" => windows(&o[0], &i[1]),
        "conv_backward_input" => windows(&i[0], &i[1]),
        "conv_backward_weight" => windows(&i[1], &o[0]),
        "attention" => scores(*causal, [1, 1], i),
        "attention_backward" => scores(*causal, [3, 2], i),
        _ => 0,
    }
}

/// Twice the number of elements of `x`, times the number of elements in one filter of `w`.
fn windows(x: &CallOperand, w: &CallOperand) -> u64 {
    let filters = w.shape.dims().first().map_or(1, |&n| n.max(1) as u64);
    2 * x.numel() * (w.numel() / filters)
}

/// The operations of attention: over all visible scores, `of_queries` products with the width of a query and
/// `of_values` products with the width of a value.
fn scores(causal: bool, [of_queries, of_values]: [u64; 2], qkv: &[CallOperand]) -> u64 {
    let last = |x: &CallOperand, back| x.shape.dims().iter().rev().nth(back).map_or(1, |&n| n as u64);
    let [q, k, v] = [&qkv[0], &qkv[1], &qkv[2]];
    let (rows, keys) = (last(q, 1), last(k, 1));
    // If causal, the last row sees all keys, and each row before it sees one key fewer.
    let hidden = if causal {
        rows.min(keys) * rows.min(keys).saturating_sub(1) / 2 + rows.saturating_sub(keys) * keys
    } else {
        0
    };
    let matrices = q.numel() / (rows * last(q, 0)).max(1);
    2 * matrices * (rows * keys - hidden) * (of_queries * last(q, 0) + of_values * last(v, 0))
}

/// Implements the methods that are reported, except those that `impl Backend for Watched` writes by hand.
macro_rules! told {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(told! { @ $name($($arg: $type),*) -> $result })*
    };
    (@ map($($rest:tt)*) -> $result:ty) => {};
    (@ map_into($($rest:tt)*) -> $result:ty) => {};
    (@ embedding($($rest:tt)*) -> $result:ty) => {};
    (@ $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        fn $name(&self, $($arg: $type),*) -> $result {
            let mut asked = Asked::default();
            $($arg.note(&mut asked);)*
            let operations = operations(stringify!($name), &asked);
            self.call(stringify!($name), asked, operations, |b| b.$name($($arg),*))
        }
    };
}

impl Backend for Watched {
    fn as_watched(&self) -> Option<WatchedParts<'_>> {
        Some(WatchedParts { inner: &self.inner, tell: &self.tell })
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
        self.moved("upload", None, Some(bytes.len()), |b| b.upload(dst, offset, bytes))
    }
    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.moved("download", Some(bytes.len()), None, |b| b.download(src, offset, bytes))
    }
    fn copy_buffer(&self, src: &Buffer, from: usize, dst: &mut Buffer, to: usize, bytes: usize) -> Result<()> {
        self.moved("copy_buffer", Some(bytes), Some(bytes), |b| b.copy_buffer(src, from, dst, to, bytes))
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
    fn offer(&self, memory: Weak<dyn Reclaim>) {
        self.inner.offer(memory);
    }
    fn renew(&self, buffer: &mut Buffer) -> Result<()> {
        self.inner.renew(buffer)
    }
    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        let asked = asked_of_map(args, outs);
        let operations = instructions(kernel) * elements(&asked.outputs);
        self.call(kernel.name(), asked, operations, |b| b.map(kernel, args, outs))
    }
    fn map_into(
        &self,
        kernel: &Kernel,
        args: &[MapArg<'_>],
        shape: Shape,
        reader: Reader,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        let asked = asked_of_map(args, &[out.with(out.layout)]);
        let of_reader = u64::from(matches!(reader, Reader::Reduce(..)));
        let operations = (instructions(kernel) + of_reader) * shape.numel() as u64;
        let name = format!("{}+{}", kernel.name(), reader.name());
        self.call(&name, asked, operations, |b| b.map_into(kernel, args, shape, reader, out))
    }
    fn joins_load(&self, reader: Reader, shape: &Shape, dtype: DType) -> bool {
        self.inner.joins_load(reader, shape, dtype)
    }
    fn embedding(&self, weight: View<'_>, index: View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        // Only the rows of the weight that become the output are read.
        let rows = CallOperand::new(y.dtype, y.layout);
        let inputs = [rows, CallOperand::new(index.dtype, index.layout)].into_iter().collect();
        let asked = Asked { inputs, outputs: [rows].into_iter().collect(), causal: false };
        self.call("embedding", asked, 0, |b| b.embedding(weight, index, y))
    }
    backend_methods!(primitives told);
    backend_methods!(composites told);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(dims: &[usize]) -> CallOperand {
        CallOperand { dtype: DType::F32, shape: Shape::new(dims).unwrap(), bytes: 0 }
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
