//! Batch normalisation over all ranks beside that of one process.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_dist::{DataParallel, Options, SyncBatchNorm, threads};
use gradus_nn::{BatchNorm2d, BatchNormConfig, Forward, Init, Module};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor};

const ROWS: usize = 10;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn near(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    let off = a.sub(b).unwrap().abs().unwrap().max_all().unwrap().item().unwrap();
    assert!(off < 1e-9, "{off}");
}

#[test]
fn ranks_normalise_with_the_statistics_of_the_whole_batch() {
    for (ranks, momentum) in [(1, None), (2, Some(0.1)), (4, None), (4, Some(0.3))] {
        let config = BatchNormConfig { momentum, ..BatchNormConfig::default() };
        threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let mut rng = Generator::new(5);
            let x = Tensor::randn([ROWS, 3, 4, 2], DType::F64, &device, &mut rng)?;
            let target = Tensor::randn([ROWS, 3, 4, 2], DType::F64, &device, &mut rng)?;
            let mut init = Init::new(DType::F64, &device, &mut rng);
            let whole = BatchNorm2d::new(3, config, &mut init)?;
            let mut shared = SyncBatchNorm::new(3, config, comm, &mut init)?;
            // Ranks have 2 or 3 rows of 10.
            let parallel = DataParallel::with_shards(comm.clone(), ranks)?;
            for _ in 0..3 {
                let loss = whole.forward(&x)?.sub(&target)?.pow(4.0)?.mean_all()?;
                let theirs = loss.backward()?;
                let (value, ours) = parallel.backward(&shared, ROWS, |rows| {
                    let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
                    shared.forward(&part(&x)?)?.sub(&part(&target)?)?.pow(4.0)?.mean_all()
                })?;
                assert!((value.item()? - loss.item()?).abs() < 1e-5 * loss.item()?);
                for ((name, a), (_, b)) in whole.named_parameters().iter().zip(shared.named_parameters()) {
                    let (a, b) = (theirs.get(a.tensor()).unwrap(), ours.get(b.tensor()).unwrap());
                    assert!(a.abs()?.max_all()?.item()? > 1e-3, "{name}");
                    near(a, b);
                }
            }
            let (whole_state, state) = (whole.state_dict()?, shared.state_dict()?);
            let names = |s: &gradus_nn::StateDict| s.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
            assert_eq!(names(&whole_state), names(&state));
            for (name, tensor) in whole_state.iter() {
                near(&tensor.to_dtype(DType::F64)?, &state.get(name).unwrap().to_dtype(DType::F64)?);
            }
            let mut whole = whole;
            whole.eval();
            shared.eval();
            near(&whole.forward(&x)?, &shared.forward(&x)?);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_gradient_of_the_input_flows_between_ranks() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(6);
        let x = Tensor::randn([6, 2], DType::F64, &device, &mut rng)?.with_grad()?;
        let mut init = Init::new(DType::F64, &device, &mut rng);
        let whole = BatchNorm2d::new(2, BatchNormConfig::default(), &mut init)?;
        let shared = SyncBatchNorm::new(2, BatchNormConfig::default(), comm, &mut init)?;
        let mine = x.detach().narrow(0, 3 * comm.rank(), 3)?.copy()?.with_grad()?;
        let theirs = whole.forward(&x)?.pow(3.0)?.sum_all()?.backward()?;
        let ours = shared.forward(&mine)?.pow(3.0)?.sum_all()?.backward()?;
        near(&theirs.get(&x).unwrap().narrow(0, 3 * comm.rank(), 3)?, ours.get(&mine).unwrap());
        Ok(())
    })
    .unwrap();
}

#[test]
fn inputs_without_the_channels_or_a_variance_are_refused_on_all_ranks() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(6);
        let layer =
            SyncBatchNorm::new(2, BatchNormConfig::default(), comm, &mut Init::new(DType::F32, &device, &mut rng))?;
        let wrong = layer.forward(&Tensor::zeros([4, 3], DType::F32, &device)?).unwrap_err();
        assert_eq!(*wrong.kind(), ErrorKind::ShapeMismatch);
        let rows = usize::from(comm.rank() == 0);
        let few = layer.forward(&Tensor::zeros([rows, 2], DType::F32, &device)?).unwrap_err();
        assert!(few.to_string().contains("1 element a channel on all ranks has no variance"), "{few}");
        Ok(())
    })
    .unwrap();
}
