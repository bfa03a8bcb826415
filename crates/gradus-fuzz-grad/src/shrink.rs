//! Reduces a failing program: removes or simplifies parts as long as the program fails in the same way.

use crate::program::{NONE, Name, Program, Slot, Statement, visit};
use crate::run::{Failure, Options, run};

/// The largest number of candidates that are run for one failure.
const BUDGET: usize = 20_000;

/// The smallest program found that fails in the same way, and its failure.
pub(crate) fn shrink(program: &Program, failure: &Failure, options: Options) -> (Program, Failure) {
    let mut best = (program.clone(), failure.clone());
    let mut left = BUDGET;
    loop {
        let mut better = None;
        for candidate in candidates(&best.0) {
            if left == 0 {
                return best;
            }
            left -= 1;
            if let Err(f) = run(&candidate, Options { trace: false, ..options })
                && (f.kind, &f.cause) == (failure.kind, &failure.cause)
            {
                better = Some((candidate, f));
                break;
            }
        }
        match better {
            Some(found) => best = found,
            None => break,
        }
    }
    let numbered = renumbered(&best.0);
    match run(&numbered, Options { trace: false, ..options }) {
        Err(f) if (f.kind, &f.cause) == (failure.kind, &failure.cause) => (numbered, f),
        _ => best,
    }
}

/// Programs that are one step simpler, the largest steps first.
fn candidates(program: &Program) -> Vec<Program> {
    let lists = variants(&program.statements);
    let plain = program.twice.then(|| Program { twice: false, ..program.clone() });
    let twice = program.twice;
    plain.into_iter().chain(lists.into_iter().map(|statements| Program { statements, twice })).collect()
}

fn variants(list: &[Statement]) -> Vec<Vec<Statement>> {
    let mut found = vec![];
    let mut chunk = list.len() / 2;
    while chunk > 0 {
        for start in (0..list.len()).rev().step_by(chunk) {
            let start = (start + 1).saturating_sub(chunk);
            found.push([&list[..start], &list[start + chunk..]].concat());
        }
        chunk /= 2;
    }
    if list.len() == 1 {
        found.push(vec![]);
    }
    for (i, s) in list.iter().enumerate() {
        let with = |new: Vec<Statement>| [&list[..i], &new, &list[i + 1..]].concat();
        // Replace the result of an operation by one of its operands.
        if let ([out], true) = (&s.outs[..], !s.name.is_pass()) {
            for &of in s.of.iter().filter(|&&of| of != NONE) {
                let rest: Vec<Statement> = list[i + 1..].iter().map(|t| replaced(t, *out, of)).collect();
                found.push([&list[..i], &rest].concat());
            }
            // Or remove the operation before it as well: a sum over axes may only fit the result of a broadcast.
            let before = list[..i].iter().rev().find(|b| s.of.iter().any(|of| b.outs.contains(of)));
            for &of in before.iter().filter(|b| !b.name.is_pass()).flat_map(|b| &b.of) {
                let rest: Vec<Statement> = list[i + 1..].iter().map(|t| replaced(t, *out, of)).collect();
                found.push([&list[..i], &rest].concat());
            }
        }
        match s.name {
            name if name.is_mode() => found.push(with(s.body.clone())),
            Name::Checkpoint => {
                let mut rest = list[i + 1..].to_vec();
                for (&out, &give) in s.outs.iter().zip(&s.gives) {
                    rest = rest.iter().map(|t| replaced(t, out, give)).collect();
                }
                found.push([&list[..i], &s.body, &rest].concat());
            }
            _ => {}
        }
        found.extend(simpler(s).into_iter().map(|s| with(vec![s])));
        for body in variants(&s.body) {
            found.push(with(vec![Statement { body, ..s.clone() }]));
        }
    }
    found
}

/// The statement with `new` in place of `old`.
fn replaced(s: &Statement, old: Slot, new: Slot) -> Statement {
    let swap = |slots: &[Slot]| slots.iter().map(|&s| if s == old { new } else { s }).collect();
    let body = s.body.iter().map(|b| replaced(b, old, new)).collect();
    Statement { of: swap(&s.of), gives: swap(&s.gives), body, ..s.clone() }
}

/// Simpler forms of one statement.
fn simpler(s: &Statement) -> Vec<Statement> {
    let mut found = vec![];
    let without = |list: &[Slot], i: usize| [&list[..i], &list[i + 1..]].concat();
    match s.name {
        Name::Leaf | Name::Data => {
            for shape in [&[][..], &[1], &[2]] {
                if shape.len() + 1 < s.numbers.len() || s.numbers[1..].iter().sum::<i64>() > shape.iter().sum::<i64>() {
                    found.push(Statement { numbers: [&s.numbers[..1], shape].concat(), ..s.clone() });
                }
            }
        }
        Name::Grad | Name::GradRetain | Name::GradCreate => {
            let ends = 2 * s.place(0).min(s.of.len() / 2);
            if s.number(1) > 1 {
                found.push(Statement { numbers: vec![s.number(0), 1], ..s.clone() });
            }
            if ends > 2 {
                for k in (0..ends).step_by(2) {
                    let of = [&s.of[..k], &s.of[k + 2..]].concat();
                    found.push(Statement { of, numbers: vec![s.number(0) - 1, s.number(1)], ..s.clone() });
                }
            }
            for k in (0..s.outs.len()).filter(|_| s.outs.len() > 1 && s.of.len() == ends + s.outs.len()) {
                let of = [&s.of[..ends + k], &s.of[ends + k + 1..]].concat();
                found.push(Statement { outs: without(&s.outs, k), of, ..s.clone() });
            }
            if s.name != Name::Grad {
                found.push(Statement { name: Name::Grad, ..s.clone() });
            }
        }
        Name::Checkpoint => {
            for k in 0..s.of.len() {
                found.push(Statement { of: without(&s.of, k), ..s.clone() });
            }
            for k in (0..s.outs.len()).filter(|_| s.outs.len() > 1 && s.gives.len() == s.outs.len()) {
                found.push(Statement { outs: without(&s.outs, k), gives: without(&s.gives, k), ..s.clone() });
            }
        }
        Name::LayerNorm | Name::RmsNorm if s.of.len() > 1 => {
            found.push(Statement { of: s.of[..s.of.len() - 1].to_vec(), ..s.clone() });
        }
        _ => {}
    }
    found
}

/// The program with its tensors numbered from 1, in the order in which they are defined.
fn renumbered(program: &Program) -> Program {
    let mut names: Vec<Slot> = vec![];
    visit(&program.statements, &mut |s| {
        for &out in &s.outs {
            if !names.contains(&out) {
                names.push(out);
            }
        }
    });
    fn apply(s: &Statement, names: &[Slot]) -> Statement {
        let number = |&slot: &Slot| names.iter().position(|&n| n == slot).map_or(slot, |i| i as Slot + 1);
        let all = |slots: &[Slot]| slots.iter().map(number).collect();
        let body = s.body.iter().map(|b| apply(b, names)).collect();
        Statement { outs: all(&s.outs), of: all(&s.of), gives: all(&s.gives), body, ..s.clone() }
    }
    let statements = program.statements.iter().map(|s| apply(s, &names)).collect();
    Program { statements, ..program.clone() }
}
