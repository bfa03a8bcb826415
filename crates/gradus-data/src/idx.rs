//! IDX files, the format of MNIST, Fashion-MNIST and similar data sets. Gzip compression is detected from the first
//! bytes.
//!
//! A file is a magic number `00 00 08 rank`, the sizes of `rank` axes as big-endian u32, and one byte per value. The
//! sizes are checked against the length of the file before memory is allocated for them.

use std::fs::File;
use std::io::{BufReader, ErrorKind as IoKind, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::ImageSet;
use crate::memory::reserve_exact;

/// The largest number of values that a header may declare.
const MOST_VALUES: u64 = 1 << 31;

/// Deflate expands one byte to at most this many.
const MOST_EXPANSION: u64 = 1032;

/// The training set or the test set of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`.
    Train,
    /// `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`.
    Test,
}

impl Part {
    fn prefix(self) -> &'static str {
        match self {
            Part::Train => "train",
            Part::Test => "t10k",
        }
    }

    /// The path of the file `what` in `folder`, if it exists. The file name has `-` or `.` before `idx`, and may end in
    /// `.gz`.
    fn find(self, folder: &Path, what: &str, rank: usize) -> Option<PathBuf> {
        let names = ["-", "."]
            .into_iter()
            .flat_map(|dot| ["", ".gz"].map(|end| format!("{}-{what}{dot}idx{rank}-ubyte{end}", self.prefix())));
        names.map(|name| folder.join(name)).find(|path| path.exists())
    }

    /// Whether `folder` has the image file or the label file of this part.
    pub fn is_in(self, folder: impl AsRef<Path>) -> bool {
        let folder = folder.as_ref();
        self.find(folder, "images", 3).is_some() || self.find(folder, "labels", 1).is_some()
    }
}

/// Grey images of equal size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// The number of images.
    pub count: usize,
    /// The height of an image.
    pub height: usize,
    /// The width of an image.
    pub width: usize,
    /// All pixels, image by image and row by row; 255 is white.
    pub pixels: Vec<u8>,
}

/// Reads the images and labels of a folder. Samples are `[1, height, width]` with values from 0 to 1.
#[track_caller]
pub fn read_folder(folder: impl AsRef<Path>, part: Part) -> Result<ImageSet> {
    let folder = folder.as_ref();
    let meta = std::fs::metadata(folder)
        .map_err(|e| {
            Error::io("idx", folder.display(), e)
                .help("give a folder that holds train-images-idx3-ubyte[.gz] and its labels")
        })
        .here()?;
    if !meta.is_dir() {
        let m = format!("{} is a file, not a folder", folder.display());
        return Err(Error::new(ErrorKind::Io, "idx", m).help("give the folder that the IDX files lie in"));
    }
    let find = |what: &str, rank: usize| {
        part.find(folder, what, rank)
            .ok_or_else(|| {
                let name = format!("{}-{what}-idx{rank}-ubyte", part.prefix());
                Error::new(ErrorKind::Io, "idx", format!("{} holds no {name} and no {name}.gz", folder.display()))
                    .help("MNIST and Fashion-MNIST are four files with such names; download them into this folder")
            })
            .here()
    };
    let (images_path, labels_path) = (find("images", 3).here()?, find("labels", 1).here()?);
    let images = read_images(&images_path)?;
    let labels = read_labels(&labels_path)?;
    if images.count != labels.len() {
        let m = format!(
            "{} holds {} images and {} holds {} labels",
            images_path.display(),
            images.count,
            labels_path.display(),
            labels.len()
        );
        return Err(
            Error::new(ErrorKind::Format, "idx", m).help("every image needs one label; are these files a pair?")
        );
    }
    let mut classes = Vec::new();
    reserve_exact(&mut classes, labels.len(), "idx", &labels_path.display().to_string())?;
    classes.extend(labels.into_iter().map(i64::from));
    ImageSet::new([1, images.height, images.width], u8::MAX, images.pixels, classes)
}

/// Reads a file of images (`idx3-ubyte`).
#[track_caller]
pub fn read_images(path: impl AsRef<Path>) -> Result<Images> {
    let (shape, pixels) = read_values(path.as_ref(), 3, "images")?;
    Ok(Images { count: shape[0], height: shape[1], width: shape[2], pixels })
}

