//! Every recorded operation carries the location of the user's call, even if that call is composed of several
//! operations. In these tests that location is a line of the test. The operations of the recorded gradient carry the
//! same location.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use gradus::Operand;
use gradus::autograd::Node;
use gradus::ops::table::TABLE;
use gradus::prelude::*;

use crate::derivatives::{EVERY, Function, Lay, checkpointed};
use crate::orders::{Case, cases};
use crate::{calls, file, words};

/// All graph nodes behind some tensors, including leaves, without duplicates.
fn nodes(tensors: &[Tensor]) -> Vec<Arc<Node>> {
    let (mut seen, mut found) = (HashSet::new(), vec![]);
    let mut stack: Vec<Arc<Node>> = tensors.iter().filter_map(|t| t.grad_fn().cloned()).collect();
    while let Some(node) = stack.pop() {
        if seen.insert(Arc::as_ptr(&node)) {
            stack.extend(node.inputs().flatten().cloned());
            found.push(node);
        }
    }
    found
}

/// The outputs of a call and their recorded gradients. Errors if the operation rejects the dtype.
fn recorded(case: &Case<'_>, call: Function<'_>, dtype: DType, lay: Lay) -> Result<Vec<Tensor>> {
    let mut inputs = vec![];
    for (i, t) in case.inputs.iter().enumerate() {
        let t = lay.of(&if t.dtype().is_float() { t.to_dtype(dtype)? } else { t.clone() })?;
        inputs.push(if case.leaves.contains(&i) { t.with_grad()? } else { t });
    }
    let mut all = call(&inputs)?;
    let outputs: Vec<&Tensor> = all.iter().filter(|y| y.requires_grad()).collect();
    let seeds = outputs.iter().map(|y| y.detach().ones_like()).collect::<Result<Vec<_>>>()?;
    let leaves: Vec<&Tensor> = case.leaves.iter().map(|&i| &inputs[i]).collect();
    if !outputs.is_empty() {
        let seeds: Vec<&Tensor> = seeds.iter().collect();
        let found = grad(&outputs, &leaves, Some(&seeds), BackwardOptions::new().create_graph())?;
        all.extend(found.into_iter().flatten());
    }
    Ok(all)
}

#[test]
fn every_recorded_operation_carries_a_line_of_the_caller() {
    let (file, metadata, calls) = (file(), words(), calls());
    let here = Path::new(file!()).parent().unwrap();
    let (mut names, mut seen) = (BTreeSet::new(), 0);
    let mut wrong: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for case in &cases(&file, &metadata, &calls) {
        // The methods of the table all come from one macro, so the operation is applied directly here. The next test
        // checks the methods.
        let entry = TABLE.iter().find(|e| e.op.name() == case.row);
        let method = case.call;
        let call = move |x: &[Tensor]| match entry {
            Some(entry) => {
                let scalars = entry.scalars.iter().map(|s| Operand::from(s.1));
                Ok(vec![entry.op.apply(&x.iter().map(Operand::Tensor).chain(scalars).collect::<Vec<_>>())?])
            }
            None => method(x),
        };
        let through = checkpointed(call);
        // Half precision and other layouts take different code paths.
        for dtype in [DType::F64, DType::F32, DType::F16] {
            for (call, lay) in
                EVERY.map(|lay| (&call as Function<'_>, lay)).into_iter().chain([(&through as _, Lay::Plain)])
            {
                let tensors = match recorded(case, call, dtype, lay) {
                    Ok(tensors) => tensors,
                    Err(e) if dtype == DType::F64 => panic!("{}: {e}", case.name),
                    Err(_) => continue,
                };
                for node in nodes(&tensors) {
                    seen += 1;
                    names.insert(case.name);
                    if Path::new(node.location().file()).parent() != Some(here) {
                        wrong.entry(case.name).or_default().insert(format!("{} at {}", node.name(), node.location()));
                    }
                }
            }
        }
    }
    println!("{seen} nodes of {} cases", names.len());
    assert!(seen > 10_000 && names.len() > 300, "only {seen} nodes of {} cases", names.len());
    let text: Vec<String> = wrong.iter().map(|(name, all)| format!("{name}: {all:?}")).collect();
    assert!(wrong.is_empty(), "{} cases record lines that are not the caller's:\n{}", wrong.len(), text.join("\n"));
}

#[test]
fn methods_of_the_table_carry_the_line_of_the_caller() {
    let x = Tensor::from_vec(vec![0.5, 2.0], [2], &Device::cpu().unwrap()).unwrap().with_grad().unwrap();
    let mask = x.gt(1.0).unwrap();
    for y in [x.exp(), x.add(&x), x.add(1.0), x.clamp(0.0, 1.0), mask.where_(&x, 2.0)] {
        let node = y.unwrap().grad_fn().cloned().unwrap();
        assert_eq!(node.location().file(), file!(), "{}", node.name());
    }
}
