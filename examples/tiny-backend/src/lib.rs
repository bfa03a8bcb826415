//! A complete backend for Gradus outside the Gradus crates, as short as possible.
//!
//! It implements the required primitives of [`Backend`] and nothing else: convolution, attention, optimisers and all
//! other composites use their default bodies. Every primitive has the same four steps: [`check`] the operands, read
//! their elements, compute, write. Memory is the process's own ([`HostMemory`]), an element is a [`Scalar`], and speed
//! does not matter. A backend for hardware differs in the last three steps.
#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::sync::Arc;

use gradus_backend::host::{converted, wide};
use gradus_backend::{
    ArgReduceOp, Axes, Backend, BackendInfo, BackendKind, Buffer, Claim, DType, Distribution, Error, HostMemory,
    Kernel, Layout, MAX_RANK, MapArg, MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, Shape, View, ViewMut,
    Window, check, philox,
};

/// The backend. Its only state is its memory.
#[derive(Debug)]
pub struct TinyBackend {
    memory: Arc<HostMemory>,
}

impl TinyBackend {
    /// Creates a backend with no memory in use.
    ///
    /// # Errors
    /// Never fails. Creating a backend for real hardware can fail, for example if the device is missing.
    pub fn new() -> Result<Self> {
        Ok(TinyBackend { memory: HostMemory::new() })
    }

    fn read(&self, op: &str, x: View<'_>) -> Result<Vec<Scalar>> {
        self.memory.read(op, x)
    }

    fn write(&self, op: &str, out: &mut ViewMut<'_>, values: &[Scalar]) -> Result<()> {
        self.memory.write(op, out, values)
    }

    /// For every element of `index`, the offset in a contiguous tensor of shape `whole` of the element that it selects
    /// along `axis`.
    fn places(&self, op: &str, whole: &Shape, axis: usize, index: View<'_>) -> Result<Vec<usize>> {
        let all = Layout::contiguous(*whole);
        let place = |(pos, (mut at, i)): (usize, ([usize; MAX_RANK], Scalar))| {
            at[axis] = check::index(op, pos, i.to_i64(), whole[axis])?;
            Ok(all.position(&at[..whole.rank()]))
        };
        index.layout.shape().indices().zip(self.read(op, index)?).enumerate().map(place).collect()
    }
}

