//! [`Photo`]: a picture file on its way into a network, without a tensor for each step.

use std::path::Path;

use gradus_tensor::backend::HostVec;
use gradus_tensor::{Device, Error, Generator, Result, Tensor};

use crate::LoadOptions;
use crate::augment::{RandomErasing, ResizedCrop, probability, random_rectangle, random_section, uniform};
use crate::file::{Sized, head, read_whole, section, whole};
use crate::geometry::crop_error;
use crate::raster::{Raster, Section};

const OP: &str = "photo";

/// The channels to which images are converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// 1 channel. Colours become their [luma](crate::grayscale), and transparency is dropped.
    Grey,
    /// 3 channels. A grey image has the same value in all of them, and transparency is dropped.
    Rgb,
    /// 4 channels. An image without transparency is opaque.
    Rgba,
    /// The channels of the file: 1, 3 or 4. Images with different numbers of channels cannot be in one batch.
    OfFile,
}

/// A picture of a file with 8 bits per channel, for data loaders that read many pictures: it is cut, resized, mirrored and
/// normalised in one pass over its pixels, and of most JPEG files only the pixels that are cut out are decoded. Each method
/// does what the function of the same name does to a tensor.
///
/// ```
/// # use gradus_image::{SaveOptions, encode, Format}; use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let file = encode(&Tensor::full([3, 60, 80], 255, DType::U8, &device)?, Format::Jpeg, 90)?;
/// use gradus_image::{Channels, Photo};
/// use gradus_image::augment::ResizedCrop;
/// let mut g = Generator::new(0);
/// let photo = Photo::from_bytes(file, "white.jpg", Channels::Rgb)?
///     .random_resized_crop(32, 32, ResizedCrop::default(), &mut g)?
///     .random_flip_horizontal(0.5, &mut g)?
///     .normalize(&[0.5; 3], &[0.25; 3])?;
/// let x = photo.to_tensor(&device)?; // f32 [3, 32, 32]
/// assert_eq!(x.to_vec::<f32>()?[0], 2.0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Photo {
    name: String,
    source: Source,
    section: Section,
    channels: Channels,
    /// The channels of the file: 1, 3 or 4.
    of_file: usize,
    mirrored: bool,
    erased: Option<(Section, f32)>,
    /// What is subtracted from the values 0 to 1 of each channel, and by what the difference is divided.
    mean: [f32; 4],
    std: [f32; 4],
    max_memory: usize,
}

#[derive(Debug, Clone)]
enum Source {
    /// A file of which only the section is going to be decoded.
    File(Vec<u8>),
    Pixels(Raster),
}

