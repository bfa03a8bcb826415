//! The labelled pictures of a folder: a folder for each class, or IDX files.

use std::path::{Path, PathBuf};

use gradus_data::{Channels, DataLoader, Dataset, Image, ImageFolder, ImageSet, Photo, Photos, idx, split};
use gradus_tensor::{Device, Error, ErrorKind, Generator, Here, Result};

const OP: &str = "images";

/// The names of the folders in which held-out pictures may be, beside `train`.
const TESTS: [&str; 4] = ["val", "valid", "validation", "test"];

/// The share of the pictures that is held out if there is no folder for them.
const HELD_OUT: f64 = 0.2;

/// Labelled pictures.
#[derive(Debug, Clone)]
pub enum Pictures {
    /// Files, a folder for each class.
    Files(Photos),
    /// Grey pictures of one size, from IDX files.
    Set(ImageSet),
}

impl Pictures {
    /// The label of each picture.
    pub fn labels(&self) -> &[i64] {
        match self {
            Pictures::Files(photos) => photos.folder().labels(),
            Pictures::Set(set) => set.labels(),
        }
    }

    /// The path of a picture, if it is a file.
    pub fn path(&self, index: usize) -> Option<&Path> {
        match self {
            Pictures::Files(photos) => photos.folder().files().get(index).map(PathBuf::as_path),
            Pictures::Set(_) => None,
        }
    }

    fn classes(&self) -> Vec<String> {
        match self {
            Pictures::Files(photos) => photos.folder().classes().to_vec(),
            Pictures::Set(set) => (0..set.classes()).map(|class| class.to_string()).collect(),
        }
    }
}

impl Dataset for Pictures {
    type Item = (Photo, i64);

    fn len(&self) -> usize {
        self.labels().len()
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<(Photo, i64)> {
        match self {
            Pictures::Files(photos) => photos.get(index),
            Pictures::Set(set) => {
                let (image, label) = set.get(index)?;
                Ok((photo_of(&image, &format!("number {index} of the IDX file"))?, label))
            }
        }
    }
}

/// A picture of floats from 0 to 1 as one of bytes, where 1 becomes 255. Errors call it `name`.
#[track_caller]
pub(super) fn photo_of(image: &Image, name: &str) -> Result<Photo> {
    let [channels, height, width] = image.shape();
    let area = height * width;
    if let Some(at) = image.pixels().iter().position(|v| !(0.0..=1.0).contains(v)) {
        let (channel, row, column) = (at / area, at % area / width, at % width);
        let value = image.pixels()[at];
        let m = format!("{name}: the value of channel {channel} at row {row}, column {column} is {value}");
        return Err(Error::argument("picture", m).help("values go from 0 to 1; divide bytes by 255"));
    }
    let values = (0..area).flat_map(|at| (0..channels).map(move |channel| image.pixels()[channel * area + at]));
    // At most as many as the picture has values.
    let bytes: Vec<u8> = values.map(|v| (v * 255.0).round() as u8).collect();
    Photo::from_pixels(&bytes, [height, width, channels], name, Channels::OfFile)
}

/// The pictures of a folder, those to train on and those that are held out.
#[derive(Debug, Clone)]
pub struct Split {
    /// The pictures to train on.
    pub train: Part,
    /// The pictures that are held out.
    pub test: Part,
    /// The names of the classes, in the order of their labels.
    pub classes: Vec<String>,
}

/// Some of the pictures of a folder.
pub type Part = gradus_data::Subset<std::sync::Arc<Pictures>>;

/// Finds the pictures of `folder`, which has
///
/// * the IDX files of MNIST or Fashion-MNIST, whose `t10k` files are held out if they are there; or
/// * the folders `train` and `val` (or `valid`, `validation`, `test`), each with a folder for each class; or
/// * a folder for each class.
///
/// Where nothing is held out, a fifth of the pictures of each class is, chosen by `seed`. No picture is read yet.
///
/// # Errors
/// Fails if the folder cannot be read or has none of these, if there are fewer than two classes, if a class has no
/// picture, and if a held-out picture has a class that is not trained.
#[track_caller]
pub fn open(folder: impl AsRef<Path>, max_memory: Option<usize>, seed: u64, device: &Device) -> Result<Split> {
    let folder = folder.as_ref();
    check_folder(folder)?;
    let listed = |folder: &Path| listed(folder, max_memory, device);
    if idx::Part::Train.is_in(folder) {
        let train = Pictures::Set(idx::read_folder(folder, idx::Part::Train)?);
        if !idx::Part::Test.is_in(folder) {
            return divided(train, folder, seed);
        }
        let test = Pictures::Set(idx::read_folder(folder, idx::Part::Test)?);
        return joined(train, test, folder);
    }
    let train = folder.join("train");
    if !train.is_dir() {
        return divided(listed(folder)?, folder, seed);
    }
    let Some(test) = held_out(folder) else {
        return divided(listed(&train)?, &train, seed);
    };
    joined(listed(&train)?, listed(&test)?, folder)
}

/// The pictures of `folder`, which has one of the forms that [`open`] takes, with labels that count `classes`. Of a folder
/// that has pictures for the training and others, the others.
///
/// # Errors
/// Fails if the folder cannot be read or has another form, and if it has a class that is not one of `classes`.
#[track_caller]
pub(super) fn labelled(
    folder: &Path,
    classes: &[String],
    max_memory: Option<usize>,
    device: &Device,
) -> Result<impl Dataset<Item = (Photo, i64)> + 'static> {
    check_folder(folder)?;
    let pictures = if idx::Part::Test.is_in(folder) {
        Pictures::Set(idx::read_folder(folder, idx::Part::Test)?)
    } else if idx::Part::Train.is_in(folder) {
        Pictures::Set(idx::read_folder(folder, idx::Part::Train)?)
    } else if folder.join("train").is_dir() {
        listed(&held_out(folder).unwrap_or_else(|| folder.join("train")), max_memory, device)?
    } else {
        listed(folder, max_memory, device)?
    };
    let place = |name: &String| {
        let found = classes.iter().position(|known| known == name).map(|at| at as i64);
        found.ok_or_else(|| {
            let m = format!("{} has the class {name:?}, which the model does not know", folder.display());
            Error::argument(OP, m).help(format!("it knows {}", classes.join(", ")))
        })
    };
    let places = pictures.classes().iter().map(place).collect::<Result<Vec<i64>>>().here()?;
    Ok(pictures.map(move |(photo, label)| Ok((photo, places[label as usize]))))
}

