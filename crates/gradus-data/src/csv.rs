//! Reads tables from CSV files, as RFC 4180 describes them. The kinds of the columns are inferred from all rows.

mod columns;
mod fields;

use std::path::Path;
use std::sync::Arc;

use gradus_tensor::{Error, ErrorKind, Here, Result};

pub(crate) use self::columns::Building;
use self::fields::Fields;
use crate::memory::{read_file, reserve_exact, room};
use crate::table::{Column, Kind, Source, Table};

/// The largest number of columns.
const MOST_COLUMNS: usize = 1 << 16;

/// The number of rows from which the kinds are guessed. If a later value disagrees, the file is read again.
const GUESSED: usize = 100;

const OP: &str = "csv";

/// How to read a CSV file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvOptions {
    /// The character between two values: `,` by default. Tables are often written with `;` or a tab.
    pub delimiter: u8,
    /// Whether the first row holds the names of the columns; true by default. If false, the names are `column_1`,
    /// `column_2`, ..
    pub header: bool,
    /// The texts that stand for a missing value. By default: the empty text, `NA`, `N/A`, `n/a`, `NaN`, `nan`, `NULL`,
    /// `null`, `None`, `<NA>` and `#N/A`.
    pub missing: Vec<String>,
    /// The kinds of columns that are not to be inferred, by the name of the column.
    pub kinds: Vec<(String, Kind)>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        let missing = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"];
        CsvOptions { delimiter: b',', header: true, missing: missing.map(String::from).to_vec(), kinds: Vec::new() }
    }
}

impl Table {
    /// Reads a CSV file. Values may be in double quotes and then contain delimiters, line breaks and, doubled, quotes.
    /// Empty lines are skipped.
    ///
    /// A column holds numbers if all of its values are numbers, and booleans if all are `true` or `false`. Otherwise it
    /// holds texts if it has more than 20 different values and these are more than half of its values, and categories
    /// if not.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read. [`ErrorKind::Format`] if it is not text in UTF-8 (the error states
    /// the offset of the byte), if it holds no rows, if a quote is not closed, if a row has more or fewer values than
    /// the first row, if two columns have the same name, or if a value is not of the kind that the options set for its
    /// column. The errors state the file, the line and the column.
    #[track_caller]
    pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Table> {
        let path = path.as_ref();
        let bytes = read_file(path, OP, "a CSV file")?;
        Table::from_csv(&bytes, &path.display().to_string(), options)
    }

    /// Like [`read_csv`](Table::read_csv), for the bytes of a file. Errors refer to it as `name`.
    #[track_caller]
    pub fn from_csv(bytes: &[u8], name: &str, options: &CsvOptions) -> Result<Table> {
        let text = decoded(bytes, name).here()?;
        if matches!(options.delimiter, b'"' | b'\n' | b'\r') || !options.delimiter.is_ascii() {
            let m = format!("the delimiter is {:?}", char::from(options.delimiter));
            return Err(Error::argument(OP, m).help("use another ASCII character, such as , ; or a tab"));
        }
        let reader = Reader { text, name, options, missing: Missing::new(&options.missing) };
        let (names, body) = reader.names()?;
        let mut fixed = Vec::with_capacity(names.len());
        fixed.extend(names.iter().map(|n| options.kinds.iter().find(|(name, _)| name == n).map(|&(_, kind)| kind)));
        if let Some((unknown, _)) = options.kinds.iter().find(|(name, _)| !names.contains(name)) {
            let m = format!("{name}: there is no column {unknown:?}, for which a kind is given");
            return Err(Error::argument(OP, m).help("give kinds for columns that are in the file"));
        }
        let mut guesses: Vec<Kind> = names.iter().map(|_| Kind::Number).collect();
        let mut most = GUESSED;
        loop {
            let (columns, lines) = reader.build(&names, &fixed, &guesses, body.clone(), most)?;
            if most > GUESSED && !columns.iter().any(Building::failed) {
                return reader.finish(names, columns, lines);
            }
            // A kind that fails is followed by one that accepts more, and finally by text, so the loop ends.
            guesses = columns.iter().map(Building::guess).collect();
            most = usize::MAX;
        }
    }
}

/// Decodes the bytes as text, without a byte order mark.
#[track_caller]
fn decoded<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str> {
    let bad = |what: String| Error::new(ErrorKind::Format, OP, format!("{name} {what}"));
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(bad("is compressed with gzip".into()).help("decompress it first"));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(bad("is UTF-16".into()).help("save it as UTF-8"));
    }
    let skipped = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let rest = &bytes[skipped..];
    let line = |at: usize| 1 + bytes[..at].iter().filter(|&&b| b == b'\n').count();
    let text = std::str::from_utf8(rest)
        .map_err(|e| {
            let at = skipped + e.valid_up_to();
            let byte = bytes.get(at).copied().unwrap_or(0);
            let m = format!("is not UTF-8: byte {at}, on line {}, is 0x{byte:02x}", line(at));
            bad(m).help("is it a CSV file? If it is in another encoding, such as Latin-1, convert it to UTF-8")
        })
        .here()?;
    if let Some(at) = text.bytes().position(|b| b == 0) {
        let at = skipped + at;
        let m = format!("is not text: byte {at}, on line {}, is 0x00", line(at));
        return Err(bad(m).help("is it a CSV file? If it is UTF-16, convert it to UTF-8"));
    }
    Ok(text)
}

