//! Derivatives of functions: [`vjp`], [`jvp`], [`hvp`], [`jacobian`], [`hessian`].
//!
//! Each of these takes a function of tensors and the point at which to differentiate it. The point may be any float
//! tensors, tracked or not. The functions compose to any order: if the point, a direction or a captured tensor is
//! tracked, and recording is on, the result is recorded and can be differentiated again. Inside
//! [`no_grad`](crate::autograd::no_grad) the result is not tracked. An output that does not depend on an input
//! contributes zeros. Calls may be nested up to [`MAX_NESTING`](crate::autograd::MAX_NESTING) levels; each level
//! multiplies the time.

use gradus_backend::host_vec::check_room;
use gradus_backend::{Error, ErrorKind, Here, Result, Shape};

use crate::Tensor;
use crate::autograd::graph::node::{Edge, next_seq};
use crate::autograd::mode::refuse_inference;
use crate::autograd::pass::engine::{check_seed, edges_across, grad_of_edges};
use crate::autograd::{BackwardOptions, Nested, enable_grad_guard, is_grad_enabled};

/// The possible return types of a function of tensors: one tensor, an array of tensors, or a list.
pub trait Tensors: Sized {
    /// Converts to a list.
    fn into_tensors(self) -> Vec<Tensor>;

    /// Converts from a list; `None` if the list has the wrong length.
    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self>;
}

impl Tensors for Tensor {
    fn into_tensors(self) -> Vec<Tensor> {
        vec![self]
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
        <[Tensor; 1]>::from_tensors(tensors).map(|[t]| t)
    }
}

impl<const N: usize> Tensors for [Tensor; N] {
    fn into_tensors(self) -> Vec<Tensor> {
        self.into()
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
        tensors.try_into().ok()
    }
}

impl Tensors for Vec<Tensor> {
    fn into_tensors(self) -> Vec<Tensor> {
        self
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
        Some(tensors)
    }
}

/// Converts a list of tensors to the return type of the caller's function.
#[track_caller]
pub(in crate::autograd) fn as_outputs<O: Tensors>(op: &str, tensors: Vec<Tensor>) -> Result<O> {
    let count = tensors.len();
    O::from_tensors(tensors)
        .ok_or_else(|| Error::argument(op, format!("{count} tensors where another number is given")))
        .here()
}

/// The same tensor with an edge of its own: a leaf if `t` is not tracked, otherwise a view that passes gradients on to
/// `t`.
#[track_caller]
fn point(t: &Tensor) -> Result<Tensor> {
    if t.requires_grad() { t.reshape(t.shape()) } else { t.with_grad() }
}

/// A function evaluated at points that have edges of their own.
struct Evaluated {
    points: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// The number of the last node recorded before the evaluation.
    before: u64,
    /// Whether the caller records.
    recording: bool,
}

impl Evaluated {
    #[track_caller]
    fn new<O: Tensors>(op: &str, f: &impl Fn(&[Tensor]) -> Result<O>, inputs: &[&Tensor]) -> Result<Self> {
        let at = Evaluated::points(op, inputs)?;
        let _nested = Nested::enter(op)?;
        let _mode = enable_grad_guard();
        let outputs = f(&at.points).here()?.into_tensors();
        at.with(op, outputs)
    }

    /// The points, without outputs yet.
    #[track_caller]
    fn points(op: &str, inputs: &[&Tensor]) -> Result<Self> {
        refuse_inference(op)?;
        let recording = is_grad_enabled();
        if let Some((i, t)) = inputs.iter().enumerate().find(|(_, t)| !t.dtype().is_float()) {
            return Err(t.describe(Error::dtype(op, t.dtype(), "floats"), &format!("input {i}")));
        }
        let _mode = enable_grad_guard();
        let before = next_seq();
        let mut points = Vec::with_capacity(inputs.len());
        for t in inputs {
            points.push(point(t)?);
        }
        Ok(Evaluated { points, outputs: vec![], before, recording })
    }

