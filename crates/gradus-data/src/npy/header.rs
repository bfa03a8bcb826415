//! The header of an `.npy` file: a Python dict with the dtype, the order and the shape.

use gradus_tensor::DType;

/// The bytes with which every `.npy` file begins.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's code of each dtype, without the byte order.
const CODES: [(&str, DType); 12] = [
    ("f8", DType::F64),
    ("f4", DType::F32),
    ("f2", DType::F16),
    ("i8", DType::I64),
    ("i4", DType::I32),
    ("i2", DType::I16),
    ("i1", DType::I8),
    ("u8", DType::U64),
    ("u4", DType::U32),
    ("u2", DType::U16),
    ("u1", DType::U8),
    ("b1", DType::Bool),
];

pub(super) struct Header {
    pub(super) dtype: DType,
    /// Whether the elements are big endian.
    pub(super) swapped: bool,
    /// Whether the first axis varies fastest.
    pub(super) fortran: bool,
    pub(super) shape: Vec<usize>,
}

/// The header of a file with its magic bytes; `None` if NumPy does not have the dtype.
pub(super) fn header_of(shape: &[usize], dtype: DType) -> Option<Vec<u8>> {
    let (code, _) = CODES.iter().find(|(_, d)| *d == dtype)?;
    let order = if dtype.size() == 1 { "|" } else { "<" };
    let sizes: String = shape.iter().map(|s| format!("{s}, ")).collect();
    // A tuple of one element ends with a comma.
    let sizes = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The elements begin at a multiple of 64 bytes.
    let fill = (64 - (10 + text.len() + 1) % 64) % 64;
    text.extend(std::iter::repeat_n(' ', fill));
    text.push('\n');
    Some([MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat())
}

/// The text of a dict's value.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let at = [format!("'{key}'"), format!("\"{key}\"")].iter().find_map(|k| Some(text.find(k)? + k.len()))?;
    text[at..].trim_start().strip_prefix(':').map(str::trim_start)
}

/// Parses a header. The error is the part of the message that follows the name of the file.
pub(super) fn parse(text: &[u8]) -> Result<Header, String> {
    let damaged = |what: &str| format!("has a damaged header: {what}");
    let text = std::str::from_utf8(text).map_err(|_| damaged("it is not text"))?.trim();
    let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(|| damaged("it is no dict"))?;
    let descr = value(inner, "descr").ok_or_else(|| damaged("it has no descr"))?;
    let quoted = descr.strip_prefix(['\'', '"']).and_then(|t| t.split(['\'', '"']).next());
    let code = quoted.ok_or("is a structured array, which is not read: save its fields one by one")?;
    let (order, kind) = match code.split_at_checked(1) {
        Some(("<" | ">" | "|" | "=", kind)) => (&code[..1], kind),
        _ => ("=", code),
    };
    let Some(&(_, dtype)) = CODES.iter().find(|(code, _)| *code == kind) else {
        return Err(match kind.chars().next() {
            Some('O') => "holds Python objects, which are not read: convert them to numbers".into(),
            Some('U' | 'S') => format!("holds texts (dtype {code}), which are not read"),
            Some('V') => format!("has dtype {code}: raw bytes, as bf16 is saved; convert it to float32 in NumPy"),
            _ => format!("has dtype {code}, which Gradus does not have: convert it in NumPy, to float32 for example"),
        });
    };
    let fortran = match value(inner, "fortran_order") {
        Some(t) if t.starts_with("True") => true,
        Some(t) if t.starts_with("False") => false,
        _ => return Err(damaged("fortran_order is neither True nor False")),
    };
    let shape = value(inner, "shape").and_then(|t| t.strip_prefix('(')).and_then(|t| t.split_once(')'));
    let (shape, _) = shape.ok_or_else(|| damaged("it has no shape"))?;
    let sizes = shape.split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape = sizes.map(|s| s.trim_end_matches('L').parse().map_err(|_| damaged("a size is no number")));
    let shape = shape.take(33).collect::<Result<Vec<usize>, _>>()?;
    Ok(Header { dtype, swapped: order == ">", fortran, shape })
}
