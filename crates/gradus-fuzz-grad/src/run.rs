//! Runs one program on both sides, statement by statement, and compares them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gradus_tensor::{Error, ErrorKind, Tensor};

use crate::counts::{Counts, Feature};
use crate::effects::GUARDED;
use crate::model::{Freed, Ground, Outcome, Reference};
use crate::passes::Expected;
use crate::program::{Name, Program, Slot, Statement};
use crate::subject::{Planted, Subject};

/// A disagreement: the library is wrong, or the reference is.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The kind of mistake. A reduced program must fail with the same kind.
    pub kind: &'static str,
    /// A description of the disagreement.
    pub message: String,
    /// The first line of the library's error, without numbers. A reduced program must fail with the same cause.
    pub cause: String,
}

impl Failure {
    pub(crate) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into(), cause: String::new() }
    }

    /// The failure for an error of the library that should not occur.
    fn error(kind: &'static str, what: &str, e: &Error) -> Self {
        let text = e.to_string();
        let cause = text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_numeric()).collect();
        Failure { kind, message: format!("{what}\n{text}"), cause }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// How programs are run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// A mistake planted in the library's side.
    pub planted: Option<Planted>,
    /// Whether to print both sides of every statement.
    pub trace: bool,
}

/// Above this magnitude, rounding errors cannot be told from mistakes.
const LARGEST: f64 = 1e4;
/// The largest relative difference that rounding may cause.
const ROUNDING: f64 = 1e-9;

/// Part of the error message for a pass over a freed graph.
const FREED: &str = "the graph was freed";

/// Why a program ends before its last statement.
enum Stop {
    Failed(Failure),
    /// Numbers cannot be compared, or an error has left the sides in different states.
    Enough,
}

struct Both {
    reference: Reference,
    subject: Subject,
    counts: Counts,
    options: Options,
}

/// Runs a program on both sides and counts its features. If it is marked `twice`, two threads run it at once.
pub(crate) fn run(program: &Program, options: Options) -> Result<Counts, Failure> {
    let one = || {
        catch_unwind(AssertUnwindSafe(|| alone(program, options))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            Err(Failure { cause: text.to_string(), ..Failure::new("panic", text) })
        })
    };
    if !program.twice {
        return one();
    }
    let (own, other) = std::thread::scope(|scope| {
        let other = scope.spawn(one);
        (one(), other.join())
    });
    let lost = |_| Err(Failure::new("panic", "a thread was lost"));
    other.unwrap_or_else(lost)?;
    own.map(|mut counts| {
        counts.has(Feature::Threads);
        counts
    })
}

fn alone(program: &Program, options: Options) -> Result<Counts, Failure> {
    let subject = Subject::new(options.planted);
    let mut both = Both { reference: Reference::new(), subject, counts: Counts::default(), options };
    match both.all(&program.statements) {
        Err(Stop::Failed(failure)) => return Err(failure),
        Err(Stop::Enough) => {}
        Ok(()) => both.compare_tensors()?,
    }
    both.counts.programs = 1;
    if both.counts.gradients == 0 {
        both.counts.has(Feature::Nothing);
    }
    Ok(both.counts)
}

fn fail<T>(kind: &'static str, message: String) -> Result<T, Stop> {
    Err(Stop::Failed(Failure::new(kind, message)))
}

/// The failure for an error that should not occur.
fn unexpected(s: &Statement, e: &Error) -> Stop {
    Stop::Failed(Failure::error("unexpected error", &format!("`{}` gave", text(s)), e))
}

/// The statement as text.
fn text(s: &Statement) -> String {
    Program { statements: vec![s.clone()], twice: false }.to_string()
}

/// Whether an error says that a value was overwritten.
fn is_overwritten(e: &Error) -> bool {
    *e.kind() == ErrorKind::Autograd && (e.message().contains("overwrote") || e.message().contains("overwritten"))
}

/// Whether an error says that a region wrote into a tensor that outlives it.
fn outlives(e: &Error) -> bool {
    *e.kind() == ErrorKind::Autograd && e.message().contains("wrote into a tensor that outlives the region")
}

