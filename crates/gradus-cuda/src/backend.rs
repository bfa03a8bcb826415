//! The `Backend` implementation. Each operation calls the module that implements it.

use gradus_backend::{
    ArgReduceOp, Axes, Backend, BackendInfo, BackendKind, Buffer, DType, Distribution, Error, ErrorKind, Kernel,
    MapArg, MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window,
};

use crate::driver::shown;
use crate::{CudaBackend, map, transfer};

fn absent(op: &str) -> Error {
    Error::new(ErrorKind::Unsupported, op, "the CUDA backend does not have this operation yet")
}

impl Backend for CudaBackend {
    fn info(&self) -> BackendInfo {
        let summary = &self.device().summary;
        let (major, minor) = summary.driver;
        let features = vec![
            format!("capability={}", shown(self.device().capability())),
            format!("driver=CUDA {major}.{minor}"),
            format!("multiprocessors={}", self.device().multiprocessors),
        ];
        BackendInfo {
            name: self.label().to_owned(),
            kind: BackendKind::Cuda,
            hardware: summary.name.clone(),
            memory: Some(summary.memory),
            features,
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

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        map::map(self, kernel, args, outs)
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        map::copy_strided(self, x, out)
    }

    fn reduce(&self, op: ReduceOp, _: View<'_>, _: Axes, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent(op.name()))
    }

    fn arg_reduce(&self, _: ArgReduceOp, _: View<'_>, _: usize, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("arg_reduce"))
    }

    fn scan(&self, _: ScanOp, _: View<'_>, _: usize, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("scan"))
    }

    fn gemm(&self, _: Scalar, _: View<'_>, _: View<'_>, _: Scalar, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("gemm"))
    }

    fn unfold(&self, _: &Window, _: View<'_>, _: Scalar, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("unfold"))
    }

    fn fold(&self, _: &Window, _: View<'_>, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("fold"))
    }

    fn gather(&self, _: View<'_>, _: usize, _: View<'_>, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("gather"))
    }

    fn scatter(&self, _: ScatterOp, _: usize, _: View<'_>, _: View<'_>, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("scatter"))
    }

    fn sort(&self, _: View<'_>, _: usize, _: bool, _: &mut ViewMut<'_>, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("sort"))
    }

    fn random(&self, _: Distribution, _: u64, _: u64, _: &mut ViewMut<'_>) -> Result<()> {
        Err(absent("random"))
    }
}
