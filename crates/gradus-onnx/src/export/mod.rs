//! [`export_onnx`]: writes a model as an ONNX file.
//!
//! The forward pass is traced with the example's sizes, and with other sizes of the axes that are marked as dynamic. The
//! traces must hold the same operations; a number that differs between them becomes arithmetic on shapes.

mod build;
mod check;
mod finish;
mod kernel;
mod movement;
mod norm;
mod opset;
mod options;
mod product;
mod save;
mod sizes;
mod trace;
mod write;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use gradus_nn::{Forward, Module};
use gradus_tensor::ops::Op;
use gradus_tensor::{DType, Here, Layout, Result, Tensor};

use crate::elem::Elem;
use build::Builder;
use options::Plan;
pub use options::{OnnxExport, OnnxExportOptions};
use save::Target;
use trace::{Function, Id, record, same_structure};
use write::{Data, Initializer};

/// The largest file that every Protocol Buffers library reads, with room for what is not a tensor.
const MOST_BYTES: usize = (1 << 31) - (64 << 20);

/// Writes the forward pass of a module with one input, which is called `name`, as an ONNX model.
///
/// `example` is an input of ordinary size with ordinary values, such as a picture or random tokens: an input of zeros hides
/// differences. Its axes keep their sizes in the model, except for those that
/// [`OnnxExportOptions::dynamic`] marks. Parameters become initialisers under their names in the module. An operation that
/// ONNX has leaves as itself (`LayerNormalization`, `Gelu`, `Attention`); others as those of which they consist. The
/// opset is the lowest that has all operators.
///
/// Before the file exists, it is read back and run beside the module, for the sizes of the example and for others. An
/// export that computes something else there is an error. At the other sizes of dynamic axes it computes the same if the
/// module does the same operations, with sizes that follow from the axes as they do there.
///
/// ```
/// # use gradus_nn::*; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// use gradus_onnx::{OnnxExportOptions, OnnxModel, export_onnx};
///
/// let mut init = Init::new(DType::F32, &device, &mut generator);
/// let mut model = Sequential::new().add(Linear::new(4, 8, &mut init)?).add(Relu).add(Linear::new(8, 3, &mut init)?);
/// model.eval();
/// let x = Tensor::randn([1, 4], DType::F32, &device, &mut generator)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.onnx");
/// let options = OnnxExportOptions::new().dynamic("batch", &[("x", 0)]).outputs(&["scores"]);
/// let export = export_onnx(&path, &model, ("x", &x), &options)?;
/// assert_eq!((export.opset, export.difference), (13, 0.0));
///
/// let read = OnnxModel::load(&path, &device)?;
/// let x = Tensor::ones([5, 4], DType::F32, &device)?;
/// let scores = read.run(&[("x", x.clone())])?.remove(0).1;
/// assert_eq!(scores.to_vec::<f32>()?, model.forward(&x)?.to_vec::<f32>()?);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Fails with [`ErrorKind::Unsupported`](gradus_tensor::ErrorKind::Unsupported), the name of the operation and the line
/// of its call if the forward pass
/// - draws random numbers or writes in place, as layers in training mode do: call [`Module::eval`] first,
/// - reads a tensor on the host, or runs an operation that ONNX has no form of,
/// - does not do the same for other sizes of the dynamic axes, or has sizes that are no function of them.
///
/// Also fails if the model as read back differs from the module, and if the file cannot be written.
#[track_caller]
pub fn export_onnx<M: Module + Forward>(
    path: impl AsRef<Path>,
    model: &M,
    (name, example): (&str, &Tensor),
    options: &OnnxExportOptions,
) -> Result<OnnxExport> {
    export(path.as_ref(), model, &[(name, example)], options, &|x| Ok(vec![model.forward(&x[0])?])).here()
}

