//! One error type for everything that a user, a file or a device can make go wrong.

use std::fmt;
use std::sync::Arc;

use crate::{DType, Shape};

/// `Result` with the Gradus [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure this is; match on it to react to an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes that have to agree do not.
    ShapeMismatch,
    /// Shapes that cannot be broadcast together.
    Broadcast,
    /// An axis outside the rank, or named twice.
    InvalidAxis,
    /// An argument outside its domain.
    InvalidArgument,
    /// Operands of different dtypes where one is needed.
    DTypeMismatch,
    /// The operation is not defined for this dtype.
    UnsupportedDType,
    /// Operands live on different devices.
    DeviceMismatch,
    /// An index outside the axis that it indexes.
    IndexOutOfBounds {
        /// Position of the index among the indices, in row-major order.
        pos: usize,
        /// The index itself.
        index: i64,
        /// Size of the axis.
        size: usize,
    },
    /// A size or a number does not fit.
    Overflow,
    /// The memory budget, or the device's memory, is exhausted.
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
    },
    /// A backend was handed a strided view where it needs a contiguous one; never reaches a user.
    NotContiguous,
    /// The backend does not offer the operation.
    Unsupported,
    /// The device failed or was lost.
    Backend,
    /// A gradient cannot be computed correctly.
    Autograd,
    /// A file could not be read or written.
    Io,
    /// A file's contents are not what its format demands.
    Format,
}

/// An operand as an error shows it.
#[derive(Debug, Clone)]
struct Operand {
    name: String,
    shape: String,
    dtype: String,
    device: String,
}

#[derive(Debug, Clone)]
struct Report {
    kind: ErrorKind,
    op: String,
    message: String,
    operands: Vec<Operand>,
    notes: Vec<String>,
    help: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Iterative, so that a chain of errors, each the source of the next, is dropped whatever its length.
impl Drop for Report {
    fn drop(&mut self) {
        let mut next = self.source.take();
        while let Some(mut source) = next {
            let inner = Arc::get_mut(&mut source).and_then(|e| e.downcast_mut::<Error>());
            next = inner.and_then(|e| e.report.source.take());
        }
    }
}

/// The error of every fallible Gradus call. It says what was asked, with which operands, which part is wrong and what to do:
/// ```text
/// matmul: inner dimensions differ: 784 != 512
///   lhs  [32, 784]   f32  cpu
///   rhs  [512, 784]  f32  cpu
///   help: rhs looks like a weight stored [out, in]; use rhs.t()? or x.linear(&weight, bias)
/// ```
/// To react to one, match on its [`kind`](Error::kind).
#[derive(Clone)]
pub struct Error {
    report: Box<Report>,
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.report.source.as_deref().map(|e| e as _)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render())
    }
}

impl Error {
    /// An error of `kind`, raised by the operation `op`.
    #[cold]
    pub fn new(kind: ErrorKind, op: impl Into<String>, message: impl Into<String>) -> Self {
        let report = Report {
            kind,
            op: op.into(),
            message: message.into(),
            operands: Vec::new(),
            notes: Vec::new(),
            help: None,
            source: None,
        };
        Self { report: Box::new(report) }
    }

    /// Shorthand for an [`ErrorKind::InvalidArgument`].
    #[cold]
    pub fn argument(op: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, op, message)
    }

    /// Shorthand for an [`ErrorKind::ShapeMismatch`].
    #[cold]
    pub fn shape(op: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ShapeMismatch, op, message)
    }

    /// Shorthand for an [`ErrorKind::UnsupportedDType`].
    #[cold]
    pub fn dtype(op: impl Into<String>, dtype: DType, wanted: &str) -> Self {
        Self::new(ErrorKind::UnsupportedDType, op, format!("not defined for {dtype}; it takes {wanted}"))
    }

    /// An [`ErrorKind::Io`] error about `path`.
    #[cold]
    pub fn io(op: impl Into<String>, path: impl fmt::Display, source: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, op, format!("{path}: {source}")).with_source(source)
    }

    /// Adds a line that shows one operand.
    #[must_use]
    pub fn operand(mut self, name: &str, shape: &[usize], dtype: DType, device: impl fmt::Display) -> Self {
        self.report.operands.push(Operand {
            name: name.to_owned(),
            shape: Shape::display(shape).to_string(),
            dtype: dtype.to_string(),
            device: device.to_string(),
        });
        self
    }

    /// Adds a line of explanation.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.report.notes.push(note.into());
        self
    }

    /// Adds the line that says what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.report.help = Some(help.into());
        self
    }

    /// Keeps the error underneath, for [`std::error::Error::source`].
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.report.source = Some(Arc::new(source));
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.report.kind
    }

    /// The operation that failed.
    pub fn op(&self) -> &str {
        &self.report.op
    }

    /// The message, without operands and help.
    pub fn message(&self) -> &str {
        &self.report.message
    }

    fn render(&self) -> String {
        use fmt::Write;
        let r = &self.report;
        let mut s = format!("{}: {}", r.op, r.message);
        let width = |f: fn(&Operand) -> &str| r.operands.iter().map(|o| f(o).len()).max().unwrap_or(0);
        let (names, shapes, dtypes) = (width(|o| &o.name), width(|o| &o.shape), width(|o| &o.dtype));
        for o in &r.operands {
            let _ = write!(s, "\n  {:names$}  {:shapes$}  {:dtypes$}  {}", o.name, o.shape, o.dtype, o.device);
        }
        for note in &r.notes {
            let _ = write!(s, "\n  {note}");
        }
        if let Some(help) = &r.help {
            let _ = write!(s, "\n  help: {help}");
        }
        s
    }
}

/// `Debug` is the rendered message, so that `unwrap` and `main() -> Result` show it readably.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}] {}", self.report.kind, self.render())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_shows_operands_in_columns_and_help_last() {
        let e = Error::shape("matmul", "inner dimensions differ")
            .operand("lhs", &[32, 784], DType::F32, "cpu")
            .operand("rhs", &[512, 784], DType::F32, "cpu")
            .help("use rhs.t()?");
        let want = "matmul: inner dimensions differ\n  lhs  [32, 784]   f32  cpu\n  rhs  [512, 784]  f32  cpu\n  help: use rhs.t()?";
        assert_eq!(e.to_string(), want);
        assert_eq!(e.kind(), &ErrorKind::ShapeMismatch);
    }

    #[test]
    fn the_error_underneath_is_kept() {
        let e = Error::io("load", "weights", std::io::Error::from(std::io::ErrorKind::NotFound));
        let source = std::error::Error::source(&e).unwrap();
        assert_eq!(source.downcast_ref::<std::io::Error>().unwrap().kind(), std::io::ErrorKind::NotFound);
    }
}
