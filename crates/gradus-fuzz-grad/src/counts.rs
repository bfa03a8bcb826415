//! Counts of what the programs of a run contained, and of their outcomes.

use std::fmt;

use crate::program::{Name, Statement};

macro_rules! features {
    ($($feature:ident $text:literal $least:literal $most:literal,)*) => {
        /// A property of a program or of its run that is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Feature {
            $($feature,)*
        }

        /// Each feature, with a description, and the least and the largest percentage of programs that may have it.
        const FEATURES: &[(Feature, &str, f64, f64)] = &[$((Feature::$feature, $text, $least, $most)),*];
    };
}

features! {
    View "views" 70.0 100.0,
    Write "writes in place" 70.0 100.0,
    Some "writes in place to some elements" 25.0 100.0,
    Custom "operations of the user" 20.0 100.0,
    Empty "tensors without elements" 3.0 100.0,
    WriteRefused "a write in place that is refused" 2.0 100.0,
    Dropout "dropout" 1.0 100.0,
    Replayed "dropout in a region" 1.0 100.0,
    Detach "detached tensors" 50.0 100.0,
    Hook "hooks" 15.0 100.0,
    NoGrad "no_grad" 30.0 100.0,
    Packed "saved_tensors_hooks" 6.0 100.0,
    AllowMutation "allow_mutation_on_saved_tensors" 12.0 100.0,
    StrictInplace "strict_inplace" 6.0 100.0,
    Strict "strict" 6.0 100.0,
    StrictError "an overwritten input of a strict operation: the error" 0.5 100.0,
    Guarded "a write over a guarded value: the error" 1.0 100.0,
    Spared "a needed value was overwritten that was packed or copied: the gradient" 2.0 100.0,
    Checkpoint "checkpoint" 30.0 100.0,
    NestedCheckpoint "checkpoint in checkpoint" 3.0 100.0,
    WriteOutlives "a region that writes into what outlives it" 1.0 100.0,
    Require "leaves that share memory" 4.0 100.0,
    Retain "retain_graph" 25.0 100.0,
    Create "create_graph" 35.0 100.0,
    Seeded "roots with seeds" 25.0 100.0,
    SeveralRoots "several roots" 14.0 100.0,
    ManyPasses "several passes" 60.0 100.0,
    Double "a gradient that is not 0 compared through a recorded pass" 15.0 100.0,
    Threads "two threads" 5.0 100.0,
    StaleError "a needed value was overwritten: the error" 20.0 100.0,
    Beside "the error for an element that an index or a mask left as it was" 0.0 2.0,
    Between "a write between the elements of a needed value: the gradient" 2.0 100.0,
    StaleUse "an overwritten tensor was used: the error" 3.0 100.0,
    FreedError "a freed graph: the error" 14.0 100.0,
    Ambiguous "ended at a gradient that depends on a choice" 0.0 1.0,
    Undecided "ended at a tie" 0.0 1.0,
    Large "ended at a large number" 0.0 3.0,
    Nothing "nothing compared" 0.0 6.0,
}

/// The totals over many programs.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    pub(crate) programs: u64,
    /// Statements that ran.
    pub statements: u64,
    /// Backward passes that ran.
    pub passes: u64,
    /// Statements that could not be run. `passes_left_out` counts those that are passes.
    pub(crate) left_out: u64,
    pub(crate) passes_left_out: u64,
    pub(crate) gradients: u64,
    /// Gradient elements compared.
    pub numbers: u64,
    /// Passes that ended with the error about an overwritten value.
    pub stale_errors: u64,
    /// Passes that ended with that error although the write, by an index or a mask, had left the value itself
    /// unchanged.
    pub beside: u64,
    pub(crate) stale_uses: u64,
    pub(crate) freed_errors: u64,
    /// The features of the current program, as bits.
    bits: u64,
    with: Vec<u64>,
}

impl Counts {
    /// Records that the program has this feature.
    pub(crate) fn has(&mut self, feature: Feature) {
        self.bits |= 1 << feature as u64;
    }

