//! [`TokenWindows`]: sections of a long list of tokens, for language models.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::Dataset;
use crate::dataset::check_index;

const OP: &str = "token_windows";

/// The size of a token in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenWidth {
    /// Two bytes, for vocabularies of up to 65,536 tokens.
    U16,
    /// Four bytes.
    U32,
}

impl TokenWidth {
    fn bytes(self) -> usize {
        match self {
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        }
    }
}

#[derive(Clone)]
enum Tokens {
    Memory(Arc<Vec<i64>>),
    File { file: Arc<Mutex<File>>, width: TokenWidth, count: usize, name: Arc<str> },
}

/// Sections of a list of tokens, each with the same section shifted by one token: the input of a language model, and
/// its targets.
///
/// Section `i` begins at token `i * stride`. A sample is two lists of `length` tokens; a batch is two i64 tensors
/// `[n, length]`.
///
/// ```
/// use gradus_data::Dataset;
/// use gradus_data::text::TokenWindows;
/// let windows = TokenWindows::new(vec![1, 2, 3, 4, 5, 6], 3, 2)?;
/// assert_eq!(windows.len(), 2);
/// assert_eq!(windows.get(1)?, (vec![3, 4, 5], vec![4, 5, 6]));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct TokenWindows {
    tokens: Tokens,
    length: usize,
    stride: usize,
    windows: usize,
}

impl TokenWindows {
    /// The sections of a list in memory. Errors if `length` or `stride` is 0, or if there are not `length + 1` tokens.
    #[track_caller]
    pub fn new(tokens: Vec<i64>, length: usize, stride: usize) -> Result<Self> {
        Self::shared(Arc::new(tokens), length, stride)
    }

    /// The sections of tokens that others use as well, without a copy. The errors are those of
    /// [`new`](TokenWindows::new).
    #[track_caller]
    pub fn shared(tokens: Arc<Vec<i64>>, length: usize, stride: usize) -> Result<Self> {
        let count = tokens.len();
        Self::of(Tokens::Memory(tokens), count, length, stride)
    }

    /// The sections of a file, each of which is read when it is requested. The file consists of tokens only, in
    /// little-endian order, as [`save_tokens`] and many programs in Python (`array.tofile`) write them.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if its size is not a multiple of the size of a token. Otherwise the errors
    /// are those of [`new`](TokenWindows::new).
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, width: TokenWidth, length: usize, stride: usize) -> Result<Self> {
        let path = path.as_ref();
        let file = crate::npy::open(path, OP, "a file of tokens")?;
        let size = file.metadata().map_err(|e| Error::io(OP, path.display(), e)).here()?.len();
        let width_bytes = width.bytes() as u64;
        if !size.is_multiple_of(width_bytes) {
            let m = format!("{} has {size} bytes, no multiple of {width_bytes}", path.display());
            return Err(Error::new(ErrorKind::Format, OP, m).help("is the file whole, and are its tokens this wide?"));
        }
        let count = usize::try_from(size / width_bytes).unwrap_or(usize::MAX);
        let name = path.display().to_string().into();
        let tokens = Tokens::File { file: Arc::new(Mutex::new(file)), width, count, name };
        Self::of(tokens, count, length, stride)
    }

    #[track_caller]
    fn of(tokens: Tokens, count: usize, length: usize, stride: usize) -> Result<Self> {
        if length == 0 || stride == 0 {
            let m = format!("sections of {length} tokens, {stride} apart");
            return Err(Error::argument(OP, m).help("both are at least 1"));
        }
        let Some(spare) = length.checked_add(1).and_then(|needed| count.checked_sub(needed)) else {
            let m = format!("{count} tokens for sections of {length} and the token after each");
            return Err(Error::argument(OP, m).help("give more tokens, or a smaller length"));
        };
        Ok(TokenWindows { tokens, length, stride, windows: spare / stride + 1 })
    }

    /// Reads `count` tokens from `start` on, which must exist.
    #[track_caller]
    fn read(&self, start: usize, count: usize) -> Result<Vec<i64>> {
        match &self.tokens {
            Tokens::Memory(tokens) => Ok(tokens[start..start + count].to_vec()),
            Tokens::File { file, width, name, .. } => {
                let size = width.bytes();
                let mut bytes = Vec::new();
                crate::memory::reserve_exact(&mut bytes, count * size, OP, name)?;
                // Reserved above.
                bytes.resize(count * size, 0); // At most the size of the file.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.seek(SeekFrom::Start((start * size) as u64)).and_then(|_| file.read_exact(&mut bytes));
                read.map_err(|e| Error::io(OP, name, e).help("was the file changed while it was read?")).here()?;
                Ok(match width {
                    TokenWidth::U16 => {
                        bytes.chunks_exact(2).map(|b| i64::from(u16::from_le_bytes([b[0], b[1]]))).collect()
                    }
                    TokenWidth::U32 => {
                        let token = |b: &[u8]| i64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                        bytes.chunks_exact(4).map(token).collect()
                    }
                })
            }
        }
    }
}

impl Dataset for TokenWindows {
    type Item = (Vec<i64>, Vec<i64>);

    fn len(&self) -> usize {
        self.windows
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<(Vec<i64>, Vec<i64>)> {
        check_index(OP, index, self.windows)?;
        let mut input = self.read(index * self.stride, self.length + 1)?;
        let target = input[1..].to_vec();
        input.pop();
        Ok((input, target))
    }
}

impl std::fmt::Debug for TokenWindows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = match &self.tokens {
            Tokens::Memory(tokens) => tokens.len(),
            Tokens::File { count, .. } => *count,
        };
        write!(f, "TokenWindows({} of {} tokens, of {count})", self.windows, self.length)
    }
}

/// Writes tokens to a file for [`TokenWindows::open`]. It appears whole or not at all. Errors if a token does not fit into
/// the width.
#[track_caller]
pub fn save_tokens(path: impl AsRef<Path>, tokens: &[i64], width: TokenWidth) -> Result<()> {
    let path = path.as_ref();
    let most = if width == TokenWidth::U16 { i64::from(u16::MAX) } else { i64::from(u32::MAX) };
    if let Some(at) = tokens.iter().position(|t| !(0..=most).contains(t)) {
        let m = format!("token {at} is {}; {} bytes hold 0 to {most}", tokens[at], width.bytes());
        return Err(Error::argument("save_tokens", m).help("use a larger width"));
    }
    gradus_file::write("save_tokens", path, true, |out| {
        let put = |token: &i64| out.write_all(&token.to_le_bytes()[..width.bytes()]);
        tokens.iter().try_for_each(put).map_err(|e| gradus_file::failed("save_tokens", path, e))
    })
}