#[track_caller]
fn check_folder(folder: &Path) -> Result<()> {
    let about = std::fs::metadata(folder).map_err(|e| Error::io(OP, folder.display(), e).help(SHAPE)).here()?;
    if about.is_dir() {
        return Ok(());
    }
    let m = format!("{} is a file, not a folder", folder.display());
    Err(Error::new(ErrorKind::Format, OP, m).help(SHAPE))
}

#[track_caller]
fn listed(folder: &Path, max_memory: Option<usize>, device: &Device) -> Result<Pictures> {
    let photos = ImageFolder::open(folder, Channels::Rgb, device)?;
    Ok(Pictures::Files(match max_memory {
        Some(bytes) => photos.max_memory(bytes).photos(),
        None => photos.photos(),
    }))
}

/// The folder beside `train` with the pictures that are held out.
fn held_out(folder: &Path) -> Option<PathBuf> {
    TESTS.iter().map(|name| folder.join(name)).find(|path| path.is_dir())
}

const SHAPE: &str = "give a folder with a folder of PNG or JPEG pictures for each class, or with `train` and `val` of such \
folders, or with the IDX files of MNIST";

#[track_caller]
fn checked(classes: Vec<String>, folder: &Path) -> Result<Vec<String>> {
    if classes.len() < 2 {
        let m = match classes.first() {
            Some(only) => format!("{} has one class only, {only:?}", folder.display()),
            None => format!("{} has no class", folder.display()),
        };
        return Err(Error::argument(OP, m).help("a network learns to tell classes apart; give two or more"));
    }
    Ok(classes)
}

