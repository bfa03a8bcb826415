//! The oracle passes the suite, and the suite catches faulty backends.

use gradus_backend::{
    ArgReduceOp, AttentionParams, Axes, Backend, BackendInfo, Buffer, CrossEntropyParams, DType, Distribution, Error,
    Kernel, Layout, MapArg, MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, Shape, View, ViewMut, Window,
};
use gradus_conformance::{OracleBackend, brief, only};

#[test]
fn the_oracle_passes_its_own_suite() {
    let report = brief(&OracleBackend::new());
    assert!(report.passed() && report.cases > 1000, "{report}");
}

/// A fault of a backend.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    ReduceDoesNothing,
    ReduceReadsAsContiguous,
    HalfSumsRoundAtEveryStep,
    MapDividesByZero,
    MapFlushesDenormals,
    MapReadsNewState,
    GemmReadsOldValues,
    GemmForgetsBeta,
    GemmSkipsZeros,
    FillWritesOneMore,
    ScatterOverwrites,
    GatherClampsIndices,
    SortForgetsTies,
    ScanPanics,
    FoldKeepsOldValues,
    RandomForgetsOffset,
    PoolingPadsWithZero,
    UploadForgetsOffset,
    CopyAcceptsAnyShape,
    ConvForgetsBias,
    AveragesCountPadding,
    SoftmaxBackwardIsOff,
    LogSoftmaxBackwardIsOff,
    NormalizeForgetsEps,
    NormalizeBackwardIsOff,
    AttentionForgetsMask,
    AttentionForgetsCausality,
    AttentionDividesByScale,
    CrossEntropyForgetsSmoothing,
    EmbeddingTrainsPadding,
}

/// Each fault, with an operation that exposes it.
const FAULTS: [(Fault, &str); 30] = [
    (Fault::ReduceDoesNothing, "sum/f32"),
    (Fault::ReduceReadsAsContiguous, "max/f32"),
    (Fault::HalfSumsRoundAtEveryStep, "sum/bf16"),
    (Fault::MapDividesByZero, "refusals/arithmetic"),
    (Fault::MapFlushesDenormals, "map/neg/f32"),
    (Fault::MapReadsNewState, "map/update/adam/f32"),
    (Fault::GemmReadsOldValues, "gemm/f32"),
    (Fault::GemmForgetsBeta, "gemm/f32"),
    (Fault::GemmSkipsZeros, "gemm/f32/non_finite"),
    (Fault::FillWritesOneMore, "fill/f32"),
    (Fault::ScatterOverwrites, "scatter/Add/f32"),
    (Fault::GatherClampsIndices, "refusals/gather"),
    (Fault::SortForgetsTies, "sort/down/f32"),
    (Fault::ScanPanics, "scan/Sum/f32/7"),
    (Fault::FoldKeepsOldValues, "fold/f32"),
    (Fault::RandomForgetsOffset, "random/Bernoullip=0.3/f32"),
    (Fault::PoolingPadsWithZero, "max_pool/f32"),
    (Fault::UploadForgetsOffset, "memory/bytes"),
    (Fault::CopyAcceptsAnyShape, "refusals/copy_strided"),
    (Fault::ConvForgetsBias, "conv/f16"),
    (Fault::AveragesCountPadding, "avg_pool/f32"),
    (Fault::SoftmaxBackwardIsOff, "softmax_backward/f64/3x7/0"),
    (Fault::LogSoftmaxBackwardIsOff, "log_softmax_backward/f64/3x7/0"),
    (Fault::NormalizeForgetsEps, "normalize/bf16"),
    (Fault::NormalizeBackwardIsOff, "normalize_backward/f64/mean/3x8/1/true"),
    (Fault::AttentionForgetsMask, "attention/f16/1x1x1x3x3x4x4/Float"),
    (Fault::AttentionForgetsCausality, "attention/f32/1x1x1x3x3x4x4/None"),
    (Fault::AttentionDividesByScale, "attention/f32/2x4x2x3x5x4x3"),
    (Fault::CrossEntropyForgetsSmoothing, "cross_entropy/f32/i64/4x5"),
    (Fault::EmbeddingTrainsPadding, "embedding_backward/f32"),
];

