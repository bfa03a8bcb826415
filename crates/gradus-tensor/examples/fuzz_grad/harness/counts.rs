//! What the programs of a run had in them, and what came of them.

use std::fmt;

use super::program::{Name, Statement};

macro_rules! features {
    ($($feature:ident $text:literal,)*) => {
        /// Something that a program can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Feature {
            $($feature,)*
        }

        const FEATURES: &[(Feature, &str)] = &[$((Feature::$feature, $text)),*];
    };
}

features! {
    View "views",
    Write "writes in place",
    WriteRefused "a write in place that is refused",
    Detach "detached tensors",
    Hook "hooks",
    NoGrad "no_grad",
    Packed "saved_tensors_hooks",
    AllowMutation "allow_mutation_on_saved_tensors",
    StrictInplace "strict_inplace",
    Guarded "a write over a guarded value: the error",
    Spared "a needed value was overwritten that was packed or copied: the gradient",
    Checkpoint "checkpoint",
    NestedCheckpoint "checkpoint in checkpoint",
    WriteOutlives "a region that writes into what outlives it",
    Require "leaves that share memory",
    Retain "retain_graph",
    Create "create_graph",
    Seeded "roots with seeds",
    SeveralRoots "several roots",
    ManyPasses "several passes",
    Double "a gradient that is not 0 compared through a recorded pass",
    Threads "two threads",
    StaleError "a needed value was overwritten: the error",
    SpanAlarm "the error for a write between the elements",
    StaleUse "an overwritten tensor was used: the error",
    FreedError "a freed graph: the error",
    Ambiguous "ended at a gradient that depends on a choice",
    Undecided "ended at a tie",
    Large "ended at a large number",
    Nothing "nothing compared",
}

/// Sums over programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) programs: u64,
    pub(crate) statements: u64,
    pub(crate) passes: u64,
    /// Statements, and passes among them, that could not be run.
    pub(crate) left_out: u64,
    pub(crate) passes_left_out: u64,
    /// Gradients that were compared, and their elements.
    pub(crate) gradients: u64,
    pub(crate) numbers: u64,
    pub(crate) stale_errors: u64,
    pub(crate) span_alarms: u64,
    pub(crate) stale_uses: u64,
    pub(crate) freed_errors: u64,
    pub(crate) cautious_writes: u64,
    /// Features of the one program, as bits.
    bits: u64,
    with: [u64; FEATURES.len()],
}

impl Counts {
    /// The program has this.
    pub(crate) fn has(&mut self, feature: Feature) {
        self.bits |= 1 << feature as u64;
    }

    /// The program runs this statement.
    pub(crate) fn statement(&mut self, s: &Statement) {
        match s.name {
            name if name.is_view() => self.has(Feature::View),
            name if name.is_write() => self.has(Feature::Write),
            Name::NoGrad => self.has(Feature::NoGrad),
            Name::Packed => self.has(Feature::Packed),
            Name::AllowMutation => self.has(Feature::AllowMutation),
            Name::StrictInplace => self.has(Feature::StrictInplace),
            Name::Detach => self.has(Feature::Detach),
            Name::Require => self.has(Feature::Require),
            Name::Hook | Name::Before | Name::After => self.has(Feature::Hook),
            Name::Checkpoint => {
                self.has(Feature::Checkpoint);
                if s.body.iter().any(|b| b.name == Name::Checkpoint) {
                    self.has(Feature::NestedCheckpoint);
                }
            }
            name if name.is_pass() => self.pass(s),
            _ => {}
        }
    }

    fn pass(&mut self, s: &Statement) {
        if self.passes > 0 {
            self.has(Feature::ManyPasses);
        }
        match s.name {
            Name::GradRetain | Name::BackwardRetain => self.has(Feature::Retain),
            Name::GradCreate => self.has(Feature::Create),
            _ => {}
        }
        if matches!(s.name, Name::Backward | Name::BackwardRetain) {
            return;
        }
        if s.of.iter().skip(1).step_by(2).take(s.place(0)).any(|&seed| seed != super::program::NONE) {
            self.has(Feature::Seeded);
        }
        if s.number(0) > 1 {
            self.has(Feature::SeveralRoots);
        }
        if s.number(1) > 1 {
            self.has(Feature::Threads);
        }
    }

    /// Adds those of one program, or of many.
    pub(crate) fn merge(&mut self, other: &Counts) {
        self.programs += other.programs;
        self.statements += other.statements;
        self.passes += other.passes;
        self.left_out += other.left_out;
        self.passes_left_out += other.passes_left_out;
        self.gradients += other.gradients;
        self.numbers += other.numbers;
        self.stale_errors += other.stale_errors;
        self.span_alarms += other.span_alarms;
        self.stale_uses += other.stale_uses;
        self.freed_errors += other.freed_errors;
        self.cautious_writes += other.cautious_writes;
        for (i, sum) in self.with.iter_mut().enumerate() {
            *sum += other.with[i] + (other.bits >> i & 1);
        }
    }

    /// Programs with a feature.
    pub(crate) fn with(&self, feature: Feature) -> u64 {
        self.with[feature as usize]
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} programs, {} statements, {} passes", self.programs, self.statements, self.passes)?;
        writeln!(f, "left out: {} statements, {} of them passes", self.left_out, self.passes_left_out)?;
        writeln!(f, "{} gradients compared, {} numbers", self.gradients, self.numbers)?;
        writeln!(
            f,
            "errors: {} of needed values overwritten, {} more where the write lay between the elements, {} of overwritten \
             tensors used, {} of freed graphs; {} writes refused for strides that only might overlap",
            self.stale_errors, self.span_alarms, self.stale_uses, self.freed_errors, self.cautious_writes
        )?;
        for &(feature, text) in FEATURES {
            let n = self.with(feature);
            writeln!(f, "{:>6.1} % {text}", n as f64 * 100.0 / self.programs.max(1) as f64)?;
        }
        Ok(())
    }
}
