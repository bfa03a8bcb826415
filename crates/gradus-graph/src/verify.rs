//! Runs a replay and the function on the same arguments, and compares their effects.

use gradus_tensor::backend::BackendKind;
use gradus_tensor::{Attempt, DType, Error, ErrorKind, Result, Tensor};

use crate::blocks::Blocks;
use crate::compare::bytes_of;
use crate::graph::{Graph, Origin};
use crate::plan::Plan;

/// The largest difference, relative to the largest magnitude, on a device whose compiler may fuse instructions.
const BOUND: f64 = 1e-4;

/// Replays `plan`, undoes the changes of the replay, runs `f`, and compares the results, the tensors written in place
/// and the states. Returns the results of `f`, and how the replay differs from it, if it does.
#[track_caller]
pub(crate) fn beside(
    plan: &mut Plan,
    blocks: &mut Blocks,
    mut f: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
) -> Result<(Vec<Tensor>, Option<Error>)> {
    let written = plan.written(inputs)?;
    let before = written.iter().map(Tensor::copy).collect::<Result<Vec<_>>>()?;
    let attempt = Attempt::begin();
    plan.is_trial = true;
    let replayed = plan.run(blocks, inputs).and_then(|results| found(&plan.graph, &results, &written));
    plan.is_trial = false;
    let states = plan.states();
    drop(attempt); // takes back the changes of states
    if replayed.is_ok() {
        plan.restore();
    }
    let replayed = match replayed {
        // Another side may still write the tensors, and no call can follow.
        Err(e) if *e.kind() == ErrorKind::Peer => return Err(e),
        replayed => replayed,
    };
    for (tensor, old) in written.iter().zip(&before) {
        tensor.copy_(old)?;
    }
    // What a device refuses says nothing about the replay. Others may know of calls that the replay has made.
    let replayed = match replayed {
        Err(e) if is_of_device(&e) || plan.has_been_seen => return Err(e),
        replayed => replayed,
    };
    let owned: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    let results = f(&owned);
    let (replayed, results) = match (replayed, results) {
        (Ok(replayed), Ok(results)) => (replayed, results),
        (Err(_), Err(e)) => return Err(e),
        (Err(e), Ok(results)) => {
            let e = differs("the replay fails, and the function does not", &plan.graph).note(e.to_string());
            return Ok((results, Some(e)));
        }
        (Ok(_), Err(e)) => {
            return Err(differs("the function fails, and the replay does not", &plan.graph).note(e.to_string()));
        }
    };
    let eager = found(&plan.graph, &results, &written)?;
    if states != plan.states() {
        let e = differs("the random numbers or the step counts end elsewhere", &plan.graph);
        return Ok((results, Some(e)));
    }
    let exact = plan.graph.device.info().kind == BackendKind::Cpu;
    for ((what, a), (_, b)) in replayed.iter().zip(&eager) {
        if let Some(difference) = difference(a, b, exact)? {
            return Ok((results, Some(differs(&format!("{what}: {difference}"), &plan.graph))));
        }
    }
    Ok((results, None))
}

/// Copies of the results of a call, of the tensors that it wrote, and of the tensors that its states hold.
#[track_caller]
fn found(graph: &Graph, results: &[Tensor], written: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let mut found = vec![];
    for (i, t) in results.iter().enumerate() {
        found.push((format!("result {i}"), t.copy()?));
    }
    for (i, t) in written.iter().enumerate() {
        found.push((format!("written tensor {i}"), t.copy()?));
    }
    for (i, (state, _)) in graph.replaced.iter().enumerate() {
        found.extend(state.upgrade().map(|state| (format!("state {i}"), state.get())));
    }
    Ok(found)
}

/// How `a` differs from `b`, in words.
#[track_caller]
fn difference(a: &Tensor, b: &Tensor, exact: bool) -> Result<Option<String>> {
    if a.shape() != b.shape() || a.dtype() != b.dtype() {
        return Ok(Some(format!("{}{:?} replayed, {}{:?} eager", a.dtype(), a.shape(), b.dtype(), b.shape())));
    }
    let (bytes, other) = (a.to_bytes()?, b.to_bytes()?);
    if bytes == other {
        return Ok(None);
    }
    if !a.dtype().is_float() {
        return Ok(Some("the replay has other integers".to_owned()));
    }
    let numbers = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec::<f64>();
    let (a, b) = (numbers(a)?, numbers(b)?);
    let largest = b.iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
    let bound = if exact { 0.0 } else { BOUND * largest };
    let near = |x: f64, y: f64| {
        x == y && x.is_sign_negative() == y.is_sign_negative()
            || x.is_nan() && y.is_nan()
            || (x - y).abs() <= bound && bound > 0.0
    };
    let at = a.iter().zip(&b).position(|(&x, &y)| !near(x, y));
    Ok(at.map(|i| format!("element {i} is {} replayed, {} eager", a[i], b[i])))
}

/// Whether the device failed, so that another attempt might succeed.
pub(crate) fn is_of_device(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Backend | ErrorKind::OutOfMemory { .. })
}

#[track_caller]
fn differs(what: &str, graph: &Graph) -> Error {
    let e = Error::new(ErrorKind::InvalidArgument, "capture", format!("a replay differs from its function: {what}"));
    e.note(format!("the operations of the replay:\n{graph}"))
        .help("report this with the operations above; until it is mended, call the function itself")
}

impl Plan {
    /// The memories that a replay writes but does not own, each as a tensor of all its bytes.
    #[track_caller]
    pub(crate) fn written(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut found = vec![];
        for (m, memory) in self.graph.memories.iter().enumerate() {
            if !self.graph.nodes.iter().any(|n| n.outputs.iter().any(|o| o.memory == m)) {
                continue;
            }
            match &memory.origin {
                Origin::Input(i) => found.push(bytes_of(inputs[*i].storage())?),
                Origin::Held(storage) => found.extend(storage.upgrade().map(|s| bytes_of(&s)).transpose()?),
                Origin::State(state) => found.extend(state.upgrade().map(|s| bytes_of(s.get().storage())).transpose()?),
                Origin::Constant(_) | Origin::Panels(_) | Origin::Computed => {}
            }
        }
        Ok(found)
    }
}