#[test]
fn broken_backends_are_caught_and_every_failure_can_be_run_again() {
    for (fault, name) in FAULTS {
        let broken = Broken { inner: OracleBackend::new(), fault };
        let report = only(&broken, name);
        let first = report.failures.first().unwrap_or_else(|| panic!("{fault:?} passes {} calls", report.cases));
        let again = only(&broken, &first.name);
        assert!(again.cases > 0 && !again.passed(), "{fault:?}: {} does not fail again", first.name);
        assert!(report.to_string().contains("reproduce: gradus_conformance::only"), "{report}");
    }
}

/// The oracle with one fault.
#[derive(Debug)]
struct Broken {
    inner: OracleBackend,
    fault: Fault,
}

impl Broken {
    fn values(&self, x: View<'_>) -> Result<Vec<f32>> {
        let mut bytes = vec![0; x.buffer.bytes()];
        self.inner.download(x.buffer, 0, &mut bytes)?;
        let all: Vec<f32> = gradus_backend::Element::from_bytes(&bytes);
        Ok(x.layout.positions().map(|p| all[p]).collect())
    }

    fn store(&self, out: &mut ViewMut<'_>, values: &[f32]) -> Result<()> {
        for (p, v) in out.layout.positions().zip(values) {
            self.inner.upload(out.buffer, p * 4, &v.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Multiplies by little more than 1.
    fn put_off(&self, out: &mut ViewMut<'_>) -> Result<()> {
        let off = Kernel::build("off", &[out.dtype], |v| vec![v[0] * (1.0 + 1e-6)])?;
        let layout = out.layout;
        self.inner.map(&off, &[MapArg::Output(0)], &mut [out.with(layout)])
    }
}

impl Backend for Broken {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn supports(&self, dtype: DType) -> bool {
        self.inner.supports(dtype)
    }
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.inner.alloc(bytes)
    }
    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let offset = if self.fault == Fault::UploadForgetsOffset { 0 } else { offset };
        self.inner.upload(dst, offset, bytes)
    }
    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.inner.download(src, offset, bytes)
    }
    fn copy_buffer(&self, src: &Buffer, from: usize, dst: &mut Buffer, to: usize, bytes: usize) -> Result<()> {
        self.inner.copy_buffer(src, from, dst, to, bytes)
    }
    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        let span = out.layout.span();
        if self.fault == Fault::FillWritesOneMore && (span.end + 1) * out.dtype.size() <= out.buffer.bytes() {
            let layout = Layout::from_parts(Shape::new(&[1])?, &[1], span.end, span.end + 1)?;
            self.inner.fill(&mut out.with(&layout), value)?;
        }
        self.inner.fill(out, value)
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
    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        if self.fault == Fault::MapReadsNewState && kernel.name() == "update" {
            // Applies the step once in advance, so that the next call reads the new optimiser state.
            self.inner.map(kernel, args, outs)?;
        }
        match (self.inner.map(kernel, args, outs), self.fault) {
            (Err(_), Fault::MapDividesByZero) => Ok(()),
            (Ok(()), Fault::MapFlushesDenormals) if outs[0].dtype == DType::F32 => {
                let values = self.values(outs[0].as_view())?;
                let flushed: Vec<f32> = values.iter().map(|v| if v.is_subnormal() { 0.0 } else { *v }).collect();
                self.store(&mut outs[0], &flushed)
            }
            (result, _) => result,
        }
    }

    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
        match self.fault {
            Fault::ReduceDoesNothing => Ok(()),
            Fault::ReduceReadsAsContiguous => {
                let span = x.layout.span();
                let layout = Layout::contiguous(*x.layout.shape());
                let fits = layout.numel() * x.dtype.size() <= x.buffer.bytes() && span.start == 0;
                self.inner.reduce(op, if fits { x.with(&layout) } else { x }, axes, out)
            }
            Fault::HalfSumsRoundAtEveryStep if out.dtype == DType::BF16 && x.layout.rank() == 1 => {
                // Accumulates into the output itself, one element after another.
                self.inner.fill(out, Scalar::Int(0))?;
                for i in 0..x.layout.numel() {
                    let add = Kernel::build("add", &[DType::BF16; 2], |v| vec![v[0] + v[1]])?;
                    let layout =
                        out.layout.reshape(Shape::new(&[1])?).ok_or_else(|| Error::argument("sum", "shape"))?;
                    let row = x.layout.narrow(0, i, 1)?;
                    self.inner.map(&add, &[MapArg::Output(0), MapArg::View(x.with(&row))], &mut [out.with(&layout)])?;
                }
                Ok(())
            }
            _ => self.inner.reduce(op, x, axes, out),
        }
    }

    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        self.inner.arg_reduce(op, x, axis, out)
    }

    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        assert!(self.fault != Fault::ScanPanics, "out of luck");
        self.inner.scan(op, x, axis, out)
    }

    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        match self.fault {
            Fault::GemmForgetsBeta => self.inner.gemm(alpha, a, b, Scalar::Int(0), c),
            Fault::GemmReadsOldValues => {
                let beta = if beta.to_f64() == 0.0 { Scalar::Float(1e-300) } else { beta };
                self.inner.gemm(alpha, a, b, beta, c)
            }
            Fault::GemmSkipsZeros if c.dtype == DType::F32 && c.layout.dims() == [3, 3] => {
                let (x, y) = (self.values(a)?, self.values(b)?);
                let mut z = [0f32; 9];
                for i in 0..9 {
                    for k in (0..4).filter(|k| x[i / 3 * 4 + k] != 0.0) {
                        z[i] += x[i / 3 * 4 + k] * y[k * 3 + i % 3];
                    }
                }
                self.store(c, &z)
            }
            _ => self.inner.gemm(alpha, a, b, beta, c),
        }
    }

    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
        self.inner.unfold(window, x, pad, out)
    }

    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        if self.fault != Fault::FoldKeepsOldValues || out.dtype != DType::F32 {
            return self.inner.fold(window, x, out);
        }
        let old = self.values(out.as_view())?;
        self.inner.fold(window, x, out)?;
        let sums: Vec<f32> = self.values(out.as_view())?.iter().zip(old).map(|(new, old)| new + old).collect();
        self.store(out, &sums)
    }

    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        match (self.inner.gather(x, axis, index, out), self.fault) {
            (Err(_), Fault::GatherClampsIndices) => Ok(()),
            (result, _) => result,
        }
    }

    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        let op = if self.fault == Fault::ScatterOverwrites { ScatterOp::Set } else { op };
        self.inner.scatter(op, axis, index, src, out)
    }

    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()> {
        if self.fault == Fault::SortForgetsTies && descending {
            // Sorts in ascending order and writes the result backwards, so that equal elements come out in the wrong
            // order.
            let (v, i) = (values.layout.flip(axis), indices.layout.flip(axis));
            return self.inner.sort(x, axis, false, &mut values.with(&v), &mut indices.with(&i));
        }
        self.inner.sort(x, axis, descending, values, indices)
    }

    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
        let offset = if self.fault == Fault::RandomForgetsOffset { 0 } else { offset };
        self.inner.random(dist, seed, offset, out)
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        match (self.inner.copy_strided(x, out), self.fault) {
            (Err(_), Fault::CopyAcceptsAnyShape) => Ok(()),
            (result, _) => result,
        }
    }

    fn max_pool(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()> {
        gradus_backend::composite::pool::max_forward(self, window, x, out, indices)?;
        if self.fault == Fault::PoolingPadsWithZero && out.dtype == DType::F32 && window.pad_before != [0; 3] {
            let values = self.values(out.as_view())?;
            let padded: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
            self.store(out, &padded)?;
        }
        Ok(())
    }

    fn conv(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        w: View<'_>,
        bias: Option<View<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        let bias = bias.filter(|_| self.fault != Fault::ConvForgetsBias);
        self.inner.conv(window, groups, x, w, bias, out)
    }

    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        let counts = count_include_pad || self.fault == Fault::AveragesCountPadding;
        self.inner.avg_pool(window, counts, x, out)
    }

    fn softmax_backward(&self, log: bool, y: View<'_>, g: View<'_>, axis: usize, dx: &mut ViewMut<'_>) -> Result<()> {
        self.inner.softmax_backward(log, y, g, axis, dx)?;
        let fault = if log { Fault::LogSoftmaxBackwardIsOff } else { Fault::SoftmaxBackwardIsOff };
        if self.fault == fault { self.put_off(dx) } else { Ok(()) }
    }

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
        let eps = if self.fault == Fault::NormalizeForgetsEps { 0.0 } else { eps };
        self.inner.normalize(rms, axes, eps, x, scale, shift, out, mean, rstd)
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
        self.inner.normalize_backward(rms, axes, g, x, scale, mean, rstd, dx)?;
        if self.fault == Fault::NormalizeBackwardIsOff { self.put_off(dx) } else { Ok(()) }
    }

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
        let mut params = *params;
        params.causal &= self.fault != Fault::AttentionForgetsCausality;
        params.scale = if self.fault == Fault::AttentionDividesByScale { 1.0 / params.scale } else { params.scale };
        let mask = mask.filter(|_| self.fault != Fault::AttentionForgetsMask);
        self.inner.attention(&params, q, k, v, mask, out, stats)
    }

    fn cross_entropy(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        loss: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        let mut params = *params;
        if self.fault == Fault::CrossEntropyForgetsSmoothing {
            params.label_smoothing = 0.0;
        }
        self.inner.cross_entropy(&params, logits, target, loss, lse)
    }

    fn embedding_backward(
        &self,
        index: View<'_>,
        g: View<'_>,
        padding_index: Option<usize>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        let padding_index = padding_index.filter(|_| self.fault != Fault::EmbeddingTrainsPadding);
        self.inner.embedding_backward(index, g, padding_index, dw)
    }
}