impl Backend for TinyBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: self.name().to_owned(),
            kind: BackendKind::Other,
            hardware: "one element after the other".to_owned(),
            memory: None,
            features: Vec::new(),
            f32_panel: None,
        }
    }

    fn name(&self) -> &str {
        "tiny"
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.memory.alloc(bytes)
    }

    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        self.memory.upload(dst, offset, bytes)
    }

    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.memory.download(src, offset, bytes)
    }

    fn copy_buffer(&self, src: &Buffer, from: usize, dst: &mut Buffer, to: usize, bytes: usize) -> Result<()> {
        self.memory.copy(src, from, dst, to, bytes)
    }

    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        check::scalar("fill", value, out.dtype)?;
        let value = converted(value, out.dtype);
        self.write("fill", out, &vec![value; out.layout.numel()])
    }

    fn synchronize(&self) -> Result<()> {
        Ok(()) // every call is complete when it returns
    }

    fn memory_stats(&self) -> MemoryStats {
        self.memory.stats()
    }

    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        self.memory.set_budget(bytes);
        Ok(())
    }

    fn host_claim(&self) -> Claim {
        self.memory.claim()
    }

    fn trim(&self) -> Result<()> {
        Ok(()) // dropping a buffer frees its memory at once
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        check::map(kernel, args, outs)?;
        let (op, n) = (kernel.name(), outs[0].layout.numel());
        let elements = |(arg, &dtype): (&MapArg<'_>, &DType)| match *arg {
            MapArg::View(x) => self.read(op, x),
            MapArg::Output(i) => self.read(op, outs[i].as_view()),
            MapArg::Scalar(s) => Ok(vec![converted(s, dtype); n]),
        };
        let args = args.iter().zip(kernel.args()).map(elements).collect::<Result<Vec<_>>>()?;
        let mut results = vec![Vec::with_capacity(n); outs.len()];
        for i in 0..n {
            let values: Vec<Scalar> = args.iter().map(|arg| arg[i]).collect();
            kernel.eval(&values)?.into_iter().zip(&mut results).for_each(|(value, result)| result.push(value));
        }
        outs.iter_mut().zip(results).try_for_each(|(out, result)| self.write(op, out, &result))
    }

    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
        check::reduce(op, x, axes, out)?;
        let first = match op {
            ReduceOp::Sum => Some(converted(Scalar::Int(0), out.dtype)),
            ReduceOp::Prod => Some(converted(Scalar::Int(1), out.dtype)),
            ReduceOp::Any => Some(Scalar::Bool(false)),
            ReduceOp::All => Some(Scalar::Bool(true)),
            ReduceOp::Max | ReduceOp::Min => None,
        };
        let combine = |a: Scalar, v: Scalar| match op {
            ReduceOp::Sum => add(a, v, x.dtype),
            ReduceOp::Prod => multiply(a, v, x.dtype),
            ReduceOp::Max => larger(a, v, x.dtype),
            ReduceOp::Min => smaller(a, v, x.dtype),
            ReduceOp::Any => Scalar::Bool(a.to_f64() != 0.0 || v.to_f64() != 0.0),
            ReduceOp::All => Scalar::Bool(a.to_f64() != 0.0 && v.to_f64() != 0.0),
        };
        let mut results = vec![first; out.layout.numel()];
        // The offset of every element's result: `out` is broadcast over the reduced axes.
        let places = Layout::contiguous(*out.layout.shape()).expand(*x.layout.shape())?;
        for (place, v) in places.positions().zip(self.read(op.name(), x)?) {
            results[place] = Some(results[place].map_or(v, |a| combine(a, v)));
        }
        let nothing = || Error::argument(op.name(), "the reduced axes have no elements, so there is no result");
        let results = results.into_iter().map(|r| r.ok_or_else(nothing)).collect::<Result<Vec<_>>>()?;
        self.write(op.name(), out, &results)
    }

    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        check::arg_reduce(op, x, axis, out)?;
        let values = self.read("arg_reduce", x)?;
        let first = |lane: Vec<usize>| {
            let better = |a: Scalar, b: Scalar| match op {
                ArgReduceOp::Max => compare(a, b, x.dtype).is_gt(),
                ArgReduceOp::Min => is_nan(a) && !is_nan(b) || !is_nan(b) && compare(a, b, x.dtype).is_lt(),
            };
            let best =
                (1..lane.len()).fold(0, |best, i| if better(values[lane[i]], values[lane[best]]) { i } else { best });
            Scalar::Int(best as i64)
        };
        let results: Vec<_> = lanes(x.layout.shape(), axis).into_iter().map(first).collect();
        self.write("arg_reduce", out, &results)
    }

    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        check::scan(op, x, axis, out)?;
        let combine = |a: Scalar, v: Scalar| match op {
            ScanOp::Sum => add(a, v, x.dtype),
            ScanOp::Prod => multiply(a, v, x.dtype),
            ScanOp::Max => larger(a, v, x.dtype),
            ScanOp::Min => smaller(a, v, x.dtype),
            ScanOp::LogSumExp => Scalar::Float(log_add_exp(a.to_f64(), v.to_f64())),
        };
        let mut values = self.read("scan", x)?;
        for lane in lanes(x.layout.shape(), axis) {
            for pair in lane.windows(2) {
                values[pair[1]] = combine(values[pair[0]], values[pair[1]]);
            }
        }
        self.write("scan", out, &values)
    }

    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        let check::Product { batches, m, k, n } = check::gemm(alpha, a, b, beta, c)?;
        let dtype = c.dtype;
        // alpha and beta are not rounded to half precision.
        let [alpha, beta] = [alpha, beta].map(|s| converted(s, dtype.compute()));
        let (a, b) = (self.read("gemm", a)?, self.read("gemm", b)?);
        let old = if beta.to_f64() == 0.0 { None } else { Some(self.read("gemm", c.as_view())?) };
        let zero = converted(Scalar::Int(0), dtype);
        let element = |at: usize| {
            let (batch, i, j) = (at / (m * n), at / n % m, at % n);
            let terms = (0..k).map(|l| multiply(a[(batch * m + i) * k + l], b[(batch * k + l) * n + j], dtype));
            let product = terms.reduce(|sum, term| add(sum, term, dtype));
            let product = product.map_or(zero, |sum| multiply(alpha, sum, dtype));
            old.as_ref().map_or(product, |old| add(product, multiply(beta, old[at], dtype), dtype))
        };
        let results: Vec<_> = (0..batches * m * n).map(element).collect();
        self.write("gemm", c, &results)
    }

    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
        check::unfold(window, x, pad, out)?;
        let (values, pad) = (self.read("unfold", x)?, converted(pad, x.dtype));
        let places = under_window(window, out.layout.shape(), x.layout.shape());
        let results: Vec<_> = places.map(|place| place.map_or(pad, |p| values[p])).collect();
        self.write("unfold", out, &results)
    }

    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        check::fold(window, x, out)?;
        let mut results = vec![converted(Scalar::Int(0), out.dtype); out.layout.numel()];
        for (place, v) in under_window(window, x.layout.shape(), out.layout.shape()).zip(self.read("fold", x)?) {
            if let Some(p) = place {
                results[p] = add(results[p], v, out.dtype);
            }
        }
        self.write("fold", out, &results)
    }

    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        check::gather(x, axis, index, out)?;
        let values = self.read("gather", x)?;
        let places = self.places("gather", x.layout.shape(), axis, index)?;
        let results: Vec<_> = places.into_iter().map(|p| values[p]).collect();
        self.write("gather", out, &results)
    }

    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        check::scatter(op, axis, index, src, out)?;
        let mut results = self.read("scatter", out.as_view())?;
        let places = self.places("scatter", out.layout.shape(), axis, index)?;
        for (p, v) in places.into_iter().zip(self.read("scatter", src)?) {
            results[p] = match op {
                ScatterOp::Set => v,
                ScatterOp::Add => add(results[p], v, out.dtype),
            };
        }
        self.write("scatter", out, &results)
    }

    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()> {
        check::sort(x, axis, values, indices)?;
        let all = self.read("sort", x)?;
        let (mut sorted, mut places) = (all.clone(), all.clone());
        for lane in lanes(x.layout.shape(), axis) {
            let mut order: Vec<usize> = (0..lane.len()).collect();
            order.sort_by(|&a, &b| {
                let order = compare(all[lane[a]], all[lane[b]], x.dtype);
                if descending { order.reverse() } else { order }
            });
            for (to, from) in order.into_iter().enumerate() {
                sorted[lane[to]] = all[lane[from]];
                places[lane[to]] = Scalar::Int(from as i64);
            }
        }
        self.write("sort", values, &sorted)?;
        self.write("sort", indices, &places)
    }

    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
        check::random(dist, out)?;
        let element = |i| converted(philox::element(dist, out.dtype, seed, offset, i), out.dtype);
        let values: Vec<_> = (0..out.layout.numel() as u64).map(element).collect();
        self.write("random", out, &values)
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        check::copy_strided(x, out)?;
        self.write("copy_strided", out, &self.read("copy_strided", x)?)
    }
}