impl Both {
    fn all(&mut self, statements: &[Statement]) -> Result<(), Stop> {
        for s in statements {
            self.statement(s)?;
            if self.reference.tape.undecided {
                self.counts.has(Feature::Undecided);
                return Err(Stop::Enough);
            }
            if self.reference.tape.largest > LARGEST {
                self.counts.has(Feature::Large);
                return Err(Stop::Enough);
            }
        }
        Ok(())
    }

    fn statement(&mut self, s: &Statement) -> Result<(), Stop> {
        if s.name.is_mode() {
            self.counts.statement(s);
            let before = self.reference.enter(s.name);
            let guard = self.subject.guard(s.name);
            let done = self.all(&s.body);
            drop(guard);
            self.reference.mode = before;
            return done;
        }
        let done = match s.name {
            name if name.is_write() => self.write(s)?,
            name if name.is_pass() => self.pass(s)?,
            Name::Hook | Name::Before | Name::After | Name::Unhook => self.hook(s)?,
            _ => self.value(s)?,
        };
        self.counts.statements += u64::from(done);
        if !done {
            self.counts.left_out += 1;
            self.counts.passes_left_out += u64::from(s.name.is_pass());
            self.trace(s, "left out: operands are missing or do not fit");
        }
        Ok(())
    }

    fn trace(&self, s: &Statement, what: impl fmt::Display) {
        if self.options.trace {
            println!("{}\n    {what}", text(s));
        }
    }

    /// The library chooses the layout of new tensors, and the reference adopts it.
    fn lay_out(&mut self, s: &Statement) {
        for &out in &s.outs {
            if let Ok(t) = self.subject.tensor(out) {
                self.reference.lay_out(out, t.layout().positions());
            }
        }
    }

    /// Runs a statement that defines tensors.
    fn value(&mut self, s: &Statement) -> Result<bool, Stop> {
        let (may_refuse, must_refuse, body) = match self.reference.step(s) {
            Outcome::Skip | Outcome::Refuse(_) => return Ok(false),
            Outcome::Done { may_refuse } => (may_refuse, false, None),
            Outcome::Region { body, refuse, may_refuse } => (may_refuse, refuse, Some(body)),
        };
        self.counts.statement(s);
        let found = match body {
            None => self.subject.run(s),
            Some(body) => self.subject.run(&Statement { body, ..s.clone() }),
        };
        let used = if may_refuse { " of an overwritten tensor" } else { "" };
        match found {
            Ok(()) if must_refuse => {
                fail("missing error", format!("`{}` writes into what outlives it, and was not refused", text(s)))
            }
            Ok(()) => {
                self.lay_out(s);
                s.outs.iter().try_for_each(|&out| self.check(s, out))?;
                Ok(true)
            }
            Err(e) if must_refuse && (outlives(&e) || may_refuse && is_overwritten(&e)) => {
                self.counts.has(Feature::WriteOutlives);
                self.trace(s, format!("both refuse:\n{e}"));
                // If the error came before the last write, the two sides have different numbers.
                let early = may_refuse || s.body.iter().any(|b| b.name == Name::Checkpoint);
                if early { Err(Stop::Enough) } else { Ok(true) }
            }
            Err(e) if may_refuse && is_overwritten(&e) => {
                self.counts.has(Feature::StaleUse);
                self.counts.stale_uses += 1;
                self.trace(s, format!("gradus refuses the use{used}:\n{e}"));
                s.outs.iter().for_each(|&out| self.reference.forget(out));
                if s.name == Name::Checkpoint { Err(Stop::Enough) } else { Ok(true) }
            }
            Err(e) => Err(Stop::Failed(Failure::error("unexpected error", &format!("`{}`{used} gave", text(s)), &e))),
        }
    }

    /// Checks the shape of a tensor, whether it is tracked, and whether it shares memory with the operands.
    fn check(&mut self, s: &Statement, out: Slot) -> Result<(), Stop> {
        let Some(want) = self.reference.handle(out) else { return Ok(()) };
        if want.at.is_empty() {
            self.counts.has(Feature::Empty);
        }
        let found = self.subject.tensor(out).map_err(|e| unexpected(s, &e))?;
        let numbers = found.to_vec::<f64>().unwrap_or_default();
        self.trace(s, format!("reference {:?}\n    gradus    {numbers:?}", self.reference.numbers(want)));
        if found.shape() != want.shape {
            return fail("wrong shape", format!("`{}`: {:?}, not {:?}", text(s), found.shape(), want.shape));
        }
        if found.requires_grad() != want.tracked {
            let m =
                format!("`{}`: %{out} requires a gradient: {}, not {}", text(s), found.requires_grad(), want.tracked);
            return fail("wrongly tracked", m);
        }
        for &of in s.of.iter().filter(|_| s.name != Name::Checkpoint) {
            let (Some(source), Ok(tensor)) = (self.reference.handle(of), self.subject.tensor(of)) else { continue };
            let (shares, shall) = (Arc::ptr_eq(tensor.storage(), found.storage()), source.storage == want.storage);
            if shares != shall {
                return fail("wrong memory", format!("`{}`: %{out} shares memory with %{of}: {shares}", text(s)));
            }
        }
        Ok(())
    }