/// Like [`export_onnx`], for any function of a module and tensors: `f` is given the inputs in their order, and returns the
/// outputs.
///
/// ```
/// # use gradus_nn::*; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// use gradus_onnx::{OnnxExportOptions, export_onnx_with};
///
/// let mut init = Init::new(DType::F32, &device, &mut generator);
/// let model = Linear::new(4, 3, &mut init)?;
/// let x = Tensor::randn([2, 4], DType::F32, &device, &mut generator)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.onnx");
/// let options = OnnxExportOptions::new().dynamic("batch", &[("a", 0), ("b", 0)]).outputs(&["scores", "best"]);
/// export_onnx_with(&path, &model, &[("a", &x), ("b", &x)], &options, |model, x| {
///     let scores = model.forward(&x[0].add(&x[1])?)?.softmax(-1)?;
///     let best = scores.argmax(-1, false)?;
///     Ok(vec![scores, best])
/// })?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Those of [`export_onnx`].
#[track_caller]
pub fn export_onnx_with<M: Module>(
    path: impl AsRef<Path>,
    model: &M,
    inputs: &[(&str, &Tensor)],
    options: &OnnxExportOptions,
    f: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<OnnxExport> {
    export(path.as_ref(), model, inputs, options, &|x| f(model, x)).here()
}

fn export(
    path: &Path,
    model: &dyn Module,
    inputs: &[(&str, &Tensor)],
    options: &OnnxExportOptions,
    f: Function<'_>,
) -> Result<OnnxExport> {
    let target = Target::new(path, options.replace)?;
    let mut plan = options.plan(inputs)?;
    let eager = |plan: &Plan<'_>, sizes: &[usize]| gradus_tensor::no_grad(|| f(&plan.inputs(inputs, sizes)?));
    // Tables that a model makes for as many positions as it needs are made for the largest size, unless it is limited to
    // fewer.
    let _refused = eager(&plan, &plan.larger()).is_err();
    plan.adapt(|plan, sizes| eager(plan, sizes).is_ok());
    let traced = plan.traced();
    for sizes in traced.iter().rev() {
        eager(&plan, sizes)?;
    }
    let mut traces = Vec::new();
    for sizes in &traced {
        let trace = record(f, &plan.inputs(inputs, sizes)?)?;
        if let Some(first) = traces.first() {
            same_structure(first, &trace)?;
        }
        traces.push(trace);
    }
    let outputs = options.output_names(traces[0].outputs.len(), inputs)?;
    let symbols = plan.symbols();
    let mut builder = Builder::new(&traces, symbols, options.most_opset());
    let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
    name_leaves(&mut builder, model, &names, &outputs);
    for at in 0..traces[0].nodes.len() {
        emit(&mut builder, at)?;
    }
    let mut out = builder.finish(&names, &outputs)?;
    out.metadata.extend(options.metadata.iter().cloned());
    let files = out.files(options.most_bytes.unwrap_or(MOST_BYTES), &target.data)?;
    target.check(&files)?;
    let mut expected = vec![(plan.example.clone(), eager(&plan, &plan.example)?)];
    // The module may refuse these sizes, or do something else for them.
    for sizes in plan.more() {
        if let Ok(trace) = plan.inputs(inputs, &sizes).and_then(|inputs| record(f, &inputs))
            && same_structure(&traces[0], &trace).is_ok()
        {
            expected.push((sizes, trace.results));
        }
    }
    expected.extend(traced.into_iter().zip(traces).map(|(sizes, trace)| (sizes, trace.results)));
    let difference = check::check(&files, &target.data, inputs, &outputs, &plan, &expected)?;
    target.write(&files)?;
    Ok(OnnxExport {
        opset: out.opset,
        nodes: out.nodes.len(),
        bytes: files.model.len() + files.data.as_ref().map_or(0, Vec::len),
        difference,
        external_data: files.data.is_some().then_some(target.data),
    })
}

/// Names the inputs and parameters, and notes which values depend on them.
fn name_leaves(b: &mut Builder<'_>, model: &dyn Module, inputs: &[&str], outputs: &[String]) {
    let first = b.first();
    for (&id, &name) in first.inputs.iter().zip(inputs) {
        b.names.insert(id, name.to_owned());
        b.dtypes.insert(name.to_owned(), first.values[id].dtype());
        b.varies.insert(id);
        b.taken.insert(name.to_owned());
    }
    b.taken.extend(outputs.iter().cloned());
    type Place = (usize, Layout, DType);
    let place = |t: &Tensor| -> Place { (Arc::as_ptr(t.storage()).addr(), *t.layout(), t.dtype()) };
    let mut owned: HashMap<Place, String> = HashMap::new();
    let parameters = model.named_parameters().into_iter().map(|(name, p)| (name, p.tensor().clone()));
    let buffers = model.named_buffers().into_iter().map(|(name, buffer)| (name, buffer.tensor().clone()));
    for (name, tensor) in parameters.chain(buffers) {
        owned.entry(place(&tensor)).or_insert(name);
    }
    for id in 0..first.values.len() {
        let t = &first.values[id];
        if first.makers[id].is_some() || b.names.contains_key(&id) {
            continue;
        }
        let Some(name) = owned.get(&place(t)) else { continue };
        let mut name = name.clone();
        if !b.taken.insert(name.clone()) {
            name = b.fresh(&name);
        }
        let (elem, shape) = (Elem::of_dtype(t.dtype()), t.shape().to_vec());
        b.initializers.push(Initializer { name: name.clone(), elem, shape, data: Data::Tensor(t.clone()) });
        b.dtypes.insert(name.clone(), t.dtype());
        b.names.insert(id, name);
        b.varies.insert(id);
    }
    for node in &first.nodes {
        if node.inputs.iter().any(|id| b.varies.contains(id)) {
            b.varies.extend(&node.outputs);
        }
    }
}

/// Adds what stands for an operation of the traces.
fn emit(b: &mut Builder<'_>, at: usize) -> Result<()> {
    let node = &b.first().nodes[at];
    let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
    if !outputs.iter().any(|id| b.varies.contains(id)) {
        let mut constant = true;
        for &id in outputs {
            constant &= b.is_constant(id)?;
        }
        if constant {
            return Ok(()); // An initialiser, if anything uses it.
        }
    }
    if inputs.iter().any(|id| b.missing.contains_key(id)) {
        let from = inputs.iter().find_map(|id| b.missing.get(id)).copied().unwrap_or(at);
        b.missing.extend(outputs.iter().map(|&id| (id, from)));
        return Ok(());
    }
    let names = emitted(b, at, &node.op, inputs, outputs)?;
    if let Some(problem) = b.problem.take() {
        return Err(b.unsupported(at, problem).help("allow a higher opset, or compose it of other operations"));
    }
    for (&id, name) in outputs.iter().zip(names) {
        b.names.insert(id, name);
    }
    // Such as the statistics of a norm, which only the backward pass needs.
    let rest: Vec<Id> = outputs.iter().copied().filter(|id| !b.names.contains_key(id)).collect();
    b.missing.extend(rest.into_iter().map(|id| (id, at)));
    Ok(())
}

/// The names of the outputs.
fn emitted(b: &mut Builder<'_>, at: usize, op: &Op, inputs: &[Id], outputs: &[Id]) -> Result<Vec<String>> {
    if let Some(names) = b.product(at, op, inputs)? {
        return Ok(names);
    }
    Ok(vec![match op {
        Op::Map(op) => return b.map(at, op, inputs, outputs),
        Op::Split(op) => return b.split(at, inputs[0], outputs.len(), op),
        Op::Sort(op) => return b.sort(at, inputs[0], op),
        Op::Reshape(_) => {
            let (from, to) = (b.dims(inputs[0]), b.dims(outputs[0]));
            let x = b.name(inputs[0])?;
            b.reshape(at, &x, &from, &to, inputs)?
        }
        Op::Permute(op) => {
            let x = b.name(inputs[0])?;
            b.permute(&x, op)
        }
        Op::Flip(op) => {
            let x = b.name(inputs[0])?;
            b.flip(&x, op)
        }
        Op::Expand(op) => b.expand(at, inputs[0], outputs[0], op)?,
        Op::Slice(op) => b.slice(at, inputs[0], outputs[0], op)?,
        Op::Cat(op) => {
            let names: Vec<String> = inputs.iter().map(|&id| b.name(id)).collect::<Result<_>>()?;
            b.cat(&names.iter().map(String::as_str).collect::<Vec<_>>(), op)
        }
        Op::Arange(_) => b.arange(at, outputs[0])?,
        Op::Fill(_) => b.fill(at, outputs[0])?,
        Op::PadConstant(op) => b.pad(at, inputs[0], op)?,
        Op::Embedding(_) => b.embedding(inputs[0], inputs[1])?,
        Op::Gather(op) => b.gather(inputs[0], inputs[1], op)?,
        Op::Scatter(op) => b.scatter(inputs, op)?,
        Op::ArgReduce(op) => {
            let x = b.name(inputs[0])?;
            b.arg_reduce(&x, op)
        }
        Op::Reduce(op) => b.reduce(inputs[0], outputs[0], op)?,
        Op::Scan(op) => {
            let x = b.name(inputs[0])?;
            b.scan(at, &x, op)?
        }
        Op::Softmax(op) => {
            let x = b.name(inputs[0])?;
            b.softmax(&x, op)
        }
        Op::Normalize(op) => b.normalize(at, inputs, op)?,
        _ => return Err(b.unsupported(at, "it has no form in ONNX yet").help("compose it of other operations")),
    }])
}