    /// Adds the outputs that were computed from the points.
    #[track_caller]
    fn with(self, op: &str, outputs: Vec<Tensor>) -> Result<Self> {
        outputs.iter().try_for_each(|t| t.check_current(op)).here()?;
        Ok(Evaluated { outputs, ..self })
    }

    /// Whether to record the derivatives: the caller records, and they depend on a tracked tensor from outside.
    fn goes_on(&self, directions: &[&Tensor]) -> bool {
        let edges = self.outputs.iter().filter_map(Tensor::edge);
        self.recording && (directions.iter().any(|t| t.requires_grad()) || !edges_across(edges, self.before).is_empty())
    }

    /// The gradients of the outputs, weighted by `cotangents`, with respect to `targets`; zeros for a target that no
    /// output depends on.
    #[track_caller]
    fn pull(&self, targets: &[Tensor], cotangents: &[&Tensor], options: BackwardOptions) -> Result<Vec<Tensor>> {
        pull(&self.outputs, targets, cotangents, options)
    }

    /// The outputs to return to the caller: with their graph if `tracked`, otherwise detached.
    fn values(&self, tracked: bool) -> Vec<Tensor> {
        self.outputs.iter().map(|y| if tracked { y.clone() } else { y.detach() }).collect()
    }
}

#[track_caller]
fn pull(
    outputs: &[Tensor],
    targets: &[Tensor],
    cotangents: &[&Tensor],
    options: BackwardOptions,
) -> Result<Vec<Tensor>> {
    let mut roots: Vec<(Edge, Tensor)> = vec![];
    for (y, &c) in outputs.iter().zip(cotangents) {
        roots.extend(y.edge().map(|e| (e.clone(), c.clone())));
    }
    let mut edges = vec![];
    for t in targets {
        edges.push(t.edge().ok_or_else(|| Error::new(ErrorKind::Autograd, "vjp", "an input is not tracked")).here()?);
    }
    let found = grad_of_edges(roots, &edges, options, 0)?;
    found.into_iter().zip(targets).map(|(g, t)| g.map_or_else(|| t.zeros_like(), Ok)).collect()
}

fn options(create_graph: bool) -> BackwardOptions {
    // The graph is retained, since part of it may belong to tensors that the function captured.
    let options = BackwardOptions::new().retain_graph();
    if create_graph { options.create_graph() } else { options }
}

/// Fails unless there is one direction for each tensor, with the same shape, dtype and device.
#[track_caller]
fn check_directions(op: &str, what: &str, tensors: &[Tensor], directions: &[&Tensor]) -> Result<()> {
    if tensors.len() != directions.len() {
        let m = format!("{} {what}s for {} tensors", directions.len(), tensors.len());
        return Err(Error::argument(op, m).help("pass one each, in order"));
    }
    tensors
        .iter()
        .zip(directions)
        .try_for_each(|(t, d)| {
            check_seed(op, t, d)
                .map_err(|e| {
                    let m = format!("a {what} has the shape, dtype and device of its tensor");
                    d.describe(t.describe(Error::new(e.kind().clone(), op, m), "tensor"), what)
                })
                .here()
        })
        .here()
}

/// A vector-Jacobian product. Returns the outputs of `f` and, for each input, the gradient of the outputs weighted by
/// `cotangents`. There must be one cotangent for each output, with the same shape, dtype and device. Each gradient has
/// the shape of its input.
///
/// # Errors
/// Inputs that are not floats, cotangents that do not match the outputs, and any error of `f` or of a gradient.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f64, 2.0], [2], &device)?;
/// let c = Tensor::from_vec(vec![10.0f64, 1.0], [2], &device)?;
/// let (y, g) = vjp(|x| x[0].square(), &[&x], &[&c])?;
/// assert_eq!(y.to_vec::<f64>()?, [1.0, 4.0]);
/// assert_eq!(g[0].to_vec::<f64>()?, [20.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn vjp<O: Tensors>(
    f: impl Fn(&[Tensor]) -> Result<O>,
    inputs: &[&Tensor],
    cotangents: &[&Tensor],
) -> Result<(O, Vec<Tensor>)> {
    let at = Evaluated::new("vjp", &f, inputs)?;
    check_directions("vjp", "cotangent", &at.outputs, cotangents)?;
    let tracked = at.goes_on(cotangents);
    let gradients = at.pull(&at.points, cotangents, options(tracked))?;
    Ok((as_outputs("vjp", at.values(tracked))?, gradients))
}

