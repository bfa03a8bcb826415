//! Divided layers beside whole ones.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_dist::{ColumnLinear, Options, RowLinear, threads};
use gradus_nn::{Forward, Init, Linear, Module};
use gradus_tensor::{BackwardOptions, DType, Device, ErrorKind, Generator, Tensor, grad};

#[test]
fn a_divided_pair_of_layers_is_the_whole_one_to_second_order() {
    for ranks in [1, 2, 4] {
        threads(ranks, Options::default(), |comm| {
            let device = Device::from_backend(Arc::new(CpuBackend::new()?));
            let mut rng = Generator::new(5);
            let x = Tensor::randn([3, 6], DType::F64, &device, &mut rng)?.with_grad()?;
            let mut init = Init::new(DType::F64, &device, &mut rng);
            let (first, second) = (Linear::new(6, 8, &mut init)?, Linear::new(8, 2, &mut init)?);
            let (column, row) = (ColumnLinear::of(&first, comm)?, RowLinear::of(&second, comm)?);
            let loss = |y: Tensor| y.pow(3.0)?.sum_all();
            let whole = loss(second.forward(&first.forward(&x)?.tanh()?)?)?;
            let divided = loss(row.forward(&column.forward(&x)?.tanh()?)?)?;
            let near = |a: &Tensor, b: &Tensor| {
                assert_eq!(a.shape(), b.shape());
                assert!(a.sub(b).unwrap().abs().unwrap().max_all().unwrap().item().unwrap() < 1e-9);
            };
            near(&whole, &divided);
            let of =
                |loss: &Tensor, leaves: &[&Tensor]| grad(&[loss], leaves, None, BackwardOptions::new().create_graph());
            let theirs = of(&whole, &[&x, &first.weight, &second.weight, second.bias.as_ref().unwrap()])?;
            let ours =
                of(&divided, &[&x, &column.linear.weight, &row.linear.weight, row.linear.bias.as_ref().unwrap()])?;
            let part = |t: &Tensor, axis: isize| {
                let each = t.size(axis)? / ranks;
                t.narrow(axis, comm.rank() * each, each)
            };
            let [whole_x, first_w, second_w, bias] = &theirs[..] else { unreachable!("four leaves") };
            let whole_x = whole_x.as_ref().unwrap();
            near(whole_x, ours[0].as_ref().unwrap());
            near(&part(first_w.as_ref().unwrap(), 0)?, ours[1].as_ref().unwrap());
            near(&part(second_w.as_ref().unwrap(), 1)?, ours[2].as_ref().unwrap());
            near(bias.as_ref().unwrap(), ours[3].as_ref().unwrap());
            // The gradient of the squared length of the first gradient.
            let second_order = |g: &Tensor| grad(&[&g.square()?.sum_all()?], &[&x], None, BackwardOptions::new());
            let (a, b) = (second_order(whole_x)?, second_order(ours[0].as_ref().unwrap())?);
            near(a[0].as_ref().unwrap(), b[0].as_ref().unwrap());
            assert_eq!(column.num_parameters(), (6 * 8 + 8) / ranks);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn features_that_do_not_divide_are_refused() {
    threads(3, Options::default(), |comm| {
        let device = Device::from_backend(Arc::new(CpuBackend::new()?));
        let layer = Linear::new(4, 4, &mut Init::new(DType::F32, &device, &mut Generator::new(5)))?;
        assert_eq!(ColumnLinear::of(&layer, comm).err().unwrap().kind(), &ErrorKind::ShapeMismatch);
        assert_eq!(RowLinear::of(&layer, comm).err().unwrap().kind(), &ErrorKind::ShapeMismatch);
        Ok(())
    })
    .unwrap();
}
