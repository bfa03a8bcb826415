//! Every recorded operation carries the line of the user's code, whatever it is composed of: here, a line of these tests.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use gradus::autograd::Node;
use gradus::prelude::*;

use crate::derivatives::EVERY;
use crate::orders::cases;
use crate::{calls, file, words};

/// The nodes behind some results, each once, leaves too.
fn nodes(outputs: &[Tensor]) -> Vec<Arc<Node>> {
    let (mut seen, mut found) = (HashSet::new(), vec![]);
    let mut stack: Vec<Arc<Node>> = outputs.iter().filter_map(|y| y.grad_fn().cloned()).collect();
    while let Some(node) = stack.pop() {
        if seen.insert(Arc::as_ptr(&node)) {
            stack.extend(node.inputs().flatten().cloned());
            found.push(node);
        }
    }
    found
}

#[test]
fn every_recorded_operation_carries_a_line_of_the_caller() {
    let (file, metadata, calls) = (file(), words(), calls());
    let here = Path::new(file!()).parent().unwrap();
    let (mut rows, mut seen) = (BTreeSet::new(), 0);
    let mut wrong: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for case in &cases(&file, &metadata, &calls) {
        // Half precision and other layouts go other ways.
        for dtype in [DType::F64, DType::F32, DType::F16] {
            for lay in EVERY {
                let lie = |t: &Tensor| match t.dtype().is_float() {
                    true => lay.of(&t.to_dtype(dtype)?),
                    false => lay.of(t),
                };
                let mut inputs = case.inputs.iter().map(lie).collect::<Result<Vec<_>>>().unwrap();
                for &i in &case.leaves {
                    inputs[i] = inputs[i].require_grad().unwrap();
                }
                let outputs = match (case.call)(&inputs) {
                    Ok(outputs) => outputs,
                    Err(e) if dtype == DType::F64 => panic!("{}: {e}", case.name),
                    // Not every operation takes every dtype.
                    Err(_) => continue,
                };
                for node in nodes(&outputs) {
                    seen += 1;
                    rows.insert(case.name);
                    if Path::new(node.location().file()).parent() != Some(here) {
                        wrong.entry(case.name).or_default().insert(format!("{} at {}", node.name(), node.location()));
                    }
                }
            }
        }
    }
    println!("{seen} nodes of {} cases", rows.len());
    assert!(seen > 1000 && rows.len() > 200, "only {seen} nodes of {} cases", rows.len());
    let text: Vec<String> = wrong.iter().map(|(name, all)| format!("{name}: {all:?}")).collect();
    assert!(wrong.is_empty(), "{} cases record lines that are not the caller's:\n{}", wrong.len(), text.join("\n"));
}
