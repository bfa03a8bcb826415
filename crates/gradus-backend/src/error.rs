//! The one error type of Gradus, for user mistakes, bad files and failing devices.

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

/// The kind of failure; match on it to react to an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes that have to agree do not agree.
    ShapeMismatch,
    /// Shapes that cannot be broadcast together.
    Broadcast,
    /// An axis is outside the rank, or named twice.
    InvalidAxis,
    /// An argument is outside its domain.
    InvalidArgument,
    /// Operands that must have the same dtype have different ones.
    DTypeMismatch,
    /// The operation is not defined for this dtype.
    UnsupportedDType,
    /// Operands live on different devices.
    DeviceMismatch,
    /// An index is outside the axis that it indexes.
    IndexOutOfBounds {
        /// Position of the index among the indices, in row-major order.
        pos: usize,
        /// The index itself.
        index: i64,
        /// Size of the axis.
        size: usize,
    },
    /// A size or a number is too large to represent.
    Overflow,
    /// The memory budget or the device's memory is exhausted.
    OutOfMemory {
        /// Number of bytes requested.
        requested: usize,
    },
    /// A backend received a strided view where it requires a contiguous one; this never reaches a user.
    NotContiguous,
    /// The backend does not offer the operation.
    Unsupported,
    /// The device failed or was lost.
    Backend,
    /// A gradient cannot be computed correctly.
    Autograd,
    /// A file could not be read or written.
    Io,
    /// The contents of a file do not conform to its format.
    Format,
    /// Another process of a distributed program died, stalled, left, or made another call than this one.
    Peer,
}

#[derive(Debug, Clone)]
struct Report {
    kind: ErrorKind,
    op: String,
    message: String,
    operands: Vec<FailedOperand>,
    layer: Option<(FailedLayer, (usize, &'static str))>,
    location: Option<&'static Location<'static>>,
    /// Whether the call that failed came before the call that returns the error.
    late: bool,
    mismatch: Option<VersionMismatch>,
    notes: Vec<String>,
    help: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Drops a chain of errors, each the source of the previous one, in a loop, so that a long chain does not overflow the
/// stack.
impl Drop for Report {
    fn drop(&mut self) {
        let mut next = self.source.take();
        while let Some(mut source) = next {
            let inner = Arc::get_mut(&mut source).and_then(|e| e.downcast_mut::<Error>());
            next = inner.and_then(|e| e.report.source.take());
        }
    }
}

/// The error type of every fallible Gradus call. It reports which operation failed, on which operands, what is wrong
/// and what to do about it:
/// ```text
/// matmul: inner dimensions differ: 784 != 512
///   lhs  [32, 784]   f32  cpu
///   rhs  [512, 784]  f32  cpu
///   in head.2 (Classifier)
///   at src/model.rs:31:14
///   help: rhs looks like a weight stored [out, in]; use rhs.t()? or x.linear(&weight, bias)
/// ```
/// `at` shows the line of the user's call, and `in` the layer, under the name that `named_parameters` uses.
///
/// To react to an error, match on its [`kind`](Error::kind). The parts of the message are also available as data:
///
/// ```
/// # use gradus_backend::{DType, Error, ErrorKind};
/// # let matmul = || Error::shape("matmul", "..").operand("lhs", &[32, 784], DType::F32, "cpu").operand("rhs", &[512, 784], DType::F32, "cpu");
/// let e = matmul(); // as `a.matmul(&b)` returns it
/// assert_eq!(e.kind(), &ErrorKind::ShapeMismatch);
/// assert_eq!(e.op(), "matmul");
/// assert_eq!(e.operands()[1].name, "rhs");
/// assert_eq!(e.operands()[1].shape, [512, 784]);
/// assert_eq!(e.location().unwrap().file(), file!());
/// assert!(e.layer().is_none()); // no forward pass was running
/// assert!(e.version_mismatch().is_none()); // no saved value was overwritten
/// ```
///
/// In your own `#[track_caller]` functions, call [`here`](Here::here) on the result of a closure so that its error
/// points to the line of the function's caller.
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

    /// Stores the underlying error, for [`std::error::Error::source`].
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.report.source = Some(Arc::new(source));
        self
    }

    /// Records which value was overwritten, and by which operation.
    #[must_use]
    pub fn with_version_mismatch(mut self, mismatch: VersionMismatch) -> Self {
        self.report.mismatch = Some(mismatch);
        self
    }

    /// Sets the layer in which the error happened, replacing any earlier one. `place` is the address and the type of
    /// the module at which the layer's path starts.
    #[doc(hidden)]
    #[must_use]
    pub fn in_layer(mut self, layer: FailedLayer, place: (usize, &'static str)) -> Self {
        self.report.layer = Some((layer, place));
        self
    }

    /// The place that was passed with the layer.
    #[doc(hidden)]
    pub fn layer_place(&self) -> Option<(usize, &'static str)> {
        self.report.layer.as_ref().map(|(_, place)| *place)
    }

    /// Sets the line of the failed call, unless a line is already known.
    #[must_use]
    pub fn at(mut self, line: &'static Location<'static>) -> Self {
        self.locate(line);
        self
    }

    /// Marks the error as late: the call that failed returned long before the one that returns this error. `line` is
    /// the line of the failed call, if known; later calls do not replace it.
    #[must_use]
    pub fn late(mut self, line: Option<&'static Location<'static>>) -> Self {
        (self.report.location, self.report.late) = (line, true);
        self
    }

    /// Replaces the line with `line`, or with none if `line` lies inside Gradus. A late error keeps its line. This is
    /// for errors from backends: the line at which a backend created its error is never the user's call, even if the
    /// backend is written outside Gradus.
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

    /// Sets the line of the failed call, unless a line is already known or this one lies inside Gradus.
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

    /// The message, without the operands and the help.
    pub fn message(&self) -> &str {
        &self.report.message
    }

    /// The line of the user's code that made the call. `None` if the line is not known: `map(Tensor::exp)` yields
    /// `None`, while `map(|t| t.exp())` yields the line of the closure.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.report.location
    }

    /// The layer whose forward pass failed; `None` if the error happened outside any forward pass.
    pub fn layer(&self) -> Option<&FailedLayer> {
        self.report.layer.as_ref().map(|(layer, _)| layer)
    }

    /// The operands that the message shows.
    pub fn operands(&self) -> &[FailedOperand] {
        &self.report.operands
    }

    /// If a gradient failed because a value that it needs was overwritten: that value and the operation that overwrote
    /// it. `None` for other errors.
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

/// `Debug` shows the rendered message, so that `unwrap` and `main() -> Result` print it readably.
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
