//! [`ImageFolder`]: labelled images in folders, one folder for each class.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gradus_image::{Channels, Format, LoadOptions, Photo, grayscale, load};
use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};

use crate::Dataset;
use crate::dataset::check_index;

const OP: &str = "image_folder";

/// Converts an image, u8 `[c, h, w]`, to these channels.
#[track_caller]
fn converted(x: Tensor, channels: Channels) -> Result<Tensor> {
    let colours = |x: &Tensor| if x.shape()[0] == 4 { x.narrow(0, 0, 3) } else { Ok(x.clone()) };
    let spread = |x: Tensor| {
        let [_, h, w] = *x.shape() else { return Ok(x) };
        if x.shape()[0] == 1 { x.expand([3, h, w]) } else { Ok(x) }
    };
    match channels {
        Channels::OfFile => Ok(x),
        Channels::Grey => grayscale(&colours(&x)?, false),
        Channels::Rgb => spread(colours(&x)?)?.contiguous(),
        Channels::Rgba if x.shape()[0] == 4 => Ok(x),
        Channels::Rgba => {
            let x = spread(x)?;
            let alpha = x.narrow(0, 0, 1)?.full_like(255)?;
            Tensor::cat(&[&x, &alpha], 0)
        }
    }
}

/// The PNG and JPEG images of a folder that has a folder for each class, as torchvision's `ImageFolder` reads them:
///
/// ```text
/// photos/cat/1.jpg
/// photos/cat/2.png
/// photos/dog/young/1.jpeg
/// ```
///
/// The classes are the names of the folders, sorted; here `cat` is 0 and `dog` is 1. A sample is an image, u8 `[c, h,
/// w]` with values from 0 to 255 and the size of its file, and its label. [`photos`](ImageFolder::photos) are the same
/// images as [`Photo`]s, which are cut, resized and batched for a network in a fraction of the time:
///
/// ```no_run
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::{Channels, DataLoader, ImageFolder};
/// use gradus_image::augment::ResizedCrop;
/// let photos = ImageFolder::open("photos", Channels::Rgb, &device)?.photos();
/// let loader = DataLoader::new(photos, &device).batch_size(32).shuffle(0).workers(4).augment(|(x, label), g| {
///     let x = x.random_resized_crop(224, 224, ResizedCrop::default(), g)?.random_flip_horizontal(0.5, g)?;
///     Ok((x.normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])?, label))
/// });
/// for batch in loader.build()?.epoch(0)? {
///     let (x, labels) = batch?; // f32 [32, 3, 224, 224] and i64 [32]
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ImageFolder {
    files: Vec<PathBuf>,
    labels: Vec<i64>,
    classes: Vec<String>,
    channels: Channels,
    device: Device,
    max_memory: usize,
}

impl ImageFolder {
    /// Lists the files of `folder` whose names end in `.png`, `.jpg` or `.jpeg`, in sorted order. A file is read when
    /// its sample is requested.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the folder cannot be read. [`ErrorKind::Format`] if it has no subfolders, or if a subfolder
    /// has no image or a name that is not UTF-8; the error states its path.
    #[track_caller]
    pub fn open(folder: impl AsRef<Path>, channels: Channels, device: &Device) -> Result<Self> {
        let folder = folder.as_ref();
        let bad = |path: &Path, what: &str| Error::new(ErrorKind::Format, OP, format!("{} {what}", path.display()));
        let (mut files, mut labels, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for path in listed(folder)?.into_iter().filter(|path| path.is_dir()) {
            let before = files.len();
            images(&path, &mut files, &mut seen)?;
            if files.len() == before {
                return Err(bad(&path, "has no image whose name ends in .png, .jpg or .jpeg")
                    .help("every folder is a class: remove those that are none")
                    .here());
            }
            labels.extend(files[before..].iter().map(|_| classes.len() as i64));
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                return Err(bad(&path, "has a name that is not UTF-8").help("rename it: the name is that of a class"));
            };
            classes.push(name.to_owned());
        }
        if classes.is_empty() {
            let e = bad(folder, "has no folders");
            return Err(e.help("put the images of each class into a folder of their own").here());
        }
        let max_memory = LoadOptions::default().max_memory;
        Ok(ImageFolder { files, labels, classes, channels, device: device.clone(), max_memory })
    }

    /// Sets the largest number of bytes that reading an image may use: see [`LoadOptions::max_memory`]. 1 GiB by
    /// default.
    #[must_use]
    pub fn max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = bytes;
        self
    }

    /// The names of the classes, in the order of their labels.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The label of every image, for [splits](crate::split) and weights.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The path of every image.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The images as [`Photo`]s. They are batched as f32 `[n, c, h, w]`.
    pub fn photos(self) -> Photos {
        Photos(self)
    }
}

/// The images of an [`ImageFolder`] as [`Photo`]s: see [`ImageFolder::photos`].
#[derive(Debug, Clone)]
pub struct Photos(ImageFolder);

impl Photos {
    /// The folder.
    pub fn folder(&self) -> &ImageFolder {
        &self.0
    }
}

impl Dataset for Photos {
    type Item = (Photo, i64);

    fn len(&self) -> usize {
        self.0.len()
    }

    /// Image `index` and its label. Fails if the file cannot be read or is not an image; the error states its path.
    #[track_caller]
    fn get(&self, index: usize) -> Result<(Photo, i64)> {
        check_index(OP, index, self.len())?;
        let ImageFolder { files, labels, channels, max_memory, .. } = &self.0;
        Ok((Photo::open_within(&files[index], *channels, *max_memory)?, labels[index]))
    }
}

impl Dataset for ImageFolder {
    type Item = (Tensor, i64);

    fn len(&self) -> usize {
        self.files.len()
    }

    /// Image `index` and its label. Fails if the file is damaged or not an image; the error states its path.
    #[track_caller]
    fn get(&self, index: usize) -> Result<(Tensor, i64)> {
        check_index(OP, index, self.len())?;
        let options = LoadOptions { dtype: Some(DType::U8), max_memory: self.max_memory };
        let image = load(&self.files[index], &self.device, options)?;
        Ok((converted(image, self.channels)?, self.labels[index]))
    }
}

/// The paths in a folder, sorted by name.
#[track_caller]
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io(OP, folder.display(), e).help("give a folder that can be read");
    let entries = std::fs::read_dir(folder).map_err(failed).here()?;
    let mut paths: Vec<PathBuf> =
        entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(failed).here()?;
    paths.sort();
    Ok(paths)
}

/// Adds the images in a folder and its subfolders. `seen` holds the folders that were already searched, so that links
/// between folders cannot lead to an endless search.
#[track_caller]
fn images(folder: &Path, files: &mut Vec<PathBuf>, seen: &mut BTreeSet<PathBuf>) -> Result<()> {
    let real = std::fs::canonicalize(folder).map_err(|e| Error::io(OP, folder.display(), e)).here()?;
    if !seen.insert(real) {
        let m = format!("{} leads to a folder that was searched before", folder.display());
        return Err(Error::new(ErrorKind::Format, OP, m).help("remove the link: its images would come twice"));
    }
    for path in listed(folder)? {
        if path.is_dir() {
            images(&path, files, seen)?;
        } else if Format::of_name(&path).is_ok() {
            files.push(path);
        }
    }
    Ok(())
}