/// A Jacobian-vector product. Returns the outputs of `f` and, for each output, its derivative along `tangents`. There
/// must be one tangent for each input, with the same shape, dtype and device. Each derivative has the shape of its
/// output.
///
/// This differentiates twice: the vector-Jacobian product is linear in its cotangents, and its derivative with respect
/// to them is the transposed product. It costs about as much as two gradients, and every operation of `f` must be
/// differentiable twice.
///
/// # Errors
/// Inputs that are not floats, tangents that do not match the inputs, and any error of `f` or of a gradient.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f64, 2.0], [2], &device)?;
/// let t = Tensor::from_vec(vec![1.0f64, 0.5], [2], &device)?;
/// let (_, along) = jvp(|x| x[0].square()?.sum_all(), &[&x], &[&t])?;
/// assert_eq!(along.item()?, 4.0);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn jvp<O: Tensors>(f: impl Fn(&[Tensor]) -> Result<O>, inputs: &[&Tensor], tangents: &[&Tensor]) -> Result<(O, O)> {
    let at = Evaluated::new("jvp", &f, inputs)?;
    check_directions("jvp", "tangent", &at.points, tangents)?;
    let tracked = at.goes_on(tangents);
    let (mut weights, mut flows) = (vec![], vec![]);
    for y in &at.outputs {
        // The derivative of an output that is not tracked is zero.
        if y.requires_grad() {
            weights.push(y.zeros_like()?.with_grad()?);
            flows.push(y.clone());
        }
    }
    let linear = pull(&flows, &at.points, &weights.iter().collect::<Vec<_>>(), options(true))?;
    let mut found = pull(&linear, &weights, tangents, options(tracked))?.into_iter();
    let mut along = vec![];
    for y in &at.outputs {
        let d = if y.requires_grad() { found.next() } else { None };
        along.push(d.map_or_else(|| y.zeros_like(), Ok)?);
    }
    Ok((as_outputs("jvp", at.values(tracked))?, as_outputs("jvp", along)?))
}

/// A Hessian-vector product. Returns the value of `f`, which must have one element, and for each input the derivative
/// of the gradient of `f` along `vectors`. Vectors and results have the shapes of the inputs. The product is computed
/// without forming the Hessian, as the gradient of the dot product of the gradient and the vectors.
///
/// # Errors
/// The same as for [`vjp`], and a value with several elements.
#[track_caller]
pub fn hvp(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<(Tensor, Vec<Tensor>)> {
    let at = Evaluated::new("hvp", &f, inputs)?;
    check_directions("hvp", "vector", &at.points, vectors)?;
    check_scalar("hvp", &at.outputs[0])?;
    let tracked = at.goes_on(vectors);
    let one = ones(&at.outputs[0])?;
    let gradient = at.pull(&at.points, &[&one], options(true))?;
    let product = pull(&gradient, &at.points, vectors, options(tracked))?;
    Ok((as_outputs("hvp", at.values(tracked))?, product))
}

/// All derivatives of `f` with respect to each input: for an output of shape `[y..]` and an input of shape `[x..]`, a
/// tensor of shape `[y.., x..]`. Computes one gradient for each element of the output.
///
/// # Errors
/// Inputs or an output that are not floats, a result with more axes than a tensor can have, and any error of `f` or of
/// a gradient.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f64, 2.0], [2], &device)?;
/// let j = jacobian(|x| x[0].square(), &[&x])?;
/// assert_eq!(j[0].to_vec::<f64>()?, [2.0, 0.0, 0.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn jacobian(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    jacobian_of("jacobian", Evaluated::new("jacobian", &f, inputs)?, inputs)
}