impl Photo {
    /// Reads a PNG or JPEG file, in at most the memory of [`LoadOptions::default`].
    ///
    /// # Errors
    /// Those of [`load`](crate::load). If the file is a JPEG that is damaged after its head, the method that needs its
    /// pixels returns the error.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, channels: Channels) -> Result<Photo> {
        Photo::open_within(path, channels, LoadOptions::default().max_memory)
    }

    /// [`open`](Photo::open) with another limit of the memory: see [`LoadOptions::max_memory`].
    ///
    /// # Errors
    /// Those of [`open`](Photo::open).
    #[track_caller]
    pub fn open_within(path: impl AsRef<Path>, channels: Channels, max_memory: usize) -> Result<Photo> {
        let path = path.as_ref();
        Photo::new(read_whole(path, max_memory)?, path.display().to_string(), channels, max_memory)
    }

    /// The picture of a file with these bytes, which errors call `name`.
    ///
    /// # Errors
    /// Those of [`open`](Photo::open), except those of reading the file.
    #[track_caller]
    pub fn from_bytes(bytes: Vec<u8>, name: &str, channels: Channels) -> Result<Photo> {
        Photo::new(bytes, name.to_owned(), channels, LoadOptions::default().max_memory)
    }

    #[track_caller]
    fn new(bytes: Vec<u8>, name: String, channels: Channels, max_memory: usize) -> Result<Photo> {
        Ok(match head(&bytes, &name)? {
            Sized::InPart { size: [height, width], channels: of_file } => {
                let section = Section { top: 0, left: 0, height, width };
                Photo { source: Source::File(bytes), section, of_file, ..Photo::of_nothing(name, channels, max_memory) }
            }
            Sized::Whole => {
                let raster = whole(&bytes, &name, max_memory)?;
                Photo::of_raster(raster, Photo::of_nothing(name, channels, max_memory))
            }
        })
    }

    /// The picture of the bytes `[height, width, of_file]`, which errors call `name`.
    ///
    /// # Errors
    /// There is no pixel, there are not 1, 3 or 4 channels, or another number of bytes.
    #[track_caller]
    pub fn from_pixels(
        bytes: &[u8],
        [height, width, of_file]: [usize; 3],
        name: &str,
        channels: Channels,
    ) -> Result<Photo> {
        let count = height.checked_mul(width).and_then(|n| n.checked_mul(of_file));
        if count != Some(bytes.len()) || bytes.is_empty() || !matches!(of_file, 1 | 3 | 4) {
            let m = format!("{} bytes for {height} x {width} pixels of {of_file} channels", bytes.len());
            return Err(Error::argument(OP, m).help("1, 3 or 4 channels, and a byte for each channel of each pixel"));
        }
        let pixels = bytes.chunks_exact(of_file).map(|pixel| match *pixel {
            [v] => [v, v, v, 255],
            [r, g, b] => [r, g, b, 255],
            [r, g, b, a] => [r, g, b, a],
            _ => [0; 4],
        });
        let raster =
            Raster { height, width, channels: of_file, pixels: gradus_tensor::backend::host_vec::collect(OP, pixels)? };
        let max_memory = LoadOptions::default().max_memory;
        Ok(Photo::of_raster(raster, Photo::of_nothing(name.to_owned(), channels, max_memory)))
    }

    fn of_nothing(name: String, channels: Channels, max_memory: usize) -> Photo {
        Photo {
            name,
            source: Source::File(Vec::new()),
            section: Section { top: 0, left: 0, height: 0, width: 0 },
            channels,
            of_file: 1,
            mirrored: false,
            erased: None,
            mean: [0.0; 4],
            std: [1.0; 4],
            max_memory,
        }
    }

    fn of_raster(raster: Raster, nothing: Photo) -> Photo {
        let section = Section { top: 0, left: 0, height: raster.height, width: raster.width };
        let of_file = raster.channels;
        Photo { source: Source::Pixels(converted(raster, nothing.channels)), section, of_file, ..nothing }
    }

    /// The name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The channels of the file: 1, 3 or 4.
    pub fn channels_of_file(&self) -> usize {
        self.of_file
    }

    /// Sets the channels.
    ///
    /// # Errors
    /// The file has colours, and the photo was grey before.
    #[track_caller]
    pub fn channels(mut self, channels: Channels) -> Result<Photo> {
        if self.of_file > 1 && self.channels == Channels::Grey && channels != Channels::Grey {
            let e = Error::argument(OP, "a picture that became grey has no colours any more");
            return Err(self.noted(e.help("open it with the channels that are wanted in the end")));
        }
        if let Source::Pixels(raster) = self.source {
            self.source = Source::Pixels(converted(raster, channels));
        }
        self.channels = channels;
        Ok(self)
    }

    /// The height and the width.
    pub fn size(&self) -> (usize, usize) {
        (self.section.height, self.section.width)
    }

    /// Cuts out the section of `height` x `width` pixels whose upper left pixel is at (`top`, `left`).
    ///
    /// # Errors
    /// The section is not within the image.
    #[track_caller]
    pub fn crop(mut self, top: usize, left: usize, height: usize, width: usize) -> Result<Photo> {
        let (h, w) = self.size();
        let within = |start: usize, size: usize, all: usize| start.checked_add(size).is_some_and(|end| end <= all);
        if !within(top, height, h) || !within(left, width, w) || height == 0 || width == 0 {
            return Err(self.noted(crop_error([top, left, height, width], [h, w])));
        }
        let left = if self.mirrored { w - left - width } else { left };
        let Section { top: y, left: x, .. } = self.section;
        self.section = Section { top: y + top, left: x + left, height, width };
        Ok(self)
    }

    /// Cuts out `height` x `width` pixels from the middle.
    ///
    /// # Errors
    /// The section is larger than the image.
    #[track_caller]
    pub fn center_crop(self, height: usize, width: usize) -> Result<Photo> {
        let (h, w) = self.size();
        self.crop(h.saturating_sub(height) / 2, w.saturating_sub(width) / 2, height, width)
    }

    /// Resizes to `height` x `width` pixels, as [`resize`](crate::resize) does.
    ///
    /// # Errors
    /// A size is 0, the result takes more memory than allowed, or the file is damaged.
    #[track_caller]
    pub fn resize(mut self, height: usize, width: usize) -> Result<Photo> {
        if height == 0 || width == 0 {
            let e = Error::argument(OP, format!("a picture cannot have {height} x {width} pixels"));
            return Err(self.noted(e.help("sizes are at least 1")));
        }
        let needed = height.saturating_mul(width).saturating_mul(4);
        if needed > self.max_memory {
            let m = format!("{height} x {width} pixels take more than the {} bytes allowed", self.max_memory);
            return Err(self.noted(Error::argument(OP, m).help("resize to fewer pixels, or allow more memory")));
        }
        let resized = match &self.source {
            Source::Pixels(raster) => raster.resized(self.section, height, width),
            Source::File(_) => {
                let raster = self.pixels()?;
                let all = Section { top: 0, left: 0, height: raster.height, width: raster.width };
                if (height, width) == (raster.height, raster.width) {
                    raster
                } else {
                    raster.resized(all, height, width)
                }
            }
        };
        self.source = Source::Pixels(resized);
        self.section = Section { top: 0, left: 0, height, width };
        Ok(self)
    }

    /// Resizes so that the shorter side has `side` pixels and the ratio of the sides stays, as torchvision's `Resize` with
    /// one number does.
    ///
    /// # Errors
    /// Those of [`resize`](Photo::resize).
    #[track_caller]
    pub fn resize_shorter(self, side: usize) -> Result<Photo> {
        let (h, w) = self.size();
        let longer = (side as u128 * h.max(w) as u128 / h.min(w) as u128).min(usize::MAX as u128) as usize;
        // Checked there: at most the memory allowed.
        if h <= w { self.resize(side, longer) } else { self.resize(longer, side) }
    }

    /// Cuts out a random section and resizes it: see [`random_resized_crop`](crate::augment::random_resized_crop). The same
    /// random numbers lead to the same section.
    ///
    /// # Errors
    /// Those of [`resize`](Photo::resize), or a range is not one of positive numbers.
    #[track_caller]
    pub fn random_resized_crop(
        self,
        height: usize,
        width: usize,
        how: ResizedCrop,
        g: &mut Generator,
    ) -> Result<Photo> {
        let (h, w) = self.size();
        let (top, left, rows, columns) = random_section(h, w, how, g)?;
        // Checked there: at most the memory allowed.
        self.crop(top, left, rows, columns)?.resize(height, width)
    }

    /// Cuts out `height` x `width` pixels at a random place of the image, after `padding` black pixels were added at each
    /// side: see [`random_crop`](crate::augment::random_crop).
    ///
    /// # Errors
    /// The section is larger than the padded image, or the file is damaged.
    #[track_caller]
    pub fn random_crop(mut self, height: usize, width: usize, padding: usize, g: &mut Generator) -> Result<Photo> {
        if padding > 0 {
            let raster = self.pixels()?;
            let needed = |size: usize| size.saturating_add(padding.saturating_mul(2));
            let (h, w) = (needed(raster.height), needed(raster.width));
            if h.saturating_mul(w).saturating_mul(4) > self.max_memory {
                let m = format!("a padding of {padding} pixels takes more than the {} bytes allowed", self.max_memory);
                return Err(self.noted(Error::argument(OP, m).help("give a smaller padding")));
            }
            self.source = Source::Pixels(raster.padded(padding));
            self.section = Section { top: 0, left: 0, height: h, width: w };
        }
        let (h, w) = self.size();
        if height > h || width > w {
            let m = format!("{height} x {width} pixels are not within {h} x {w}, with padding");
            return Err(self.noted(Error::argument(OP, m).help("resize the image first, or add padding")));
        }
        let (top, left) = (g.below(h - height + 1), g.below(w - width + 1));
        self.crop(top, left, height, width)
    }

    /// Mirrors left to right.
    #[must_use]
    pub fn flip_horizontal(mut self) -> Photo {
        self.mirrored = !self.mirrored;
        self
    }

    /// Mirrors left to right with probability `p`.
    ///
    /// # Errors
    /// `p` is not within 0 to 1.
    #[track_caller]
    pub fn random_flip_horizontal(self, p: f64, g: &mut Generator) -> Result<Photo> {
        probability(OP, p)?;
        Ok(if uniform(g) < p { self.flip_horizontal() } else { self })
    }

    /// Sets what [`to_tensor`](Photo::to_tensor) subtracts from the values (0 to 1) of each channel, and by what it divides
    /// the difference.
    ///
    /// # Errors
    /// There is not one mean and one deviation for each channel, a number is not finite, or a deviation is not above 0.
    #[track_caller]
    pub fn normalize(mut self, mean: &[f64], std: &[f64]) -> Result<Photo> {
        let channels = self.shape()[0];
        crate::colour::check_normalize(OP, mean, std, channels)?;
        for (to, from) in self.mean.iter_mut().zip(mean).chain(self.std.iter_mut().zip(std)) {
            *to = *from as f32;
        }
        Ok(self)
    }

    /// Fills a random rectangle with one value in all channels: see [`random_erasing`](crate::augment::random_erasing). It
    /// comes last: the value is one of the normalised picture, and the rectangle stays in its place whatever happens to the
    /// picture afterwards. A second rectangle takes the place of the first.
    ///
    /// # Errors
    /// The probability or a range is not one.
    #[track_caller]
    pub fn random_erasing(mut self, how: RandomErasing, g: &mut Generator) -> Result<Photo> {
        let (h, w) = self.size();
        if let Some((top, left, height, width)) = random_rectangle(h, w, how, g)? {
            self.erased = Some((Section { top, left, height, width }, how.value as f32));
        }
        Ok(self)
    }

    /// Channels, height and width.
    pub fn shape(&self) -> [usize; 3] {
        let channels = match self.channels {
            Channels::Grey => 1,
            Channels::Rgb => 3,
            Channels::Rgba => 4,
            Channels::OfFile => self.of_file,
        };
        [channels, self.section.height, self.section.width]
    }

    /// Writes what [`to_tensor`](Photo::to_tensor) returns into `out`, row by row.
    ///
    /// # Errors
    /// `out` has another number of elements than the [`shape`](Photo::shape), or the file is damaged.
    #[track_caller]
    pub fn fill(&self, out: &mut [f32]) -> Result<()> {
        let decoded;
        let (raster, section) = match &self.source {
            Source::Pixels(raster) => (raster, self.section),
            Source::File(_) => {
                decoded = self.pixels()?;
                (&decoded, Section { top: 0, left: 0, ..self.section })
            }
        };
        let count = self.shape().iter().product::<usize>();
        if out.len() != count {
            let e = Error::argument(OP, format!("{} elements for {count} values", out.len()));
            return Err(self.noted(e.help("give as many as the product of the shape")));
        }
        for (number, row) in out.chunks_exact_mut(section.width).enumerate() {
            let (channel, y) = (number / section.height, number % section.height);
            let (mean, std) = (self.mean[channel], self.std[channel]);
            let (scale, offset) = (1.0 / (255.0 * std), mean / std);
            let value = |pixel: &[u8; 4]| {
                let byte = u32::from_le_bytes(*pixel) >> (8 * channel) & 0xff;
                byte as i32 as f32 * scale - offset
            };
            let pixels = raster.row(section, y);
            if self.mirrored {
                row.iter_mut().zip(pixels.iter().rev()).for_each(|(v, pixel)| *v = value(pixel));
            } else {
                row.iter_mut().zip(pixels).for_each(|(v, pixel)| *v = value(pixel));
            }
            if let Some((erased, value)) = self.erased
                && (erased.top..erased.top + erased.height).contains(&y)
            {
                row.iter_mut().skip(erased.left).take(erased.width).for_each(|v| *v = value);
            }
        }
        Ok(())
    }

    /// The picture as f32 `[c, h, w]`: values from 0 to 1, or normalised.
    ///
    /// # Errors
    /// The file is damaged, or there is no memory.
    #[track_caller]
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let shape = self.shape();
        let mut values = HostVec::filled(device.backend(), OP, 0.0f32, shape.iter().product())?;
        self.fill(&mut values)?;
        Tensor::from_vec(values, shape, device)
    }

    /// The pixels of the section alone.
    #[track_caller]
    fn pixels(&self) -> Result<Raster> {
        match &self.source {
            Source::Pixels(raster) => Ok(raster.cropped(self.section)),
            Source::File(bytes) => {
                Ok(converted(section(bytes, &self.name, self.section, self.max_memory)?, self.channels))
            }
        }
    }

    fn noted(&self, e: Error) -> Error {
        e.note(format!("in the picture {}", self.name))
    }
}

/// With the colours that the channels call for. Their number is the matter of [`Photo::rows`].
fn converted(raster: Raster, channels: Channels) -> Raster {
    if channels == Channels::Grey { raster.grey() } else { raster }
}