/// Reads a file of labels (`idx1-ubyte`).
#[track_caller]
pub fn read_labels(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    Ok(read_values(path.as_ref(), 1, "labels")?.1)
}

/// Reads the sizes of the axes and the values of a file.
#[track_caller]
fn read_values(path: &Path, rank: usize, what: &str) -> Result<(Vec<usize>, Vec<u8>)> {
    let failed = |e| Error::io("idx", path.display(), e).help("check that the file is there and can be read");
    // The type of the file is checked first: opening a named pipe would block until a writer opens it.
    let meta = std::fs::metadata(path).map_err(failed).here()?;
    gradus_file::check_regular("idx", path, &meta).map_err(|e| e.help("give the path of an IDX file"))?;
    let mut file = File::open(path).map_err(failed).here()?;
    let mut magic = Vec::new();
    file.by_ref().take(2).read_to_end(&mut magic).map_err(failed).here()?;
    file.rewind().map_err(failed).here()?;
    let source = BufReader::new(file);
    if magic == [0x1f, 0x8b] {
        parse(MultiGzDecoder::new(source), meta.len(), MOST_EXPANSION, path, rank, what)
    } else {
        parse(source, meta.len(), 1, path, rank, what)
    }
}

/// Parses a file of `length` bytes, each of which decompresses to at most `expansion` bytes.
#[track_caller]
fn parse(
    mut source: impl Read,
    length: u64,
    expansion: u64,
    path: &Path,
    rank: usize,
    what: &str,
) -> Result<(Vec<usize>, Vec<u8>)> {
    let capacity = length.saturating_mul(expansion);
    let bad = |m: String| Error::new(ErrorKind::Format, "idx", format!("{}: {m}", path.display()));
    let broken = |e: std::io::Error| match e.kind() {
        IoKind::UnexpectedEof => {
            bad("the file ends too early".into()).here().help("it is truncated; download it again")
        }
        IoKind::InvalidInput | IoKind::InvalidData => {
            bad(format!("corrupt gzip data: {e}")).here().help("download the file again")
        }
        _ => Error::io("idx", path.display(), e).help("check that the file can be read to its end"),
    };
    let mut word = || -> Result<[u8; 4]> {
        let mut bytes = [0; 4];
        source.read_exact(&mut bytes).map_err(broken).here()?;
        Ok(bytes)
    };
    let magic = word()?;
    if magic != [0, 0, 8, rank as u8] {
        let shown = magic.map(|b| format!("{b:02x}")).join(" ");
        return Err(bad(format!("starts with {shown}; IDX {what} start with 00 00 08 {rank:02x}"))
            .here()
            .help(format!("give a file of unsigned bytes with {rank} axes, such as train-{what}-idx{rank}-ubyte")));
    }
    let sizes = (0..rank).map(|_| Ok(u64::from(u32::from_be_bytes(word()?)))).collect::<Result<Vec<u64>>>().here()?;
    let shown = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
    let promised = sizes.iter().try_fold(1u64, |n, &s| n.checked_mul(s));
    let promised = match promised {
        Some(0) => return Err(bad(format!("holds no {what}: its sizes are {shown}")).here()),
        Some(n) if n <= MOST_VALUES && n <= capacity => n,
        Some(n) if n <= capacity => {
            return Err(bad(format!("promises {shown} values; more than {MOST_VALUES} are not read")).here());
        }
        _ => {
            return Err(bad(format!("promises {shown} values, more than its {length} bytes can hold"))
                .here()
                .help("it is truncated or corrupt; download it again"));
        }
    };
    // Memory grows with the data that is read, and never beyond the declared size.
    let (mut values, name) = (Vec::new(), path.display().to_string());
    let most = promised as usize + 1;
    while values.len() < most {
        let end = (2 * values.len()).max(1 << 16).min(most);
        let missing = end - values.len();
        reserve_exact(&mut values, missing, "idx", &name)?;
        source.by_ref().take(missing as u64).read_to_end(&mut values).map_err(broken).here()?;
        if values.len() < end {
            break;
        }
    }
    let found = values.len() as u64;
    if found < promised {
        return Err(bad(format!("promises {shown} = {promised} values and holds {found}"))
            .here()
            .help("it is truncated; download it again"));
    }
    if found > promised {
        return Err(bad(format!("goes on after the {shown} = {promised} values that it promises"))
            .here()
            .help("it is corrupt; download it again"));
    }
    Ok((sizes.iter().map(|&s| s as usize).collect(), values))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Dataset;

    fn idx(sizes: &[u32], values: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, sizes.len() as u8];
        sizes.iter().for_each(|s| bytes.extend(s.to_be_bytes()));
        bytes.extend(values);
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Images> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        read_images(file.path())
    }

    #[test]
    fn plain_and_gzip_files_read_alike() {
        let bytes = idx(&[2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        let images = read(&bytes).unwrap();
        assert_eq!(images, Images { count: 2, height: 1, width: 3, pixels: vec![1, 2, 3, 4, 5, 6] });
        assert_eq!(read(&gzip(&bytes)).unwrap(), images);
    }

    #[test]
    fn broken_files_are_errors_that_say_what_is_wrong() {
        let good = idx(&[2, 2, 2], &[9; 8]);
        let zipped = gzip(&good);
        let mut flipped = zipped.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 0x55;
        let bomb = gzip(&idx(&[u32::MAX, u32::MAX, u32::MAX], &[]));
        for (bytes, want) in [
            (&[][..], "ends too early"),
            (&good[..7], "ends too early"),
            (&good[..good.len() - 1], "2 x 2 x 2 = 8 values and holds 7"),
            (&good[..18], "2 x 2 x 2 = 8 values and holds 2"),
            (&[&good[..], &[0]].concat(), "goes on after"),
            (&idx(&[2, 2], &[9; 4]), "starts with 00 00 08 02"),
            (b"\x89PNG\r\n\x1a\n", "starts with 89 50 4e 47"),
            (&idx(&[0, 28, 28], &[]), "holds no images"),
            (&idx(&[u32::MAX, 28, 28], &[1]), "bytes can hold"),
            (&bomb, "bytes can hold"),
            (&gzip(&good[..good.len() - 3]), "2 x 2 x 2 = 8 values and holds 5"),
            (&zipped[..zipped.len() - 9], "ends too early"),
            (&flipped, "corrupt gzip"),
            (&zipped[..2], "ends too early"),
        ] {
            let e = read(bytes).unwrap_err();
            assert!(e.to_string().contains(want), "{want}: {e}");
            assert_eq!(e.kind(), &ErrorKind::Format);
        }
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_handled() {
        for good in [idx(&[1, 2, 2], &[1, 2, 3, 4]), gzip(&idx(&[1, 2, 2], &[1, 2, 3, 4]))] {
            for cut in 0..good.len() {
                assert!(read(&good[..cut]).is_err(), "cut at {cut}");
            }
            for at in 0..good.len() {
                let mut bytes = good.clone();
                bytes[at] ^= 0xff;
                let _ = read(&bytes);
            }
        }
    }

    #[test]
    fn a_folder_needs_both_files_of_one_length() {
        let dir = tempfile::tempdir().unwrap();
        let error = || read_folder(dir.path(), Part::Train).unwrap_err().to_string();
        assert!(error().contains("holds no train-images-idx3-ubyte"));
        assert!(!Part::Train.is_in(dir.path()));
        std::fs::write(dir.path().join("train-images-idx3-ubyte.gz"), gzip(&idx(&[2, 1, 1], &[0, 255]))).unwrap();
        assert!(error().contains("holds no train-labels-idx1-ubyte"));
        std::fs::write(dir.path().join("train-labels.idx1-ubyte"), idx(&[1], &[7])).unwrap();
        assert!(error().contains("2 images"));
        std::fs::write(dir.path().join("train-labels.idx1-ubyte"), idx(&[2], &[7, 3])).unwrap();
        let set = read_folder(dir.path(), Part::Train).unwrap();
        assert_eq!((set.len(), set.classes(), set.labels()), (2, 8, &[7, 3][..]));
        assert_eq!(set.get(1).unwrap().0.pixels(), [1.0]);
        assert!(read_folder(dir.path().join("none"), Part::Train).unwrap_err().to_string().contains("none"));
        assert!(read_folder(dir.path().join("train-labels.idx1-ubyte"), Part::Train).is_err());
    }
}