/// The second derivatives of `f`, whose value must have one element, with respect to one input: for an input of shape
/// `[x..]`, a tensor of shape `[x.., x..]`. This is the [`jacobian`] of the gradient.
///
/// # Errors
/// The same as for [`jacobian`], and a value with several elements.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f64, 2.0], [2], &device)?;
/// let h = hessian(|x| x.square()?.prod(&[0], false), &x)?;
/// assert_eq!(h.to_vec::<f64>()?, [8.0, 8.0, 8.0, 2.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn hessian(f: impl Fn(&Tensor) -> Result<Tensor>, input: &Tensor) -> Result<Tensor> {
    let outer = Evaluated::points("hessian", &[input])?;
    let gradient = {
        let _mode = enable_grad_guard();
        let inner = Evaluated::new("hessian", &|x: &[Tensor]| f(&x[0]), &[&outer.points[0]])?;
        check_scalar("hessian", &inner.outputs[0])?;
        // The point is tracked, so the gradient is recorded.
        inner.pull(&inner.points, &[&ones(&inner.outputs[0])?], options(true))?
    };
    as_outputs("hessian", jacobian_of("hessian", outer.with("hessian", gradient)?, &[input])?)
}

/// The maximum number of bytes that a row of a Jacobian needs on the host, in addition to its elements.
const ROW_BYTES: usize = 1024;

#[track_caller]
fn jacobian_of(op: &str, at: Evaluated, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let y = &at.outputs[0];
    if !y.dtype().is_float() {
        return Err(y.describe(Error::dtype(op, y.dtype(), "functions that give floats"), "output"));
    }
    let mut shapes = vec![];
    for t in inputs {
        let all: Vec<usize> = y.shape().iter().chain(t.shape()).copied().collect();
        shapes.push(Shape::new(&all).map_err(|e| t.describe(y.describe(e, "output"), "input"))?);
    }
    let tracked = at.goes_on(&[]);
    check_room(y.device().backend(), op, y.numel().saturating_mul(inputs.len()), ROW_BYTES)?;
    let mut rows: Vec<Vec<Tensor>> = vec![vec![]; inputs.len()];
    let unit = crate::no_grad_guard();
    let flat = Tensor::zeros([y.numel()], y.dtype(), y.device())?;
    for k in 0..y.numel() {
        // Each seed is a copy, since a recorded gradient may save it.
        let seed = flat.copy()?;
        seed.narrow(0, k, 1)?.fill_(1.0)?;
        let seed = seed.reshape(y.shape())?;
        for (row, g) in rows.iter_mut().zip(at.pull(&at.points, &[&seed], options(tracked))?) {
            row.push(g);
        }
    }
    drop(unit);
    let mut out = vec![];
    for ((row, shape), t) in rows.iter().zip(shapes).zip(inputs) {
        out.push(match row.is_empty() {
            true => Tensor::zeros(shape, t.dtype(), t.device())?,
            false => Tensor::stack(&row.iter().collect::<Vec<_>>(), 0)?.reshape(shape)?,
        });
    }
    Ok(out)
}

#[track_caller]
fn ones(t: &Tensor) -> Result<Tensor> {
    Tensor::ones(t.shape(), t.dtype(), t.device())
}

#[track_caller]
fn check_scalar(op: &str, y: &Tensor) -> Result<()> {
    if y.numel() == 1 && y.dtype().is_float() {
        return Ok(());
    }
    let e = Error::shape(op, "the function gives one float element");
    Err(y.describe(e, "value").help("reduce it to a scalar, for example with sum_all"))
}
