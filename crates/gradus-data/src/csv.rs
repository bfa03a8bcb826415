//! Reads small tables of numbers from CSV files with one row per line, values separated by commas, and no quotes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use gradus_file::check_regular;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::memory::reserve;

/// The longest line that is accepted, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// The largest number of values that is accepted. They occupy a gigabyte.
const MOST_VALUES: usize = 1 << 28;

/// A table of finite numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    columns: usize,
    values: Vec<f32>,
}

impl Numbers {
    /// The number of values in a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The rows, top to bottom.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.columns.max(1))
    }
}

/// Reads a file and skips its first `skip` lines (titles).
#[track_caller]
pub fn read_file(path: impl AsRef<Path>, skip: usize) -> Result<Numbers> {
    let path = path.as_ref();
    let failed = |e| Error::io("csv", path.display(), e).help("give the path of a CSV file that can be read");
    // The type of the file is checked first: opening a named pipe would block until a writer opens it.
    let found = std::fs::metadata(path).map_err(failed).here()?;
    check_regular("csv", path, &found).map_err(|e| e.help("give the path of a CSV file"))?;
    read(std::fs::File::open(path).map_err(failed).here()?, skip, &path.display().to_string())
}

/// Reads a table. Errors state `name`, the line and the column.
///
/// A line longer than 1 MiB, or more than 2^28 values, is an error.
///
/// ```
/// let table = gradus_data::csv::read(&b"a,b\n1,2\n3,4.5\n"[..], 1, "my.csv")?;
/// assert_eq!(table.rows().last(), Some(&[3.0, 4.5][..]));
/// let e = gradus_data::csv::read(&b"1,2\n3,x\n"[..], 0, "my.csv").unwrap_err();
/// assert!(e.to_string().contains("my.csv: line 2, column 2"));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[track_caller]
pub fn read(source: impl Read, skip: usize, name: &str) -> Result<Numbers> {
    let bad = |line: usize, what: String| Error::new(ErrorKind::Format, "csv", format!("{name}: line {line}{what}"));
    let mut source = BufReader::new(source);
    let mut table = Numbers { columns: 0, values: Vec::new() };
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let read = source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes);
        if read.map_err(|e| Error::io("csv", name, e)).here()? == 0 {
            break;
        }
        if bytes.len() as u64 == LONGEST_LINE {
            return Err(bad(number, format!(" is longer than {LONGEST_LINE} bytes"))
                .here()
                .help("this is no table of numbers"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| bad(number, " is not text".into())).here()?.trim();
        if number <= skip || text.is_empty() {
            continue;
        }
        let before = table.values.len();
        if before >= MOST_VALUES {
            return Err(bad(number, format!(" comes after {before} values, and no more are read")).here());
        }
        reserve(&mut table.values, 1 + bytes.len() / 2, "csv", name)?;
        for (column, word) in text.split(',').enumerate() {
            let value = word.trim().parse::<f32>().ok().filter(|v| v.is_finite());
            let value = value
                .ok_or_else(|| {
                    let word: String = word.chars().take(40).collect();
                    bad(number, format!(", column {}: `{word}` is not a finite number", column + 1))
                        .help("values are numbers split by commas; titles at the top can be skipped")
                })
                .here()?;
            table.values.push(value);
        }
        let found = table.values.len() - before;
        if table.columns == 0 {
            table.columns = found;
        } else if found != table.columns {
            return Err(bad(number, format!(" has {found} values; the lines before have {}", table.columns)).here());
        }
    }
    if table.values.is_empty() {
        return Err(Error::new(ErrorKind::Format, "csv", format!("{name} holds no rows")));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_tables_say_where() {
        for (text, want) in [
            (&b""[..], "t holds no rows"),
            (b"1,2\n3\n", "t: line 2 has 1 values; the lines before have 2"),
            (b"1,nan\n", "t: line 1, column 2: `nan` is not a finite number"),
            (b"1,,2\n", "t: line 1, column 2: `` is not"),
            (b"\xff\xfe\n", "t: line 1 is not text"),
        ] {
            let e = read(text, 0, "t").unwrap_err();
            assert!(e.to_string().contains(want), "{e}");
            assert_eq!(e.kind(), &ErrorKind::Format);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let e = read(std::io::repeat(b'1'), 0, "t").unwrap_err();
        assert!(e.to_string().contains("line 1 is longer"), "{e}");
    }

    #[test]
    fn spaces_empty_lines_and_windows_ends_are_fine() {
        let table = read(&b" 1 , 2\r\n\r\n-3e1,+4\r\n"[..], 0, "t").unwrap();
        assert_eq!(table, Numbers { columns: 2, values: vec![1.0, 2.0, -30.0, 4.0] });
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe.csv");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(read_file(&pipe, 0).unwrap_err().to_string().contains("pipe.csv is not a regular file"));
        assert!(read_file(dir.path(), 0).unwrap_err().to_string().contains("a folder"));
    }
}
