//! 1,797 handwritten digits of 8x8 pixels, included in this crate.
//!
//! Source: *Optical Recognition of Handwritten Digits*, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
//! 1998, <https://doi.org/10.24432/C50P49>; licence CC BY 4.0.

use std::io::Read;

use flate2::read::GzDecoder;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::{Column, CsvOptions, ImageSet, Table};

static DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");

const NAME: &str = "digits.csv.gz";

/// The height and width of an image.
const SIDE: usize = 8;

/// The largest pixel value in the file.
const WHITE: u8 = 16;

/// Loads the digits: images `[1, 8, 8]`, bright on dark, with values from 0 to 1, and labels from 0 to 9.
///
/// ```
/// use gradus_data::Dataset;
/// let digits = gradus_data::digits::load()?;
/// assert_eq!((digits.len(), digits.classes(), digits.image_shape()), (1797, 10, [1, 8, 8]));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[track_caller]
pub fn load() -> Result<ImageSet> {
    let mut text = Vec::new();
    GzDecoder::new(DIGITS).read_to_end(&mut text).map_err(|e| Error::io("digits", NAME, e)).here()?;
    let table = Table::from_csv(&text, NAME, &CsvOptions { header: false, ..Default::default() })?;
    let (size, columns) = (SIDE * SIDE, table.columns());
    let columns = columns.iter().map(Column::numbers).collect::<Result<Vec<_>>>().here()?;
    if columns.len() != size + 1 {
        let m = format!("rows have {} values, not {} pixels and a label", columns.len(), size);
        return Err(Error::new(ErrorKind::Format, "digits", m));
    }
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for row in 0..table.len() {
        pixels.extend(columns[..size].iter().map(|column| column[row] as u8));
        labels.push(columns[size][row] as i64);
    }
    ImageSet::new([1, SIDE, SIDE], WHITE, pixels, labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;

    #[test]
    fn first_row_and_class_counts_are_those_of_the_source() {
        let digits = load().unwrap();
        let (image, label) = digits.get(0).unwrap();
        assert_eq!(label, 0);
        assert_eq!(image.pixels()[..8], [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0].map(|p| p / 16.0));
        let mut counts = [0; 10];
        digits.labels().iter().for_each(|&l| counts[l as usize] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }
}
