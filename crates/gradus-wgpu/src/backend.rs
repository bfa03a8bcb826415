//! The `Backend` implementation: one line an operation, to the module that has it.

use gradus_backend::{
    ArgReduceOp, Axes, Backend, BackendInfo, BackendKind, Buffer, DType, Distribution, Error, ErrorKind, Kernel, MapArg,
    MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window,
};

use crate::{WgpuBackend, map, reduce, transfer};

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
        }
    }

    fn name(&self) -> &str {
        &self.label
    }

    fn supports(&self, dtype: DType) -> bool {
        self.missing(dtype).is_none()
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.pool().alloc(bytes)
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
        self.pool().stats()
    }

    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        self.pool().set_budget(bytes);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.queue().forget_groups();
        self.pool().trim();
        Ok(())
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
    fn scan(&self, _op: ScanOp, _x: View<'_>, _axis: usize, _out: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn gemm(&self, _alpha: Scalar, _a: View<'_>, _b: View<'_>, _beta: Scalar, _c: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn unfold(&self, _window: &Window, _x: View<'_>, _pad: Scalar, _out: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn fold(&self, _window: &Window, _x: View<'_>, _out: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn gather(&self, _x: View<'_>, _axis: usize, _index: View<'_>, _out: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn scatter(&self, _op: ScatterOp, _axis: usize, _index: View<'_>, _src: View<'_>, _out: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn sort(&self, _x: View<'_>, _axis: usize, _d: bool, _v: &mut ViewMut<'_>, _i: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
    fn random(&self, _dist: Distribution, _seed: u64, _offset: u64, _out: &mut ViewMut<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "reduce", "todo"))
    }
}