#[test]
fn a_round_of_a_deep_run_is_found_by_its_name() {
    let backend = OracleBackend::new();
    let all = gradus_conformance::deep(&backend, 7, 6);
    let rounds: usize = (0..6).map(|r| only(&backend, &format!("deep/7/{r}/")).cases).sum();
    assert!(all.passed() && all.cases > 0, "{all}");
    assert_eq!(rounds, all.cases);
}

#[test]
fn each_operation_has_as_many_random_cases_as_asked() {
    let backend = OracleBackend::new();
    let each = |part, operation: &str| gradus_conformance::each(&backend, 3, part, 20, operation);
    let all = each([0, 1], "");
    assert!(all.passed(), "{all}");
    // As many as there are: the names of operations in a complete run, without what is no operation.
    let suite = brief(&backend).operations;
    let names = suite.keys().filter(|name| !["memory", "adjoint", "refusals"].contains(&name.as_str()));
    assert_eq!(names.collect::<Vec<_>>(), all.operations.keys().collect::<Vec<_>>());
    assert!(all.operations.values().all(|&count| count >= 20), "{:?}", all.operations);
    assert_eq!(all.operations.values().sum::<usize>(), all.cases);
    let parts = [0, 1].map(|part| each([part, 2], "conv"));
    assert!(parts.iter().all(|report| report.passed() && report.operations.len() == 3), "{parts:?}");
    assert!(!each([0, 1], "convolution").passed());
}
