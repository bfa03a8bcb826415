//! The implementation of `Backend`: each method calls the module that implements the operation.

use gradus_backend::{
    ArgReduceOp, AttentionParams, Axes, Backend, BackendInfo, Binding, Buffer, Claim, ComputeLimits, ComputeModule,
    CrossEntropyParams, DType, Distribution, Kernel, MapArg, MemoryStats, ModuleHash, NativeFunction, Reader, ReduceOp,
    Result, Scalar, ScanOp, ScatterOp, Shape, View, ViewMut, Window,
};

use crate::{CpuBackend, compute, conv, copy, info, map, reduce};

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        info::info(self)
    }

    fn name(&self) -> &str {
        "cpu"
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.pool().alloc(bytes)
    }

    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        copy::upload(self, dst, offset, bytes)
    }

    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        copy::download(self, src, offset, bytes)
    }

    fn copy_buffer(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &mut Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        copy::copy_buffer(self, src, src_offset, dst, dst_offset, bytes)
    }

    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        copy::fill(self, out, value)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn memory_stats(&self) -> MemoryStats {
        self.pool().stats()
    }

    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        self.pool().set_budget(bytes);
        Ok(())
    }

    fn host_claim(&self) -> Claim {
        Claim::new(Some(self.pool().clone()))
    }

    fn trim(&self) -> Result<()> {
        self.pool().trim();
        Ok(())
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        map::map(self, kernel, args, outs)
    }

    fn map_into(
        &self,
        kernel: &Kernel,
        args: &[MapArg<'_>],
        shape: Shape,
        reader: Reader,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        crate::joined::map_into(self, kernel, args, shape, reader, out)
    }

    fn joins_load(&self, reader: Reader, shape: &Shape, dtype: DType) -> bool {
        crate::joined::joins_load(reader, shape, dtype)
    }

    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
        self.finished("reduce", reduce::reduce(self, op, x, axes, out))
    }

    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        reduce::arg_reduce(self, op, x, axis, out)
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        copy::copy_strided(self, x, out)
    }

    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        crate::scan::scan(self, op, x, axis, out)
    }

    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        self.finished("gemm", crate::gemm::gemm(self, alpha, a, b, beta, c))
    }

    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
        conv::unfold(self, window, x, pad, out)
    }

    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        self.finished("fold", conv::fold(self, window, x, out))
    }

    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        crate::index::gather(self, x, axis, index, out)
    }

    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        crate::index::scatter(self, op, axis, index, src, out)
    }

    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.finished("sort", crate::sort::sort(self, x, axis, descending, values, indices))
    }

    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
        self.finished("random", crate::random::random(self, dist, seed, offset, out))
    }

    fn gemm_i32(&self, a: View<'_>, b: View<'_>, c: &mut ViewMut<'_>) -> Result<()> {
        self.finished("gemm_i32", crate::gemm::gemm_i32(self, a, b, c))
    }

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
        self.finished("linear_i8", crate::gemm::linear_i8(self, add, x, w, sums, scale, bias, out))
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
        self.finished("conv", conv::conv(self, window, groups, x, w, bias, out))
    }

    fn conv_backward_input(
        &self,
        window: &Window,
        groups: usize,
        g: View<'_>,
        w: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.finished("conv_backward_input", conv::backward_input(self, window, groups, g, w, dx))
    }

    fn conv_backward_weight(
        &self,
        window: &Window,
        groups: usize,
        x: View<'_>,
        g: View<'_>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.finished("conv_backward_weight", conv::backward_weight(self, window, groups, x, g, dw))
    }

    fn embedding(&self, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        crate::index::embedding(self, weight, index, out)
    }

    fn embedding_backward(
        &self,
        index: View<'_>,
        g: View<'_>,
        padding_index: Option<usize>,
        dw: &mut ViewMut<'_>,
    ) -> Result<()> {
        crate::index::embedding_backward(self, index, g, padding_index, dw)
    }

    fn softmax(&self, log: bool, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        self.finished("softmax", crate::softmax::softmax(self, log, x, axis, out))
    }

    fn softmax_backward(&self, log: bool, y: View<'_>, g: View<'_>, axis: usize, dx: &mut ViewMut<'_>) -> Result<()> {
        self.finished("softmax_backward", crate::softmax::softmax_backward(self, log, y, g, axis, dx))
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
        self.finished("attention", crate::attention::attention(self, params, q, k, v, mask, out, stats))
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
        self.finished(
            "attention_backward",
            crate::attention::attention_backward(self, params, q, k, v, mask, out, stats, g, dq, dk, dv),
        )
    }

    fn cross_entropy(
        &self,
        params: &CrossEntropyParams,
        logits: View<'_>,
        target: View<'_>,
        loss: &mut ViewMut<'_>,
        lse: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.finished("cross_entropy", crate::cross_entropy::cross_entropy(self, params, logits, target, loss, lse))
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
        self.finished(
            "cross_entropy_backward",
            crate::cross_entropy::cross_entropy_backward(self, params, logits, target, lse, g, dlogits),
        )
    }

    fn max_pool(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()> {
        self.finished("max_pool", crate::pooling::max_pool(self, window, x, out, indices))
    }

    fn avg_pool(&self, window: &Window, count_include_pad: bool, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        self.finished("avg_pool", crate::pooling::avg_pool(self, window, count_include_pad, x, out))
    }

    fn avg_pool_backward(
        &self,
        window: &Window,
        count_include_pad: bool,
        g: View<'_>,
        dx: &mut ViewMut<'_>,
    ) -> Result<()> {
        self.finished("avg_pool_backward", crate::pooling::avg_pool_backward(self, window, count_include_pad, g, dx))
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
        self.finished("normalize", crate::norm::normalize(self, rms, axes, eps, x, scale, shift, out, mean, rstd))
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
        self.finished(
            "normalize_backward",
            crate::norm::normalize_backward(self, rms, axes, g, x, scale, mean, rstd, dx),
        )
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
        self.finished(
            "normalize_affine_backward",
            crate::norm::normalize_affine_backward(self, g, x, mean, rstd, dscale, dshift),
        )
    }

    fn compute_limits(&self) -> Option<ComputeLimits> {
        Some(compute::LIMITS)
    }

    fn check_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: usize,
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        compute::check(self, module, bindings, constants, groups)
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

    fn register_native(&self, name: &str, function: NativeFunction) -> Result<()> {
        compute::register(self, name, function)
    }

    fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        self.natives().allow(hashes);
        Ok(())
    }
}
