//! The `Backend` implementation. Each operation calls the module that implements it.

use std::sync::Weak;

use gradus_backend::{
    ArgReduceOp, AttentionParams, Axes, Backend, BackendInfo, BackendKind, Binding, Buffer, ComputeLimits,
    ComputeModule, CrossEntropyParams, DType, Distribution, Kernel, MapArg, MapOperands, MemoryStats, ModuleHash,
    NativeFunction, Prepared, Reclaim, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window,
};

use crate::driver::shown;
use crate::{
    CudaBackend, attention, compute, conv, graph, index, map, native, pool, product, reduce, rows, transfer, window,
};

impl Backend for CudaBackend {
    fn info(&self) -> BackendInfo {
        let summary = &self.device().summary;
        let (major, minor) = summary.driver;
        let mut features = vec![
            format!("capability={}", shown(self.device().capability())),
            format!("driver=CUDA {major}.{minor}"),
            format!("multiprocessors={}", self.device().multiprocessors),
        ];
        features.extend(self.options().tf32.then(|| "tf32".to_owned()));
        let library = self.library.found().map(|library| library.version());
        features.extend(library.map(|(major, minor)| format!("cublaslt={major}.{minor}")));
        BackendInfo {
            name: self.label().to_owned(),
            kind: BackendKind::Cuda,
            hardware: summary.name.clone(),
            memory: Some(summary.memory),
            features,
            f32_panel: None,
        }
    }

    fn name(&self) -> &str {
        self.label()
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.memory().alloc(bytes)
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
        self.memory().stats()
    }

    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        self.memory().set_budget(bytes);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.memory().trim();
        Ok(())
    }

    fn renew(&self, buffer: &mut Buffer) -> Result<()> {
        self.memory().renew(buffer)
    }

    fn prepares(&self) -> bool {
        true
    }

    fn run_prepared(
        &self,
        prepared: &mut Prepared,
        is_same: bool,
        calls: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        graph::run_prepared(self.queue(), self.memory(), prepared, is_same, calls)
    }

    fn offer(&self, memory: Weak<dyn Reclaim>) {
        self.memory().register(memory);
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        map::map(self, kernel, args, outs)
    }

    fn map_each(&self, kernel: &Kernel, calls: &mut [MapOperands<'_, '_>]) -> Result<()> {
        map::each::map_each(self, kernel, calls)
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
        product::gemm(self, alpha, a, b, beta, c)
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
        pool::max_pool(self, window, x, out, indices)
    }

    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        pool::avg_pool(self, window, count_include_pad, x, out)
    }

    fn avg_pool_backward(
        &self,
        window: &Window,
        count_include_pad: bool,
        g: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        pool::avg_pool_backward(self, window, count_include_pad, g, dx)
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

    fn normalize_affine_backward(
        &self,
        g: View<'_>,
        x: View<'_>,
        mean: View<'_>,
        rstd: View<'_>,
        dscale: &mut ViewMut<'_>,
        dshift: Option<&mut ViewMut<'_>>,
    ) -> Result<()> {
        rows::normalize_affine_backward(self, g, x, mean, rstd, dscale, dshift)
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
        attention::attention(self, params, q, k, v, mask, out, stats)
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
        attention::backward(self, params, q, k, v, mask, out, stats, g, dq, dk, dv)
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

    fn compute_limits(&self) -> Option<ComputeLimits> {
        Some(compute::limits())
    }

    fn check_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: usize,
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        match module {
            ComputeModule::Native(name) => native::ready(self, name, bindings, constants, groups).map(drop),
            _ => compute::ready(self, module, bindings, constants, groups).map(drop),
        }
    }

    fn dispatch_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: &mut [Binding<'_>],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        match module {
            ComputeModule::Native(name) => native::dispatch(self, name, bindings, constants, groups),
            _ => compute::dispatch(self, module, bindings, constants, groups),
        }
    }

    fn register_native(&self, name: &str, function: NativeFunction) -> Result<()> {
        native::register(self, name, function)
    }

    fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        self.modules().allow(hashes);
        self.natives().allow(hashes);
        Ok(())
    }
}