    fn write(&mut self, s: &Statement) -> Result<bool, Stop> {
        let outcome = self.reference.check_write(s);
        if let Outcome::Skip = outcome {
            return Ok(false);
        }
        self.counts.statement(s);
        let (refuse, may_refuse) = match outcome {
            Outcome::Refuse(why) => (Some(why), false),
            Outcome::Done { may_refuse } => (None, may_refuse),
            _ => (None, false),
        };
        match self.subject.run(s) {
            Ok(()) if refuse.is_some() => fail("missing error", format!("`{}` was not refused", text(s))),
            Ok(()) => {
                self.reference.write(s);
                self.trace(s, "written");
                Ok(true)
            }
            Err(e) if refuse.is_some_and(|why| e.message().contains(why)) => {
                self.counts.has(if refuse == Some(GUARDED) { Feature::Guarded } else { Feature::WriteRefused });
                self.trace(s, format!("both refuse:\n{e}"));
                Ok(true)
            }
            Err(e) if may_refuse && e.message().contains(GUARDED) => {
                self.counts.has(Feature::Guarded);
                self.trace(s, format!("gradus refuses a write over what a graph may need:\n{e}"));
                Ok(true)
            }
            Err(e) => Err(unexpected(s, &e)),
        }
    }

    fn hook(&mut self, s: &Statement) -> Result<bool, Stop> {
        if let Outcome::Skip = self.reference.hook(s) {
            return Ok(false);
        }
        self.counts.statement(s);
        match self.subject.hook(s) {
            Ok(()) => Ok(true),
            Err(e) => Err(unexpected(s, &e)),
        }
    }

    fn pass(&mut self, s: &Statement) -> Result<bool, Stop> {
        let Some(expected) = self.reference.expect(s) else { return Ok(false) };
        self.counts.statement(s);
        self.counts.passes += 1;
        let mut found = None;
        let results = self.subject.pass(s, &expected.inputs).map_err(|e| unexpected(s, &e))?;
        let several = results.len() > 1;
        let freed = |r: &Result<_, Error>| r.as_ref().is_err_and(|e| e.message().contains(FREED));
        if several && expected.freed == Freed::No && results.iter().all(freed) {
            return fail("false alarm", format!("`{}`: nothing was freed, and no thread came through", text(s)));
        }
        for result in results {
            match result {
                Ok(gradients) => {
                    self.right(s, &expected, &gradients)?;
                    found = Some(gradients);
                }
                Err(e) => self.founded(s, &expected, &e, several)?,
            }
        }
        if expected.ambiguous {
            self.counts.has(Feature::Ambiguous);
            return Err(Stop::Enough);
        }
        match found {
            Some(gradients) => {
                let defined = self.subject.define_gradients(s, &expected.inputs, &gradients);
                defined.map_err(|e| unexpected(s, &e))?;
                let tracked: Vec<bool> =
                    s.outs.iter().map(|&o| self.subject.tensor(o).is_ok_and(Tensor::requires_grad)).collect();
                let moving = if s.name == Name::GradCreate { self.reference.moving(&expected) } else { vec![] };
                if let Some(i) = (0..moving.len()).find(|&i| moving[i] && !tracked[i]) {
                    let m = format!("`{}`: %{} depends on a leaf, and is not tracked", text(s), s.outs[i]);
                    return fail("severed graph", m);
                }
                self.reference.passed(s, expected, &tracked);
                self.lay_out(s);
            }
            None => self.reference.failed(s, &expected),
        }
        Ok(true)
    }