/// Holds a fifth of the pictures out.
#[track_caller]
fn divided(all: Pictures, folder: &Path, seed: u64) -> Result<Split> {
    let classes = checked(all.classes(), folder)?;
    let split = split::stratified(all.labels(), HELD_OUT, Generator::new(seed).fork(3).next_u64())?;
    for (class, name) in classes.iter().enumerate() {
        // A number that no label of an IDX file has is a class without pictures.
        if all.labels().iter().filter(|&&label| label == class as i64).count() == 1 {
            let m = format!("{}: class {name:?} has only one picture", folder.display());
            return Err(Error::argument(OP, m).help("a class needs at least two, one to train on and one to hold out"));
        }
    }
    if split.test.is_empty() {
        let m = format!("{} has {} pictures, too few to hold a fifth of them out", folder.display(), all.len());
        return Err(Error::argument(OP, m).help("give more pictures, or folders `train` and `val`"));
    }
    let all = std::sync::Arc::new(all);
    Ok(Split { train: all.clone().subset(split.train)?, test: all.subset(split.test)?, classes })
}

/// Pictures that come with others to hold out.
#[track_caller]
fn joined(train: Pictures, test: Pictures, folder: &Path) -> Result<Split> {
    let (classes, others) = (checked(train.classes(), folder)?, test.classes());
    let fail = |m: String| {
        Err(Error::argument(OP, format!("{}: {m}", folder.display())).help("are these pictures of one data set?"))
    };
    if let (Pictures::Set(train), Pictures::Set(test)) = (&train, &test)
        && train.image_shape() != test.image_shape()
    {
        return fail(format!(
            "training pictures are {:?} and test pictures {:?}",
            train.image_shape(),
            test.image_shape()
        ));
    }
    // Labels count the classes of their own folder, which must be the same ones.
    if let Some(extra) = others.iter().find(|name| !classes.contains(name)) {
        return fail(format!("the held-out pictures have the class {extra:?}, which the training pictures lack"));
    }
    if matches!(test, Pictures::Files(_))
        && let Some(missing) = classes.iter().find(|name| !others.contains(name))
    {
        return fail(format!("no picture of the class {missing:?} is held out"));
    }
    let whole = |pictures: Pictures| {
        let count = pictures.len();
        std::sync::Arc::new(pictures).subset((0..count).collect())
    };
    Ok(Split { train: whole(train)?, test: whole(test)?, classes })
}

/// What reading every picture once tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// 1 if all pictures are grey, or else 3.
    pub channels: usize,
    /// The mean and the standard deviation of the values (0 to 1) of each channel.
    pub mean: Vec<f64>,
    /// See `mean`.
    pub std: Vec<f64>,
    /// The bits of the mean of the values and their squares in each picture, which are others after the picture changed.
    pub marks: Vec<u64>,
}

/// Reads every picture once, so that one that cannot be read is found before the training. `size` is the height and the
/// width at which values are counted.
///
/// # Errors
/// Fails if a picture cannot be read; the error names it.
#[track_caller]
pub fn survey(pictures: &Part, [height, width]: [usize; 2], workers: usize, device: &Device) -> Result<Survey> {
    let numbers = pictures.clone().map(move |(photo, _)| {
        let is_grey = photo.channels_of_file() == 1;
        let x = photo.channels(Channels::Rgb)?.resize(height, width)?;
        let mut values = vec![0.0; 3 * height * width]; // at most those of an input of the network
        x.fill(&mut values)?;
        let mut sums = vec![if is_grey { 0.0 } else { 1.0 }];
        for channel in values.chunks_exact(height * width) {
            let count = channel.len() as f64;
            sums.push(channel.iter().map(|&v| f64::from(v)).sum::<f64>() / count);
            sums.push(channel.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / count);
        }
        Ok(sums)
    });
    let mut total = [0.0; 7];
    let mut marks = Vec::new(); // at most one for each picture
    for batch in DataLoader::new(numbers, device).batch_size(64).workers(workers).build()?.epoch(0)? {
        for row in batch?.to_vec::<f64>()?.chunks_exact(total.len()) {
            total.iter_mut().zip(row).for_each(|(sum, v)| *sum += v);
            marks.push(row.iter().sum::<f64>().to_bits());
        }
    }
    let channels = if total[0] == 0.0 { 1 } else { 3 };
    let count = pictures.len().max(1) as f64;
    let mean: Vec<f64> = (0..channels).map(|c| total[1 + 2 * c] / count).collect();
    // Pictures of one colour would have a deviation of 0.
    let deviation = |c: usize| (total[2 + 2 * c] / count - mean[c] * mean[c]).max(0.0).sqrt().max(0.01);
    let std = (0..channels).map(deviation).collect();
    Ok(Survey { channels, mean, std, marks })
}
