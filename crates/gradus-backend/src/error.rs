//! The one error type, for mistakes of a user, bad files and failing devices.

mod facts;
mod here;
mod user;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::DType;

pub use facts::{FailedLayer, FailedOperand, MismatchLines, VersionMismatch};
pub use here::{Here, line_of_call, with_line_of_call};
pub use user::is_of_user;

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

#[derive(Debug, Clone)]
struct Report {
    kind: ErrorKind,
    op: String,
    message: String,
    operands: Vec<FailedOperand>,
    layer: Option<(FailedLayer, (usize, &'static str))>,
    location: Option<&'static Location<'static>>,
    /// Whether an earlier call failed than the one that returns the error.
    late: bool,
    mismatch: Option<VersionMismatch>,
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
///   in head.2 (Classifier)
///   at src/model.rs:31:14
///   help: rhs looks like a weight stored [out, in]; use rhs.t()? or x.linear(&weight, bias)
/// ```
/// The line is that of the user's call. The layer, if there is one, is named as in `named_parameters`.
///
/// To react to an error, match on its [`kind`](Error::kind). The parts of its message are available as data:
///
/// ```
/// # use gradus_backend::{DType, Error, ErrorKind};
/// # let matmul = || Error::shape("matmul", "..").operand("lhs", &[32, 784], DType::F32, "cpu").operand("rhs", &[512, 784], DType::F32, "cpu");
/// let e = matmul(); // as `a.matmul(&b)` gives it
/// assert_eq!(e.kind(), &ErrorKind::ShapeMismatch);
/// assert_eq!(e.op(), "matmul");
/// assert_eq!(e.operands()[1].name, "rhs");
/// assert_eq!(e.operands()[1].shape, [512, 784]);
/// assert_eq!(e.location().unwrap().file(), file!());
/// assert!(e.layer().is_none()); // it was no forward pass
/// assert!(e.version_mismatch().is_none()); // nothing was written over
/// ```
///
/// In your own `#[track_caller]` functions, call [`here`](Here::here) on the result of a closure to give its error the line
/// of the function's caller.
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
    #[track_caller]
    pub fn new(kind: ErrorKind, op: impl Into<String>, message: impl Into<String>) -> Self {
        let report = Report {
            kind,
            op: op.into(),
            message: message.into(),
            operands: Vec::new(),
            layer: None,
            location: None,
            late: false,
            mismatch: None,
            notes: Vec::new(),
            help: None,
            source: None,
        };
        Self { report: Box::new(report) }.at(Location::caller())
    }

    /// Shorthand for an [`ErrorKind::InvalidArgument`].
    #[cold]
    #[track_caller]
    pub fn argument(op: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, op, message)
    }

    /// Shorthand for an [`ErrorKind::ShapeMismatch`].
    #[cold]
    #[track_caller]
    pub fn shape(op: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ShapeMismatch, op, message)
    }

    /// Shorthand for an [`ErrorKind::UnsupportedDType`].
    #[cold]
    #[track_caller]
    pub fn dtype(op: impl Into<String>, dtype: DType, wanted: &str) -> Self {
        Self::new(ErrorKind::UnsupportedDType, op, format!("not defined for {dtype}; it takes {wanted}"))
    }

    /// An [`ErrorKind::Io`] error about `path`.
    #[cold]
    #[track_caller]
    pub fn io(op: impl Into<String>, path: impl fmt::Display, source: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, op, format!("{path}: {source}")).with_source(source)
    }

    /// Adds a line that shows one operand.
    #[must_use]
    pub fn operand(mut self, name: &str, shape: &[usize], dtype: DType, device: impl fmt::Display) -> Self {
        let (name, shape, device) = (name.to_owned(), shape.to_vec(), device.to_string());
        self.report.operands.push(FailedOperand { name, shape, dtype, device });
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

    /// Says which value was written over, and by whom.
    #[must_use]
    pub fn with_version_mismatch(mut self, mismatch: VersionMismatch) -> Self {
        self.report.mismatch = Some(mismatch);
        self
    }

    /// Sets the layer in which it happened, replacing an earlier one, and the place (address and type) of the module that
    /// the path starts at.
    #[doc(hidden)]
    #[must_use]
    pub fn in_layer(mut self, layer: FailedLayer, place: (usize, &'static str)) -> Self {
        self.report.layer = Some((layer, place));
        self
    }

    /// The place that was given with the layer.
    #[doc(hidden)]
    pub fn layer_place(&self) -> Option<(usize, &'static str)> {
        self.report.layer.as_ref().map(|(_, place)| *place)
    }

    /// Sets the line of the call that failed, if none is known yet.
    #[must_use]
    pub fn at(mut self, line: &'static Location<'static>) -> Self {
        self.locate(line);
        self
    }

    /// Says that a call failed which returned long before the one that returns this error; `line` is that of the call that
    /// failed, if it is known, and stays.
    #[must_use]
    pub fn late(mut self, line: Option<&'static Location<'static>>) -> Self {
        (self.report.location, self.report.late) = (line, true);
        self
    }

    /// Replaces the line by this one, or by none if it is a line of Gradus. For errors of backends, whose own line, wherever
    /// the backend was written, is not the user's call.
    #[cold]
    pub fn relocate(&mut self, line: &'static Location<'static>) {
        if !self.report.late {
            self.report.location = is_of_user(line).then_some(line);
        }
    }

    /// The same error without its line.
    pub(crate) fn without_line(mut self) -> Self {
        self.report.location = None;
        self
    }

    /// Sets the line of the call that failed, if none is known yet and this one is not a line of Gradus.
    #[cold]
    fn locate(&mut self, line: &'static Location<'static>) {
        if self.report.location.is_none() && !self.report.late && is_of_user(line) {
            self.report.location = Some(line);
        }
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

    /// The line of the user's code that made the call. `None` if the call was made by code without a known line:
    /// `map(Tensor::exp)` gives `None`, `map(|t| t.exp())` the line of the closure.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.report.location
    }

    /// The layer whose forward pass failed; `None` outside of one.
    pub fn layer(&self) -> Option<&FailedLayer> {
        self.report.layer.as_ref().map(|(layer, _)| layer)
    }

    /// The operands that it shows.
    pub fn operands(&self) -> &[FailedOperand] {
        &self.report.operands
    }

    /// Which value that a gradient needs was written over, and by whom; `None` for an error of another kind.
    pub fn version_mismatch(&self) -> Option<&VersionMismatch> {
        self.report.mismatch.as_ref()
    }

    fn render(&self) -> String {
        use fmt::Write;
        let r = &self.report;
        let mut s = format!("{}: {}", r.op, r.message);
        let rows: Vec<[String; 4]> = r.operands.iter().map(FailedOperand::columns).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let (names, shapes, dtypes) = (width(0), width(1), width(2));
        for [name, shape, dtype, device] in &rows {
            let _ = write!(s, "\n  {name:names$}  {shape:shapes$}  {dtype:dtypes$}  {device}");
        }
        if let Some((layer, _)) = &r.layer {
            let _ = write!(s, "\n  in {layer}");
        }
        if let Some(line) = r.location {
            let _ = write!(s, "\n  at {line}");
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
