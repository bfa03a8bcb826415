//! Runs a function and records its operations, as values and nodes. Traces of several sizes are compared.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use gradus_tensor::ops::{Closed, Effect, Op, Traced, trace_closed};
use gradus_tensor::{DType, Error, ErrorKind, Layout, Result, Tensor, no_grad_guard};

/// The name of an export in errors.
pub(super) const OP: &str = "export_onnx";

/// The number of a value in a trace.
pub(super) type Id = usize;

/// A function of tensors that is exported.
pub(super) type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// What one call of a function did.
pub(super) struct Trace {
    pub(super) values: Vec<Tensor>,
    pub(super) nodes: Vec<Ran>,
    pub(super) inputs: Vec<Id>,
    pub(super) outputs: Vec<Id>,
    /// For each value, the node that computes it.
    pub(super) makers: Vec<Option<usize>>,
    /// The results of the function.
    pub(super) results: Vec<Tensor>,
}

/// An operation of a trace.
pub(super) struct Ran {
    pub(super) op: Op,
    pub(super) inputs: Vec<Id>,
    pub(super) outputs: Vec<Id>,
    pub(super) location: &'static Location<'static>,
}

/// Where a value lies: the address of its storage, the elements, and their dtype.
type Place = (usize, Layout, DType);

#[derive(Default)]
struct Recorder {
    values: Vec<Tensor>,
    makers: Vec<Option<usize>>,
    /// The values by the addresses of their handles, which all are alive, so that no address is used twice.
    handles: HashMap<usize, Id>,
    /// The values by their places, for other handles of the same elements.
    places: HashMap<Place, Id>,
    nodes: Vec<Ran>,
    /// The first reason why the function cannot be exported.
    refused: Option<Error>,
}

fn handle_of(t: &Tensor) -> usize {
    std::ptr::from_ref(t.layout()).addr()
}

fn place_of(t: &Tensor) -> Place {
    (Arc::as_ptr(t.storage()).addr(), *t.layout(), t.dtype())
}

impl Recorder {
    fn new_id(&mut self, t: &Tensor, maker: Option<usize>) -> Id {
        let id = self.values.len();
        self.values.push(t.clone());
        self.makers.push(maker);
        self.handles.insert(handle_of(t), id);
        self.places.insert(place_of(t), id);
        id
    }

    fn id(&mut self, t: &Tensor) -> Id {
        if let Some(&id) = self.handles.get(&handle_of(t)) {
            return id;
        }
        if let Some(&id) = self.places.get(&place_of(t)) {
            return id;
        }
        self.new_id(t, None)
    }

    fn refuse(&mut self, ran: &Traced<'_>, why: &str, help: &str) {
        let name = ran.op.name();
        let e = Error::new(ErrorKind::Unsupported, OP, format!("`{name}` {why}, which has no form in ONNX"));
        self.refused.get_or_insert(e.note(format!("{name} ran at {}", ran.location)).help(help));
    }

    fn ran(&mut self, ran: &Traced<'_>) {
        match ran.op.effect() {
            // The operations that the function runs are traced themselves.
            _ if matches!(ran.op, Op::Rule(_)) => return,
            Effect::Draws => {
                return self.refuse(
                    ran,
                    "draws random numbers",
                    "call model.eval(), which switches dropout off; pass other random numbers as an input",
                );
            }
            Effect::Crosses => {
                return self.refuse(ran, "moves a tensor to another device", "move it before the export");
            }
            Effect::Calls | Effect::CallsHost => {
                return self.refuse(ran, "runs a function of its own", "compose it of operations of tensors");
            }
            Effect::Pure | Effect::Updates if ran.in_place || ran.op.effect().updates() => {
                return self.refuse(
                    ran,
                    "writes in place",
                    "call model.eval(), so that no running statistics are updated, and compute new tensors in place of \
                     writes",
                );
            }
            Effect::Pure | Effect::Updates => {}
        }
        let inputs: Vec<Id> = ran.inputs.iter().map(|t| self.id(t)).collect();
        if let (Op::Contiguous(_), [x], [y]) = (ran.op, &inputs[..], ran.outputs) {
            // A copy has the elements of the original.
            self.handles.insert(handle_of(y), *x);
            self.places.insert(place_of(y), *x);
            self.values.push((*y).clone()); // keeps the address from being used again
            self.makers.push(None);
            return;
        }
        let maker = Some(self.nodes.len());
        let outputs = ran.outputs.iter().map(|t| self.new_id(t, maker)).collect();
        self.nodes.push(Ran { op: ran.op.clone(), inputs, outputs, location: ran.location });
    }
}

/// Runs `f` on `inputs`, and records what it does.
pub(super) fn record(f: Function<'_>, inputs: &[Tensor]) -> Result<Trace> {
    let _guard = no_grad_guard();
    let recorder = Rc::new(RefCell::new(Recorder::default()));
    let input_ids: Vec<Id> = inputs.iter().map(|t| recorder.borrow_mut().new_id(t, None)).collect();
    let seen = recorder.clone();
    let (results, _uses) = trace_closed(Closed::Strict, move |ran| seen.borrow_mut().ran(ran), || f(inputs));
    let mut recorder = recorder.take();
    if let Some(e) = recorder.refused.take() {
        return Err(e);
    }
    let results = results.map_err(|e| match e.op() {
        "capture" => {
            e.note("a graph cannot depend on what the host reads").help("compute it with operations of tensors")
        }
        _ => e,
    })?;
    let outputs = results.iter().map(|t| recorder.id(t)).collect();
    let Recorder { values, makers, nodes, .. } = recorder;
    Ok(Trace { values, nodes, inputs: input_ids, outputs, makers, results })
}

/// Fails unless two traces have the same operations on the same values. Sizes and numbers may differ.
pub(super) fn same_structure(a: &Trace, b: &Trace) -> Result<()> {
    let differs = |what: String| {
        let m = format!("with other sizes of the dynamic axes the model runs other operations: {what}");
        Error::new(ErrorKind::Unsupported, OP, m)
            .help(
                "mark fewer axes as dynamic, give dynamic_to a size at which the model does the same, or let it do the same \
                 at every size",
            )
    };
    for (x, y) in a.nodes.iter().zip(&b.nodes) {
        let ranks = |t: &Trace, ran: &Ran| -> Vec<(usize, DType)> {
            ran.outputs.iter().map(|&id| (t.values[id].rank(), t.values[id].dtype())).collect()
        };
        let kernels = match (&x.op, &y.op) {
            (Op::Map(p), Op::Map(q)) => p.kernel == q.kernel && p.args.len() == q.args.len(),
            (p, q) => p.kind() == q.kind(),
        };
        if !kernels || x.inputs != y.inputs || x.outputs != y.outputs || ranks(a, x) != ranks(b, y) {
            let m = format!("{:?} at {}, then {:?} at {}", x.op, x.location, y.op, y.location);
            return Err(differs(m));
        }
    }
    let at = a.nodes.len().min(b.nodes.len());
    if let Some(more) = a.nodes.get(at).or(b.nodes.get(at)) {
        return Err(differs(format!("{:?} at {} runs only with one of them", more.op, more.location)));
    }
    if a.outputs != b.outputs {
        return Err(differs("it returns other results".to_owned()));
    }
    Ok(())
}