    /// Checks that the gradients match those of the reference.
    fn right(&mut self, s: &Statement, expected: &Expected, found: &[Option<Tensor>]) -> Result<(), Stop> {
        let (tape, want) = (&self.reference.tape, &expected.gradients);
        if tape.largest > LARGEST || tape.undecided || expected.ambiguous {
            return Ok(());
        }
        if expected.freed == Freed::Yes {
            return fail("missing error", format!("`{}`: the graph was freed, and gave gradients", text(s)));
        }
        if expected.strict {
            return fail("missing error", format!("`{}`: a strict operation has lost an input", text(s)));
        }
        let scale = want.iter().flatten().flatten().fold(1.0f64, |m, v| m.max(v.abs()));
        for ((input, want), g) in expected.inputs.iter().zip(want).zip(found) {
            let got = match g.as_ref().map(Tensor::to_vec::<f64>) {
                Some(Ok(got)) => Some(got),
                Some(Err(e)) => return Err(unexpected(s, &e)),
                None => None,
            };
            let n = want.as_ref().or(got.as_ref()).map_or(0, Vec::len);
            let zeros = vec![0.0; n];
            let (a, b) = (want.as_ref().unwrap_or(&zeros), got.as_ref().unwrap_or(&zeros));
            self.counts.numbers += n as u64;
            self.trace(s, format!("for %{input}: reference {want:?}\n             gradus {got:?}"));
            if !close(a, b, scale) {
                let m = format!("`{}` for %{input}\n  reference {want:?}\n  gradus    {got:?}", text(s));
                return fail("wrong gradient", m);
            }
        }
        self.counts.gradients += expected.inputs.len() as u64;
        if self.reference.goes_through_a_pass(expected) && want.iter().flatten().flatten().any(|&v| v != 0.0) {
            self.counts.has(Feature::Double);
        }
        if expected.between {
            self.counts.has(Feature::Between);
        }
        if expected.spared {
            self.counts.has(Feature::Spared);
        }
        Ok(())
    }

    /// Checks that an error of a pass has a reason.
    fn founded(&mut self, s: &Statement, expected: &Expected, e: &Error, several: bool) -> Result<(), Stop> {
        self.trace(
            s,
            format!("gradus gives an error; overwritten: {:?}, freed: {:?}\n{e}", expected.ground, expected.freed),
        );
        let frees = several && s.name == Name::Grad;
        if e.message().contains(FREED) {
            self.counts.has(Feature::FreedError);
            self.counts.freed_errors += 1;
            return match expected.freed {
                Freed::No if !frees => fail("false alarm", format!("`{}`: nothing was freed\n{e}", text(s))),
                _ => Ok(()),
            };
        }
        if !is_overwritten(e) {
            return Err(unexpected(s, e));
        }
        if expected.strict {
            self.counts.has(Feature::StrictError);
        }
        match expected.ground {
            Ground::None => {
                let what = format!("`{}`: no value that it needs was touched", text(s));
                Err(Stop::Failed(Failure::error("false alarm", &what, e)))
            }
            Ground::Beside => {
                self.counts.has(Feature::Beside);
                self.counts.beside += 1;
                Ok(())
            }
            Ground::Element => {
                self.counts.has(Feature::StaleError);
                self.counts.stale_errors += 1;
                Ok(())
            }
        }
    }

    /// Checks that all tensors hold the values that the reference expects.
    fn compare_tensors(&mut self) -> Result<(), Failure> {
        for slot in 0..self.reference.handles.len() as Slot {
            let Some(h) = self.reference.handle(slot) else { continue };
            let want = self.reference.numbers(h);
            let got = match self.subject.tensor(slot).and_then(Tensor::to_vec::<f64>) {
                Ok(got) => got,
                Err(e) => return Err(Failure::error("unexpected error", &format!("%{slot} at the end"), &e)),
            };
            let scale = want.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
            if !close(&want, &got, scale) {
                let message = format!("%{slot} at the end\n  reference {want:?}\n  gradus    {got:?}");
                return Err(Failure::new("wrong value", message));
            }
        }
        Ok(())
    }
}

fn close(a: &[f64], b: &[f64], scale: f64) -> bool {
    let near = |(x, y): (&f64, &f64)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= ROUNDING * scale;
    a.len() == b.len() && a.iter().zip(b).all(near)
}
