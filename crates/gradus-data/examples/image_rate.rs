//! How many pictures of a folder are prepared for training in a second: `image_rate FOLDER [WORKERS [EPOCHS]]`.
//! `benches/peers/image_loader.py` is the same with PyTorch.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_data::{Channels, DataLoader, ImageFolder};
use gradus_image::augment::ResizedCrop;
use gradus_tensor::{Device, Error, Result};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let help = |what: &str| Error::argument("image_rate", what.to_owned()).help("image_rate FOLDER [WORKERS [EPOCHS]]");
    let folder = args.next().ok_or_else(|| help("no folder given"))?;
    let number = |arg: Option<String>, default: usize| arg.map_or(Ok(default), |n| n.parse().map_err(|_| help(&n)));
    let (workers, epochs) = (number(args.next(), 2)?, number(args.next(), 3)?);
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let photos = ImageFolder::open(folder, Channels::Rgb, &device)?.photos();
    let loader =
        DataLoader::new(photos, &device).batch_size(32).shuffle(0).workers(workers).augment(|(x, label), g| {
            let x = x.random_resized_crop(224, 224, ResizedCrop::default(), g)?.random_flip_horizontal(0.5, g)?;
            Ok((x.normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])?, label))
        });
    let loader = loader.build()?;
    for epoch in 0..epochs {
        let start = Instant::now();
        let mut count = 0;
        for batch in loader.epoch(epoch as u64)? {
            count += batch?.0.shape()[0];
        }
        println!("epoch {epoch}: {:.0} images/s", count as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}