    /// Records that the program runs this statement.
    pub(crate) fn statement(&mut self, s: &Statement) {
        match s.name {
            name if name.writes_some() => {
                self.has(Feature::Some);
                self.has(Feature::Write);
            }
            Name::Custom1 | Name::Custom2 => self.has(Feature::Custom),
            name if name.is_view() => self.has(Feature::View),
            name if name.is_write() => self.has(Feature::Write),
            Name::NoGrad => self.has(Feature::NoGrad),
            Name::Packed => self.has(Feature::Packed),
            Name::AllowMutation => self.has(Feature::AllowMutation),
            Name::StrictInplace => self.has(Feature::StrictInplace),
            Name::Strict => self.has(Feature::Strict),
            Name::Detach => self.has(Feature::Detach),
            Name::Require => self.has(Feature::Require),
            Name::Hook | Name::Before | Name::After => self.has(Feature::Hook),
            Name::Checkpoint => {
                self.has(Feature::Checkpoint);
                if s.body.iter().any(|b| b.name == Name::Dropout) {
                    self.has(Feature::Replayed);
                }
                if s.body.iter().any(|b| b.name == Name::Checkpoint) {
                    self.has(Feature::NestedCheckpoint);
                }
            }
            Name::Dropout => self.has(Feature::Dropout),
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
        if s.of.iter().skip(1).step_by(2).take(s.place(0)).any(|&seed| seed != crate::program::NONE) {
            self.has(Feature::Seeded);
        }
        if s.number(0) > 1 {
            self.has(Feature::SeveralRoots);
        }
        if s.number(1) > 1 {
            self.has(Feature::Threads);
        }
    }

    /// Adds the counts of one program, or of many.
    pub fn merge(&mut self, other: &Counts) {
        self.programs += other.programs;
        self.statements += other.statements;
        self.passes += other.passes;
        self.left_out += other.left_out;
        self.passes_left_out += other.passes_left_out;
        self.gradients += other.gradients;
        self.numbers += other.numbers;
        self.stale_errors += other.stale_errors;
        self.beside += other.beside;
        self.stale_uses += other.stale_uses;
        self.freed_errors += other.freed_errors;
        self.with.resize(FEATURES.len(), 0);
        for (i, sum) in self.with.iter_mut().enumerate() {
            *sum += other.with.get(i).copied().unwrap_or(0) + (other.bits >> i & 1);
        }
    }

    /// The percentage of programs with a feature.
    fn share(&self, feature: Feature) -> f64 {
        let n = self.with.get(feature as usize).copied().unwrap_or(0);
        n as f64 * 100.0 / self.programs.max(1) as f64
    }

    /// Reasons why the run proves little: features that were too rare, and outcomes that cut too many programs short.
    pub fn amiss(&self) -> Vec<String> {
        let mut found = vec![];
        for &(feature, text, least, most) in FEATURES {
            let share = self.share(feature);
            if share < least || share > most {
                found.push(format!("{share:.1} % of the programs, not {least} to {most}: {text}"));
            }
        }
        let tried = self.passes + self.passes_left_out;
        if self.passes_left_out * 50 > tried {
            found.push(format!("{} of {tried} passes were left out", self.passes_left_out));
        }
        found
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} programs, {} statements, {} passes", self.programs, self.statements, self.passes)?;
        writeln!(f, "left out: {} statements, {} of them passes", self.left_out, self.passes_left_out)?;
        writeln!(f, "{} gradients compared, {} numbers", self.gradients, self.numbers)?;
        writeln!(
            f,
            "errors: {} of needed values overwritten, {} more that an index or a mask left as they were, {} of \
             overwritten tensors used, {} of freed graphs",
            self.stale_errors, self.beside, self.stale_uses, self.freed_errors
        )?;
        for &(feature, text, ..) in FEATURES {
            writeln!(f, "{:>6.1} % {text}", self.share(feature))?;
        }
        Ok(())
    }
}
