//! A custom operation that runs custom compute modules: `y = k * x³` and its gradient.
//!
//! On the CPU the modules are Rust functions on the host, and on a GPU they are WGSL. The rest of the operation is the
//! same: `ScaledCube` does not know which form its modules have.
//!
//! Run it with `cargo run --release -p gradus --example compute_op`. With `--features wgpu` it also runs on the first
//! GPU.

use std::sync::Arc;

use gradus::backend::Element;
use gradus::backend::compute::NativeCall;
use gradus::prelude::*;
use gradus::{Bound, ComputeModule, CustomOp, apply_custom, autograd::Context};

/// `k * x³` of an f32 tensor.
pub(crate) struct ScaledCube {
    /// The factor, passed as a push constant.
    pub(crate) k: f32,
    /// `(x, y)`: writes `k * x³` to `y`.
    pub(crate) forward: ComputeModule<'static>,
    /// `(x, g, dx)`: writes `3 * k * x² * g` to `dx`.
    pub(crate) backward: ComputeModule<'static>,
}

/// The number of elements that one work-group of a GPU module computes. The groups form a grid with rows of [`ROW`]
/// groups: the group at `(i, j)` has the number `i + ROW * j`. Groups past the last element do nothing.
pub(crate) const GROUP: usize = 64;

/// The number of work-groups along one axis. Every device allows at least this many.
pub(crate) const ROW: usize = 65_535;

impl ScaledCube {
    /// Runs a module over as many elements as `x` has, and returns the tensor that it wrote.
    fn run(&self, module: ComputeModule<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let y = Tensor::zeros(x.shape(), x.dtype(), x.device())?;
        let rows = x.numel().div_ceil(GROUP).div_ceil(ROW).max(1);
        let rows = u32::try_from(rows).map_err(|_| Error::argument("scaled_cube", "the tensor is too large"))?;
        let groups = [if rows == 1 { x.numel().div_ceil(GROUP).max(1) } else { ROW } as u32, rows, 1];
        let bindings: Vec<Bound<'_>> = inputs.iter().map(|&t| Bound::Read(t)).chain([Bound::Write(&y)]).collect();
        x.device().dispatch_compute(module, &bindings, f32::as_bytes(&[self.k]), groups)?;
        Ok(y)
    }
}

impl CustomOp for ScaledCube {
    fn name(&self) -> &str {
        "scaled_cube"
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.run(self.forward, &[&x[0]])?])
    }

    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(self.run(self.backward, &[&ctx.input(0)?, g])?)])
    }

    /// The writes of the module are not recorded. A second gradient would need another module, or tensor operations.
    fn once_differentiable(&self) -> bool {
        true
    }
}

fn cube(call: &mut NativeCall<'_>) -> Result<()> {
    let [k] = call.constants::<f32, 1>()?;
    let [x, y] = call.operands()?;
    for (y, x) in y.write::<f32>()?.iter_mut().zip(x.read::<f32>()?) {
        *y = k * x * x * x;
    }
    Ok(())
}

fn cube_backward(call: &mut NativeCall<'_>) -> Result<()> {
    let [k] = call.constants::<f32, 1>()?;
    let [x, g, dx] = call.operands()?;
    for ((dx, x), g) in dx.write::<f32>()?.iter_mut().zip(x.read::<f32>()?).zip(g.read::<f32>()?) {
        *dx = 3.0 * k * x * x * g;
    }
    Ok(())
}

/// Registers the host functions with `device`, and returns the operation that uses them. Errors if they are already
/// registered.
pub(crate) fn native(device: &Device, k: f32) -> Result<ScaledCube> {
    device.register_native("scaled_cube", cube)?;
    device.register_native("scaled_cube.backward", cube_backward)?;
    let (forward, backward) = (ComputeModule::Native("scaled_cube"), ComputeModule::Native("scaled_cube.backward"));
    Ok(ScaledCube { k, forward, backward })
}

/// The operation in WGSL, for a device that accepts WGSL.
pub(crate) fn wgsl(k: f32) -> ScaledCube {
    let forward = "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        var<immediate> k: f32;

        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) at: vec3<u32>) {
            let i = at.y * 65535u * 64u + at.x;
            if i < arrayLength(&x) {
                y[i] = k * x[i] * x[i] * x[i];
            }
        }";
    let backward = "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read> g: array<f32>;
        @group(0) @binding(2) var<storage, read_write> dx: array<f32>;
        var<immediate> k: f32;

        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) at: vec3<u32>) {
            let i = at.y * 65535u * 64u + at.x;
            if i < arrayLength(&x) {
                dx[i] = 3.0 * k * x[i] * x[i] * g[i];
            }
        }";
    ScaledCube { k, forward: ComputeModule::Wgsl(forward), backward: ComputeModule::Wgsl(backward) }
}

/// The measurements of [`run`].
#[derive(Debug)]
pub(crate) struct Found {
    /// The largest difference between the operation and `x³ * k` computed by tensor operations.
    pub(crate) value: f64,
    /// The largest difference between the two gradients.
    pub(crate) gradient: f64,
    /// The largest element of the gradient.
    pub(crate) largest: f64,
}

/// Compares the operation with equivalent tensor operations.
pub(crate) fn run(device: &Device, op: ScaledCube) -> Result<Found> {
    let (k, op) = (op.k, Arc::new(op));
    let x = Tensor::randn([7, 50], DType::F32, device, &mut Generator::new(2))?.t()?.with_grad()?;
    let weight = Tensor::randn([50, 7], DType::F32, device, &mut Generator::new(3))?;
    let gradient = |y: &Tensor| -> Result<Tensor> {
        let gradients = (y * &weight)?.sum_all()?.backward()?;
        gradients.get(&x).cloned().ok_or_else(|| Error::new(ErrorKind::Autograd, "compute_op", "there is no gradient"))
    };
    let ours = apply_custom(&op, &[&x])?.swap_remove(0);
    let theirs = ((&x * &x * &x)? * k)?;
    let (dx, want) = (gradient(&ours)?, gradient(&theirs)?);
    let apart = |a: &Tensor, b: &Tensor| (a.detach() - b.detach())?.abs()?.max_all()?.item();
    Ok(Found { value: apart(&ours, &theirs)?, gradient: apart(&dx, &want)?, largest: want.abs()?.max_all()?.item()? })
}

fn main() -> Result<()> {
    let device = Device::cpu()?;
    tell(&device, native(&device, 0.5)?)?;
    // Without the feature, or without an adapter, there is no GPU to run on.
    Device::open("wgpu").map_or(Ok(()), |gpu| tell(&gpu, wgsl(0.5)))
}

#[allow(clippy::print_stdout)]
fn tell(device: &Device, op: ScaledCube) -> Result<()> {
    let Found { value, gradient, largest } = run(device, op)?;
    println!(
        "{device}: differs from tensor operations by {value:e}, its gradient by {gradient:e} of up to {largest:.1}"
    );
    Ok(())
}