// Arithmetic. Floats are computed in f64 and integers in i128; writing rounds floats and wraps integers.

fn add(a: Scalar, b: Scalar, dtype: DType) -> Scalar {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => Scalar::Float(a + b),
        _ => Scalar::Int(wide(a, dtype).wrapping_add(wide(b, dtype)) as i64),
    }
}

fn multiply(a: Scalar, b: Scalar, dtype: DType) -> Scalar {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => Scalar::Float(a * b),
        _ => Scalar::Int(wide(a, dtype).wrapping_mul(wide(b, dtype)) as i64),
    }
}

fn is_nan(a: Scalar) -> bool {
    a.to_f64().is_nan()
}

/// Numeric order. NaN is greater than every number and equals NaN.
fn compare(a: Scalar, b: Scalar, dtype: DType) -> Ordering {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())),
        _ => wide(a, dtype).cmp(&wide(b, dtype)),
    }
}

/// The maximum; NaN if either is NaN.
fn larger(a: Scalar, b: Scalar, dtype: DType) -> Scalar {
    if compare(b, a, dtype).is_gt() { b } else { a }
}

/// The minimum; NaN if either is NaN.
fn smaller(a: Scalar, b: Scalar, dtype: DType) -> Scalar {
    if is_nan(b) || !is_nan(a) && compare(b, a, dtype).is_lt() { b } else { a }
}

/// `ln(e^a + e^b)` without overflow.
fn log_add_exp(a: f64, b: f64) -> f64 {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    if high == low && high.is_infinite() { high } else { high + (low - high).exp().ln_1p() }
}

// Offsets in a contiguous tensor.

/// The offsets of the elements of every lane along an axis.
fn lanes(shape: &Shape, axis: usize) -> Vec<Vec<usize>> {
    let inner: usize = shape[axis + 1..].iter().product();
    let size = shape[axis];
    let lane = |first: usize| (0..size).map(|i| first / inner * inner * size + first % inner + i * inner).collect();
    (0..shape.numel() / size.max(1)).map(lane).collect()
}

/// For every index `[n, c, kernel.., positions..]`, the offset of its element in `[n, c, spatial..]`; `None` in the
/// padding.
fn under_window(window: &Window, columns: &Shape, image: &Shape) -> impl Iterator<Item = Option<usize>> {
    let (window, image, rank) = (*window, *image, window.rank);
    let all = Layout::contiguous(image);
    columns.indices().map(move |index| {
        let mut at = index;
        for i in 0..rank {
            at[2 + i] = window.element(i, index[2 + rank + i], index[2 + i], image[2 + i])?;
        }
        Some(all.position(&at[..2 + rank]))
    })
}
