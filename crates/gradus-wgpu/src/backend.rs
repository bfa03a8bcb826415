//! The `Backend` implementation. Each operation calls the module that implements it.

use gradus_backend::{
    ArgReduceOp, AttentionParams, Axes, Backend, BackendInfo, BackendKind, Binding, Buffer, ComputeLimits,
    ComputeModule, CrossEntropyParams, DType, Distribution, Error, ErrorKind, Kernel, MapArg, MemoryStats, ModuleHash,
    Prepared, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window,
};

use crate::{WgpuBackend, avg_pool, compute, conv, index, map, max_pool, reduce, rows, transfer, window};

impl Backend for WgpuBackend {
    fn info(&self) -> BackendInfo {
        let mut features = vec![format!("interface={}", self.interface), format!("driver={}", self.driver)];
        features.extend(self.features.iter_names().map(|(name, _)| name.to_lowercase()));
        BackendInfo {
            name: self.label.clone(),
            kind: BackendKind::Wgpu,
            hardware: self.hardware.clone(),
            memory: None,
            features,
            f32_panel: None,
        }
    }

    fn name(&self) -> &str {
        &self.label
    }

    fn supports(&self, dtype: DType) -> bool {
        self.missing(dtype).is_none()
    }

    fn unsupported(&self, op: &str, dtype: DType) -> Error {
        let Some(feature) = self.missing(dtype) else {
            return Error::dtype(op, dtype, &format!("other dtypes on {}", self.label()));
        };
        let m = format!("{dtype} needs the feature {feature}, which {} ({}) lacks", self.label(), self.hardware);
        Error::new(ErrorKind::UnsupportedDType, op, m)
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.allocate(bytes)
    }

    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        transfer::upload(self, dst, offset, bytes)
    }

    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        transfer::download(self, src, offset, bytes)
    }

    fn copy_buffer(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &mut Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        transfer::copy_buffer(self, src, src_offset, dst, dst_offset, bytes)
    }

    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        map::fill(self, out, value)
    }

    fn synchronize(&self) -> Result<()> {
        self.queue().synchronize()
    }

    fn memory_stats(&self) -> MemoryStats {
        let stats = self.pool().stats();
        MemoryStats { cached: stats.cached + self.queue().kept_bytes(), ..stats }
    }

    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        self.pool().set_budget(bytes);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.queue().trim();
        self.pool().trim();
        Ok(())
    }

    fn renew(&self, buffer: &mut Buffer) -> Result<()> {
        self.pool().renew(buffer)
    }

    /// A list is one submission.
    fn run_prepared(&self, _: &mut Prepared, _: bool, calls: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.queue().list(calls)
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        map::map(self, kernel, args, outs)
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        map::copy_strided(self, x, out)
    }

    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
        reduce::reduce(self, op, x, axes, out)
    }
    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        reduce::arg_reduce(self, op, x, axis, out)
    }
    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        crate::scan::scan(self, op, x, axis, out)
    }

    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        crate::gemm::gemm(self, alpha, a, b, beta, c)
    }

    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
        window::unfold(self, window, x, pad, out)
    }

    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        window::fold(self, window, x, out)
    }

    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        index::gather(self, x, axis, index, out)
    }

    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        index::scatter(self, op, axis, index, src, out)
    }

    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()> {
        crate::sort::sort(self, x, axis, descending, values, indices)
    }

    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
        crate::random::random(self, dist, seed, offset, out)
    }

    fn arange(&self, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
        crate::arange::arange(self, start, step, out)
    }

    fn embedding(&self, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        index::embedding(self, weight, index, out)
    }

    fn embedding_backward(
        &self,
        index: View<'_>,
        g: View<'_>,
        padding_index: Option<usize>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        index::embedding_backward(self, index, g, padding_index, dw)
    }

    fn cross_entropy(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        loss: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        rows::cross_entropy(self, params, logits, target, loss, lse)
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
        rows::cross_entropy_backward(self, params, logits, target, lse, g, dlogits)
    }

    fn softmax(&self, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        rows::softmax(self, log, x, axis, out)
    }

    fn softmax_backward(&self, log: bool, y: View<'_>, g: View<'_>, axis: usize, dx: &mut ViewMut<'_>) -> Result<()> {
        rows::softmax_backward(self, log, y, g, axis, dx)
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
        rows::normalize(self, rms, axes, eps, x, scale, shift, out, mean, rstd)
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
        rows::normalize_backward(self, rms, axes, g, x, scale, mean, rstd, dx)
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
        conv::conv(self, window, groups, x, w, bias, out)
    }

    fn conv_backward_input(
        &self,
        window: &Window,
        groups: usize,
        g: View<'_>,
        w: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        conv::backward_input(self, window, groups, g, w, dx)
    }

    fn conv_backward_weight(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        g: View<'_>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        conv::backward_weight(self, window, groups, x, g, dw)
    }

    fn max_pool(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()> {
        max_pool::max_pool(self, window, x, out, indices)
    }

    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        avg_pool::avg_pool(self, window, count_include_pad, x, out)
    }

    fn avg_pool_backward(
        &self,
        window: &Window,
        count_include_pad: bool,
        g: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        avg_pool::avg_pool_backward(self, window, count_include_pad, g, dx)
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
        crate::attention::attention(self, params, q, k, v, mask, out, stats)
    }

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
        crate::attention_backward::backward(self, params, q, k, v, mask, out, stats, g, dq, dk, dv)
    }

    fn compute_limits(&self) -> Option<ComputeLimits> {
        Some(compute::limits(self))
    }

    fn check_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: usize,
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        compute::ready(self, module, bindings, constants, groups).map(drop)
    }

    fn dispatch_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: &mut [Binding<'_>],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        compute::dispatch(self, module, bindings, constants, groups)
    }

    fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        self.modules.allow(hashes);
        Ok(())
    }
}
