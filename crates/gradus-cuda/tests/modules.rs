//! Tests of compute modules in CUDA C.

mod common;

use gradus_backend::{Backend, Binding, ComputeModule, DType, Element, ErrorKind, Layout, Shape, View, ViewMut};

const SCALED: &str = "struct Numbers { float factor; unsigned beyond; };
extern \"C\" __global__ void __launch_bounds__(64) main(Read<float> x, Write<float> y, const Numbers n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  y.set(i, x[i] * n.factor);
  y.set(i + n.beyond, 7.0f);
}";

#[test]
fn a_module_runs_within_its_bounds_and_calls_that_do_not_match_it_are_refused() {
    let Some(b) = common::opened() else { return };
    let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let layout = Layout::contiguous(Shape::new(&[100]).expect("a shape"));
    let (mut x, mut y) = (b.alloc(400).expect("a buffer"), b.alloc(400).expect("a buffer"));
    b.upload(&mut x, 0, f32::as_bytes(&values)).expect("an upload");
    b.upload(&mut y, 0, &[0; 400]).expect("an upload");
    // 128 threads for 100 elements, each of which also writes far beyond the end.
    let constants = [2f32.to_ne_bytes(), 1_000_000u32.to_ne_bytes()].concat();
    let read = View { buffer: &x, dtype: DType::F32, layout: &layout };
    {
        let write = ViewMut { buffer: &mut y, dtype: DType::F32, layout: &layout };
        let mut bindings = [Binding::Read(read), Binding::Write(write)];
        b.dispatch_compute(ComputeModule::Cuda(SCALED), &mut bindings, &constants, [2, 1, 1]).expect("a dispatch");
        let refused = |bindings: &mut [Binding<'_>], constants: &[u8]| {
            b.dispatch_compute(ComputeModule::Cuda(SCALED), bindings, constants, [2, 1, 1]).expect_err("no match")
        };
        assert!(refused(&mut bindings[..1], &constants).message().contains("parameters"));
        assert!(refused(&mut bindings, &constants[..4]).message().contains("bytes of constants"));
        bindings.swap(0, 1);
        assert!(refused(&mut bindings, &constants).message().contains("bound for"));
    }
    let mut bytes = vec![0; 400];
    b.download(&y, 0, &mut bytes).expect("the result");
    assert_eq!(f32::from_bytes(&bytes), values.iter().map(|v| v * 2.0).collect::<Vec<_>>());
    let check = |text: &str| b.check_compute(ComputeModule::Cuda(text), 0, &[], [1; 3]).expect_err("no module");
    assert_eq!(check("this is no program").kind(), &ErrorKind::InvalidArgument);
    assert!(check("__device__ int f() { return 1; }").message().contains("no kernel"));
    assert!(check("extern \"C\" __global__ void main() {}").message().contains("how many threads"));
    let wgsl = b.check_compute(ComputeModule::Wgsl(""), 0, &[], [1; 3]).expect_err("another language");
    assert_eq!(wgsl.kind(), &ErrorKind::Unsupported);
}
