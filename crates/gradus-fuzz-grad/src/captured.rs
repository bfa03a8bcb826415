//! Random programs as captured steps: each program is a step whose replays must leave the bits that eager calls leave.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradus_graph::{MemoryLimit, capture};
use gradus_tensor::{Error, Result, Tensor};

use crate::arrays::numel;
use crate::library::device;
use crate::program::{Name, Program, Slot, Statement, values, visit};
use crate::run::Failure;
use crate::subject::Subject;

/// The number of calls: two are traced, and the others are replays.
const CALLS: i64 = 4;

/// A part of the error of steps that cannot be replayed, because they read indices on the host.
const REFUSED: &str = "read on the host";

/// What running programs as steps found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Captured {
    /// Programs that were replayed.
    pub replayed: u64,
    /// Replays whose results were compared.
    pub replays: u64,
    /// Programs that were refused, because they read indices on the host.
    pub refused: u64,
}

impl Captured {
    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Captured) {
        self.replayed += other.replayed;
        self.replays += other.replays;
        self.refused += other.refused;
    }
}

/// Runs a program both as a captured step and eagerly, with different values in its leaves for each call.
pub(crate) fn run(program: &Program) -> std::result::Result<Captured, Failure> {
    let all = AssertUnwindSafe(|| alone(program));
    catch_unwind(all).unwrap_or_else(|_| Err(Failure::new("panic", "a captured program panicked")))
}

fn alone(program: &Program) -> std::result::Result<Captured, Failure> {
    let error = |e: Error| Failure::new("capture", e.to_string());
    let mut step = capture(|leaves| whole(program, leaves));
    if program.statements.len() % 2 == 1 {
        step.limit_memory(MemoryLimit::Bytes(0)); // whatever can be computed again is
    }
    let mut counts = Captured::default();
    for call in 0..CALLS {
        // The step may write its arguments, so each side has its own.
        let (own, other) = (leaves(program, call).map_err(error)?, leaves(program, call).map_err(error)?);
        let want = whole(program, &own).map_err(error)?;
        let before = step.replays();
        let got = match step.call(&other.iter().collect::<Vec<_>>()) {
            Ok(got) => got,
            Err(e) if e.message().contains(REFUSED) => {
                return Ok(Captured { refused: 1, ..Captured::default() });
            }
            Err(e) => return Err(error(e)),
        };
        let replayed = step.replays() > before;
        for (i, (got, want)) in got.iter().zip(&want).chain(other.iter().zip(&own)).enumerate() {
            if got.shape() != want.shape() || got.to_bytes().map_err(error)? != want.to_bytes().map_err(error)? {
                let graph = step.graph().map(ToString::to_string).unwrap_or_default();
                let m = format!("call {call}, tensor {i}: {got}\nis eagerly {want}\n{graph}");
                return Err(Failure::new("wrong replay", m));
            }
        }
        if got.len() != want.len() {
            return Err(Failure::new("wrong replay", format!("{} results, eagerly {}", got.len(), want.len())));
        }
        counts.replays += u64::from(replayed);
    }
    counts.replayed = u64::from(counts.replays > 0);
    if counts.replays + 2 != CALLS as u64 {
        return Err(Failure::new("capture", format!("{} replays in {CALLS} calls", counts.replays)));
    }
    Ok(counts)
}

/// The tensors that the program's leaves are made of in a call.
fn leaves(program: &Program, call: i64) -> Result<Vec<Tensor>> {
    let mut made = vec![];
    visit(&program.statements, &mut |s| {
        if let Name::Leaf | Name::Data = s.name {
            let shape: Vec<usize> = s.numbers[1..].iter().map(|&n| n as usize).collect();
            let numbers = values(s.number(0) + call * 7919, numel(&shape));
            made.push(device().and_then(|device| Tensor::from_vec(numbers, shape, &device)));
        }
    });
    made.into_iter().collect()
}

/// Runs all statements that can be run, and returns the tensors that are there at the end. An error ends a statement,
/// not the program.
fn whole(program: &Program, leaves: &[Tensor]) -> Result<Vec<Tensor>> {
    let (mut subject, mut leaves, mut gradients) = (Subject::new(None), leaves.iter(), vec![]);
    statements(&mut subject, &program.statements, &mut leaves, &mut gradients)?;
    Ok(subject.living().chain(&gradients).map(Tensor::detach).collect())
}

fn statements<'a>(
    subject: &mut Subject,
    list: &[Statement],
    leaves: &mut impl Iterator<Item = &'a Tensor>,
    gradients: &mut Vec<Tensor>,
) -> Result<()> {
    for s in list {
        let done = match s.name {
            name if name.is_mode() => {
                let _guard = subject.guard(name);
                statements(subject, &s.body, leaves, gradients)
            }
            Name::Leaf | Name::Data => leaf(subject, s, leaves),
            name if name.is_pass() => pass(subject, s, gradients),
            Name::Hook | Name::Before | Name::After | Name::Unhook => subject.hook(s),
            _ => subject.run(s),
        };
        match done {
            Err(e) if e.message().contains("inside a captured step") => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn leaf<'a>(subject: &mut Subject, s: &Statement, leaves: &mut impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let Some(made) = leaves.next() else { return Ok(()) };
    let made = if s.name == Name::Leaf { made.with_grad()? } else { made.clone() };
    s.outs.iter().for_each(|&out| subject.define(out, made.clone()));
    Ok(())
}

/// Computes gradients: of the tensors that a statement names, or of all leaves.
fn pass(subject: &mut Subject, s: &Statement, gradients: &mut Vec<Tensor>) -> Result<()> {
    let backward = matches!(s.name, Name::Backward | Name::BackwardRetain);
    let inputs: Vec<Slot> = if backward {
        let is_leaf = |&slot: &Slot| subject.tensor(slot).is_ok_and(|t| t.requires_grad() && t.is_leaf());
        (0..subject.slots()).filter(is_leaf).collect()
    } else {
        s.of[2 * s.place(0)..].to_vec()
    };
    // On one thread: of two, either may free the graph first.
    let mut alone = s.clone();
    alone.numbers.truncate(1);
    for found in subject.pass(&alone, &inputs)? {
        let found = found?;
        subject.define_gradients(s, &inputs, &found)?;
        gradients.extend(found.into_iter().flatten());
    }
    Ok(())
}