struct Reader<'a> {
    text: &'a str,
    name: &'a str,
    options: &'a CsvOptions,
    missing: Missing<'a>,
}

/// The texts that stand for missing values, and a table of their first bytes, by which most values are ruled out.
pub(crate) struct Missing<'a> {
    words: &'a [String],
    first: [bool; 256],
}

impl<'a> Missing<'a> {
    pub(crate) fn new(words: &'a [String]) -> Self {
        let mut first = [false; 256];
        words.iter().filter_map(|w| w.bytes().next()).for_each(|b| first[usize::from(b)] = true);
        Missing { words, first }
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        let begins = text.bytes().next().is_none_or(|b| self.first[usize::from(b)]);
        begins && self.words.iter().any(|word| word == text)
    }
}

impl<'a> Reader<'a> {
    #[track_caller]
    fn bad(&self, what: String) -> Error {
        Error::new(ErrorKind::Format, OP, format!("{}: {what}", self.name))
    }

    /// The names of the columns, and the rows after them.
    #[track_caller]
    fn names(&self) -> Result<(Vec<String>, Fields<'a>)> {
        let start = Fields::new(self.text, self.options.delimiter);
        let mut body = start.clone();
        let mut names: Vec<String> = Vec::new();
        if !body.start_row() {
            return Err(self.bad("there are no rows".into()).help("give a CSV file that is not empty"));
        }
        let line = body.line();
        loop {
            let field = body.next().map_err(|e| self.bad(e)).here()?;
            if names.len() == MOST_COLUMNS {
                return Err(self.bad(format!("line {line} has more than {MOST_COLUMNS} columns")));
            }
            let text = if self.options.header { field.text.trim() } else { "" };
            let numbered = || format!("column_{}", names.len() + 1);
            names.push(if text.is_empty() { numbered() } else { text.to_owned() });
            if field.last {
                break;
            }
        }
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let e = self.bad(format!("line {line}: two columns have the name {:?}", twice[0]));
            return Err(e.help("rename one of them; without a line of names, set `header` to false"));
        }
        Ok((names, if self.options.header { body } else { start }))
    }

    /// Reads at most `most` rows as these kinds.
    #[track_caller]
    fn build(
        &self,
        names: &[String],
        fixed: &[Option<Kind>],
        guesses: &[Kind],
        mut body: Fields<'a>,
        most: usize,
    ) -> Result<(Vec<Building<'a>>, Vec<u32>)> {
        let kinds = fixed.iter().zip(guesses).map(|(fixed, guess)| fixed.unwrap_or(*guess));
        let mut columns: Vec<Building<'a>> =
            kinds.zip(fixed).map(|(k, fixed)| Building::new(k, fixed.is_some())).collect();
        let mut lines = Vec::new();
        while lines.len() < most && body.start_row() {
            let line = body.line();
            room(&mut lines, OP, self.name)?;
            lines.push(u32::try_from(line).unwrap_or(u32::MAX));
            let mut count = 0;
            loop {
                let field = body.next().map_err(|e| self.bad(e)).here()?;
                let Some(column) = columns.get_mut(count) else {
                    return Err(self.ragged(line, &body, count + 1, names.len()));
                };
                let missing = self.missing.is(&field.text);
                column.make_room(self.name)?;
                if !column.push((!missing).then_some(&field.text)) && fixed[count].is_some() {
                    let shown: String = field.text.chars().take(40).collect();
                    let kind = column.kind();
                    let m = format!("line {}, column {:?}: {shown:?} is no {kind}", field.line, names[count]);
                    return Err(self
                        .bad(m)
                        .help("correct the value, add it to `missing`, or leave the kind to be inferred"));
                }
                count += 1;
                if field.last {
                    break;
                }
            }
            if count < columns.len() {
                let m = format!("line {line} has {count} values; the first row has {}", columns.len());
                return Err(self.bad(m).help(RAGGED));
            }
        }
        Ok((columns, lines))
    }

    #[track_caller]
    fn ragged(&self, line: usize, body: &Fields<'a>, mut count: usize, expected: usize) -> Error {
        let mut body = body.clone();
        while let Ok(field) = body.next() {
            count += 1;
            if field.last {
                break;
            }
        }
        self.bad(format!("line {line} has {count} values; the first row has {expected}")).help(RAGGED)
    }

    #[track_caller]
    fn finish(&self, names: Vec<String>, columns: Vec<Building<'a>>, mut lines: Vec<u32>) -> Result<Table> {
        if lines.is_empty() {
            return Err(self.bad("there are names of columns and no rows".into()).help("give a file with rows"));
        }
        lines.shrink_to_fit();
        let source =
            Source { file: self.name.into(), lines: Arc::new(lines), has_lines: true, not_held: Arc::default() };
        let mut made = Vec::new();
        reserve_exact(&mut made, names.len(), OP, self.name)?;
        for (name, column) in names.into_iter().zip(columns) {
            made.push(Column { name, values: column.finish(self.name)?, source: source.clone() });
        }
        Ok(Table { columns: made, source })
    }
}

const RAGGED: &str =
    "rows have one value for each column: is a delimiter missing, or a value with a delimiter not quoted?";
