//! `docs/spec.md`: every operation that can run. The page is generated from a trace of all cases and their gradients.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;

use gradus::ops::{Effect, Flow, LinearPanels, LstmI8, Op, Traced};
use gradus::prelude::*;
use gradus::{Bound, ComputeModule, Gemm, UpdateFn};

use crate::traced::Noted;
use crate::{Call, file_on};

/// The path of the page, relative to the root.
pub(crate) const PAGE: &str = "docs/spec.md";

/// The operations that only a pass on the graph of a captured step makes, so that no trace shows them.
const OF_PASSES: [&str; 1] = ["Mapped"];

/// What the trace shows about one operation.
struct Row {
    parameters: String,
    inputs: BTreeSet<usize>,
    outputs: BTreeSet<usize>,
    effects: &'static str,
    flow: &'static str,
    /// Whether its first output was ever a differentiable float.
    derivative: bool,
    /// The backend methods that it calls.
    methods: BTreeSet<String>,
}

/// Rows by variant of [`Op`] and name.
type Rows = BTreeMap<(&'static str, String), Row>;

/// The names of the parameters, parsed from the debug output `softmax { log: false, axis: 1 }`.
fn parameters(op: &Op) -> String {
    let text = format!("{op:?}");
    let Some((_, fields)) = text.split_once(" { ") else { return String::new() };
    let (mut depth, mut names) = (0, vec![]);
    for part in fields.split_inclusive([',', '{', '}', '[', ']', '(', ')']) {
        if depth == 0
            && let Some((name, _)) = part.split_once(':')
        {
            names.push(name.trim().to_owned());
        }
        match part.chars().last() {
            Some('{' | '[' | '(') => depth += 1,
            Some('}' | ']' | ')') => depth -= 1,
            _ => {}
        }
    }
    names.join(", ")
}

fn note(rows: &mut Rows, ran: &Traced<'_>, called: Vec<String>) {
    let op = ran.op;
    let effects = match op.effect() {
        Effect::Pure => "",
        Effect::Draws => "draws",
        Effect::Updates => "updates",
        Effect::Calls => "updates, calls",
        Effect::CallsHost => "updates, calls the host",
        Effect::Crosses => "crosses",
    };
    let flow = match op.flow() {
        Flow::InPlace => "in place",
        Flow::Moves => "moves",
        Flow::Mixes => "mixes",
    };
    let new = || Row {
        parameters: parameters(op),
        inputs: BTreeSet::new(),
        outputs: BTreeSet::new(),
        effects,
        flow,
        derivative: false,
        methods: BTreeSet::new(),
    };
    let row = rows.entry((op.kind(), op.name().to_owned())).or_insert_with(new);
    row.inputs.insert(ran.inputs.len());
    row.outputs.insert(ran.outputs.len());
    row.derivative |= op.differentiable(0) && ran.outputs[0].dtype().is_float();
    row.methods.extend(called);
}

/// Runs operations that no case calls: writes in place, random draws, products on flat buffers, user-defined
/// operations, and transfers to another device.
fn others(device: &Device) -> Result<()> {
    static AVERAGE: UpdateFn = UpdateFn::new("update", |x| vec![x[0] + x[2] * (x[1] - x[0])]);
    let x = Tensor::rand([4], DType::F64, device, &mut Generator::new(1))?;
    let y = x.copy()?;
    AVERAGE.apply(&[&x], &[&x, &y], &[0.5])?;
    Gemm::new(2, 2, 2).run_(&y, &y, &x)?;
    let bytes = y.to_dtype(DType::I8)?;
    let _ = bytes.matmul_i32(&bytes)?;
    let _ = LinearPanels { n: 2 }.apply(&y.reshape([2, 2])?, &y.reshape([2, 2, 1])?, None)?;
    let _ = LinearPanels { n: 2 }.apply(&y.reshape([2, 2])?, &y.reshape([2, 2, 1])?, Some(&y.narrow(0, 0, 2)?))?;
    let zeros = |shape: &[usize], dtype: DType| Tensor::zeros(shape, dtype, device);
    let (state, vector, sums) =
        (zeros(&[2, 1, 1], DType::F32)?, zeros(&[2, 4], DType::F32)?, zeros(&[2, 4], DType::I32)?);
    let (x, w) = (zeros(&[1, 1, 1], DType::F32)?, zeros(&[2, 4, 1], DType::I8)?);
    let _ = LstmI8 { reverse: [false, true].into_iter().collect() }
        .apply([&x, &state, &state, &w, &vector, &sums, &w, &vector, &sums, &vector, &vector])?;
    device.register_native("nothing", |_| Ok(()))?;
    device.dispatch_compute(ComputeModule::Native("nothing"), &[Bound::Read(&y), Bound::Write(&x)], &[], [1, 1, 1])?;
    let there = x.with_grad()?.to_device(&Device::cpu()?)?;
    let _ = there.sum_all()?.backward()?;
    Ok(())
}

/// Runs a case on inputs that require gradients, and computes the gradients of its outputs.
fn differentiated(call: Call, inputs: &[Tensor]) -> Result<()> {
    let leaf = |t: &Tensor| if t.dtype().is_float() { t.with_grad() } else { Ok(t.clone()) };
    let inputs = inputs.iter().map(leaf).collect::<Result<Vec<_>>>()?;
    for y in call(&inputs)?.iter().filter(|y| y.requires_grad()) {
        let _ = y.sum_all()?.backward_with(BackwardOptions::new().retain_graph())?;
    }
    Ok(())
}

/// The contract methods that a backend's source overrides.
fn own_methods(krate: &str) -> BTreeSet<String> {
    let path = crate::matrix::root().join("crates").join(krate).join("src/backend.rs");
    let text = std::fs::read_to_string(path).unwrap();
    text.split("\n    fn ").skip(1).filter_map(|m| Some(m.split_once('(')?.0.to_owned())).collect()
}

/// Generates the page. Also returns descriptions of everything that is wrong.
pub(crate) fn page(calls: &BTreeMap<&str, Call>, cases: &[&str]) -> (String, Vec<String>) {
    let noted = Noted::new();
    let file = file_on(noted.device.clone());
    let rows = Rc::new(RefCell::new(Rows::new()));
    let see = || {
        let rows = rows.clone();
        move |ran: &Traced<'_>, called: Vec<String>| note(&mut rows.borrow_mut(), ran, called)
    };
    let mut wrong = vec![];
    for name in cases {
        let family = name.split('/').next().unwrap_or(name);
        let Some(&call) = calls.get(name).or_else(|| calls.get(family)) else { continue };
        let inputs = file.inputs(name);
        if let Err(e) = noted.walk(see(), || differentiated(call, &inputs)) {
            wrong.push(format!("{name}: {e}"));
        }
    }
    if let Err(e) = noted.walk(see(), || others(&noted.device)) {
        wrong.push(e.to_string());
    }
    let rows = rows.borrow();
    let seen: BTreeSet<&str> = rows.keys().map(|(kind, _)| *kind).collect();
    wrong.extend(
        Op::KINDS
            .iter()
            .filter(|k| !seen.contains(*k) && !OF_PASSES.contains(k))
            .map(|k| format!("no case runs an `Op::{k}`")),
    );
    (text(&rows), wrong)
}

fn text(rows: &Rows) -> String {
    let (cpu, wgpu) = (own_methods("gradus-cpu"), own_methods("gradus-wgpu"));
    let contract = own_methods("gradus-backend");
    let count = |numbers: &BTreeSet<usize>| match (numbers.first(), numbers.last()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(n), _) => n.to_string(),
        _ => String::new(),
    };
    let (elementwise, others): (Vec<_>, Vec<_>) =
        rows.iter().partition(|((kind, _), _)| matches!(*kind, "Map" | "Update"));
    let mut text = "# The vocabulary\n\nMade by `cargo xtask spec` from a trace of every case of the tests and of its gradients: the \
         operations that run kernels, or make views. Everything that computes on tensors is one of these \
         (`gradus::ops::Op`), and `gradus::ops::trace` shows them as they run.\n\n*Effect*: `draws` takes numbers from a \
         generator, `updates` reads what it writes, `crosses` gives its result on another device. *Flow*: how each element of a \
         result depends on those of the inputs: on the one in its place (`in place`), it is one of them (`moves`), or on many \
         (`mixes`). *Inputs* and *outputs* are as many as the cases have. *Methods*: what it calls of the contract; in brackets the backends that use the contract's own body, which \
         is made of other methods. *Derivative*: of any order, or none: of indices, truth values, draws and writes, of gradients that \
         another rule differentiates, and of sorted or extreme elements, whose gradient is that of a gather.\n\n\
         | operation | `Op::` | parameters | inputs | outputs | effect | flow | methods | derivative |\n|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for ((kind, name), row) in others {
        let method = |m: &String| {
            let without: Vec<&str> =
                [("CPU", &cpu), ("WebGPU", &wgpu)].iter().filter(|b| !b.1.contains(m)).map(|b| b.0).collect();
            if without.is_empty() { format!("`{m}`") } else { format!("`{m}` ({})", without.join(", ")) }
        };
        // A call of `map` goes by the name of its kernel.
        let known = |m: &String| if contract.contains(m) { m.clone() } else { "map".to_owned() };
        let methods: BTreeSet<String> = row.methods.iter().map(known).collect();
        let methods: Vec<String> = methods.iter().map(method).collect();
        let (inputs, outputs) = (count(&row.inputs), count(&row.outputs));
        let (effects, flow, derivative) = (row.effects, row.flow, if row.derivative { "any" } else { "" });
        let (parameters, methods) = (&row.parameters, methods.join(", "));
        let _ = writeln!(
            text,
            "| `{name}` | `{kind}` | {parameters} | {inputs} | {outputs} | {effects} | {flow} | {methods} | {derivative} |"
        );
    }
    let names = |of: &str| -> Vec<String> {
        let rows = elementwise.iter().filter(|((kind, _), _)| *kind == of);
        rows.map(|((_, name), row)| format!("`{name}` {}", count(&row.inputs))).collect()
    };
    let (maps, updates) = (names("Map"), names("Update"));
    let _ = write!(
        text,
        "\n## Elementwise kernels\n\n`Op::Map` is a kernel of a formula: parameters `kernel` and `args`, any number of inputs \
         and outputs, flow `in place`, one call of `map`, a derivative of any order unless the result is no float. These {} run \
         in the cases, each with its number of inputs:\n\n{}.\n\n\
         `Op::Update` is the same kernel, written over tensors that it may read, without a derivative: writes in place, steps of \
         optimisers, and gradients in the memory of others. In the cases: {}.\n\n\
         `Op::Mapped` is a kernel and the `Reduce` or `Softmax` that reads its result: one call of `map_into`. Only passes \
         on the graph of a captured step make it, so no case shows it.\n",
        maps.len(),
        maps.join(", "),
        updates.join(", ")
    );
    text
}
