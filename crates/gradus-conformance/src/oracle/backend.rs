//! The required primitives of the oracle. Most of them call a function of a sibling module.

use gradus_backend::host::converted;
use gradus_backend::{
    ArgReduceOp, Axes, Backend, BackendInfo, BackendKind, Buffer, Claim, DType, Distribution, Kernel, MapArg,
    MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window, check,
};

use super::{OracleBackend, index, map, product, reduce, window};

impl Backend for OracleBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: self.name().to_owned(),
            kind: BackendKind::Other,
            hardware: "loops over scalars".to_owned(),
            memory: None,
            features: Vec::new(),
            f32_panel: None,
        }
    }

    fn name(&self) -> &str {
        "oracle"
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

    fn copy_buffer(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &mut Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.memory.copy(src, src_offset, dst, dst_offset, bytes)
    }

    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        check::scalar("fill", value, out.dtype)?;
        // Convert to the dtype once, so that the float 2^63 becomes the integer that a u64 stores.
        let value = converted(value, out.dtype);
        self.memory.write("fill", out, &vec![value; out.layout.numel()])
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
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
        Ok(())
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        map::map(self, kernel, args, outs)
    }

    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
        reduce::reduce(self, op, x, axes, out)
    }

    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        reduce::arg_reduce(self, op, x, axis, out)
    }

    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        reduce::scan(self, op, x, axis, out)
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
        reduce::sort(self, x, axis, descending, values, indices)
    }

    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
        index::random(self, dist, seed, offset, out)
    }

    fn arange(&self, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
        index::arange(self, start, step, out)
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        check::copy_strided(x, out)?;
        let values = self.memory.read("copy_strided", x)?;
        self.memory.write("copy_strided", out, &values)
    }
}
