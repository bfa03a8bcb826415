//! Elementwise kernels over many lists of operands in one launch.

use gradus_backend::{
    Backend, Buffer, DType, KernelBuilder, Layout, MapArg, MapOperands, Scalar, Shape, View, ViewMut,
};
use gradus_cuda::CudaBackend;

use crate::stand_in::{counted, opened, with_variables};

/// The operands of a list: `a` is updated, `b` is read, `c` is written.
struct List {
    buffers: [Buffer; 3],
    layout: Layout,
}

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::BF16];

impl List {
    /// A list of `n` elements, which begin at number `offset` of their buffers.
    fn new(backend: &CudaBackend, n: usize, offset: usize) -> List {
        let all = Layout::contiguous(Shape::new(&[n + offset]).expect("a shape"));
        let bytes = |dtype: DType| (n + offset) * dtype.size();
        let buffers = DTYPES.map(|dtype| {
            let mut buffer = backend.alloc(bytes(dtype)).expect("memory");
            // Small numbers in either type.
            let contents: Vec<u8> = match dtype {
                DType::F32 => (0..n + offset).flat_map(|i| (i as f32 / 8.0 - 3.0).to_ne_bytes()).collect(),
                _ => (0..n + offset).flat_map(|i| (0x3f00 + (i % 200) as u16).to_ne_bytes()).collect(),
            };
            backend.upload(&mut buffer, 0, &contents).expect("an upload");
            buffer
        });
        List { buffers, layout: all.narrow(0, offset, n).expect("a layout") }
    }

    fn operands(&mut self) -> ([MapArg<'_>; 3], [ViewMut<'_>; 2]) {
        let [a, b, c] = &mut self.buffers;
        let view = View { buffer: b, dtype: DTYPES[1], layout: &self.layout };
        let args = [MapArg::Output(0), MapArg::View(view), MapArg::Scalar(Scalar::Float(0.3))];
        let out = |buffer, dtype| ViewMut { buffer, dtype, layout: &self.layout };
        (args, [out(a, DTYPES[0]), out(c, DTYPES[2])])
    }

    fn contents(&self, backend: &CudaBackend) -> Vec<Vec<u8>> {
        let download = |buffer: &Buffer| {
            let mut bytes = vec![0; buffer.bytes()];
            backend.download(buffer, 0, &mut bytes).expect("a download");
            bytes
        };
        self.buffers.iter().map(download).collect()
    }
}

#[test]
fn many_lists_have_the_bits_of_one_after_the_other() {
    with_variables("together::many_lists_have_the_bits_of_one_after_the_other", &[], || {
        if opened().is_none() {
            return;
        }
        let backend = CudaBackend::open(0).expect("a device");
        let builder = KernelBuilder::new(&[DType::F32, DType::BF16, DType::F32]);
        let x = builder.args();
        let sum = x[0] * x[2] + x[1].cast(DType::F32) / (x[0] * x[0] + 1.0).sqrt();
        let outputs = [(sum, DType::F32), ((sum * x[0]).cast(DType::BF16), DType::BF16)];
        let kernel = builder.finish("mix", &outputs).expect("a kernel");
        // More lists than a launch has room for; some that are not aligned, and one without elements.
        let sizes = (0..150).map(|i| (i * i * 7 % 6000, if i % 11 == 5 { 3 } else { 16 * (i % 2) }));
        let make = || sizes.clone().map(|(n, offset)| List::new(&backend, n, offset)).collect::<Vec<_>>();
        let (mut apart, mut joined) = (make(), make());
        for list in &mut apart {
            let (args, mut outs) = list.operands();
            backend.map(&kernel, &args, &mut outs).expect("a launch");
        }
        let before = counted("cuLaunchKernel");
        let mut operands: Vec<_> = joined.iter_mut().map(List::operands).collect();
        let mut calls: Vec<_> = operands.iter_mut().map(|(args, outs)| MapOperands { args, outs }).collect();
        backend.map_each(&kernel, &mut calls).expect("launches");
        let launches = counted("cuLaunchKernel") - before;
        for (i, (apart, joined)) in apart.iter().zip(&joined).enumerate() {
            assert_eq!(apart.contents(&backend), joined.contents(&backend), "list {i}");
        }
        let odd = sizes.filter(|(n, offset)| *n > 0 && offset % 8 != 0).count() as u64;
        assert_eq!(launches, odd + 3, "those that are not aligned, and the others in three parts");
    });
}
