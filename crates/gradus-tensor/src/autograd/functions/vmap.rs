//! [`vmap`]: maps a function of one sample over a batch.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Error, ErrorKind, Here, HostVec, Result};

use crate::Tensor;
use crate::autograd::Nested;
use crate::autograd::functions::functional::{Tensors, as_outputs};

/// Applies `f` to every slice of `inputs` along their mapped axes, and stacks the outputs along `out_dims`.
///
/// `in_dims` contains the mapped axis of each input. `f` receives the slices, which lack that axis; an input whose
/// entry is `None` is passed whole to every call. All mapped axes must have the same size. `out_dims` contains, for
/// each output, the axis along which the results of the calls are stacked. Either list may have a single entry that
/// applies to all. Negative axes count from the end.
///
/// `f` is called once for each slice. This is correct for every function, including functions that draw random numbers
/// (each call draws its own) or whose control flow depends on values. The result can be differentiated to any order,
/// but `vmap` is no faster than a loop. **Most operations accept leading axes as they are**, and functions made of such
/// operations need no `vmap`: elementwise operations and [`matmul`](Tensor::matmul) broadcast, reductions and
/// [`softmax`](Tensor::softmax) take an axis as an argument, and [`linear`](Tensor::linear) and
/// [`layer_norm`](Tensor::layer_norm) work on the last axis. The second example uses this to compute the gradients of
/// all samples in one pass.
///
/// # Errors
/// - No axis is mapped, or the mapped axes differ in size or have size 0 (the shape of the result is then unknown).
/// - The length of a list matches neither the number of inputs or outputs nor 1.
/// - Calls return different numbers of tensors, or tensors of different shapes or dtypes.
/// - A tracked tensor is overwritten after a call has returned it.
/// - Calls are nested beyond [`MAX_NESTING`](crate::autograd::MAX_NESTING).
/// - `f` fails.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f64, 2.0, 3.0, 4.0], [2, 2], &device)?;
/// let w = Tensor::from_vec(vec![0.5f64, -1.0], [2], &device)?;
/// // The dot product of every column of x with w.
/// let y = vmap(|v| v[0].dot(&v[1]), &[&x, &w], &[Some(1), None], &[0])?;
/// assert_eq!(y.to_vec::<f64>()?, [-2.5, -3.0]);
///
/// // The gradient of each sample's loss.
/// let loss = |w: &Tensor, x: &Tensor| x.dot(w)?.square();
/// let one = Tensor::ones([], DType::F64, &device)?;
/// let each = vmap(|v| Ok(vjp(|p| loss(&p[0], &v[0]), &[&w], &[&one])?.1.swap_remove(0)), &[&x], &[Some(0)], &[0])?;
/// assert_eq!(each.to_vec::<f64>()?, [-3.0, -6.0, -15.0, -20.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// This example computes the same gradients in one pass, by broadcasting. Each sample gets its own parameter, but all
/// these parameters share the same memory.
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let x = Tensor::from_vec(vec![1.0f64, 2.0, 3.0, 4.0], [2, 2], &device)?;
/// # let w = Tensor::from_vec(vec![0.5f64, -1.0], [2], &device)?;
/// let own = w.expand([2, 2])?.with_grad()?;
/// let losses = (&x * &own)?.sum(&[1], false)?.square()?;
/// let each = losses.sum_all()?.backward()?;
/// assert_eq!(each.get(&own).unwrap().to_vec::<f64>()?, [-3.0, -6.0, -15.0, -20.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn vmap<O: Tensors>(
    f: impl Fn(&[Tensor]) -> Result<O>,
    inputs: &[&Tensor],
    in_dims: &[Option<isize>],
    out_dims: &[isize],
) -> Result<O> {
    let _nested = Nested::enter(OP)?;
    let entries = one_each("in_dims", in_dims, inputs.len(), "inputs")?;
    let mut mapped: Vec<Option<Vec<Tensor>>> = vec![];
    let mut size: Option<(usize, usize)> = None;
    for (i, (&t, dim)) in inputs.iter().zip(entries).enumerate() {
        let Some(dim) = dim else {
            mapped.push(None);
            continue;
        };
        let describe = |e: Error| t.describe(e, &format!("input {i}"));
        let axis = resolve_axis(OP, dim, t.rank()).map_err(describe)?;
        let n = t.shape()[axis];
        match size {
            None => size = Some((i, n)),
            Some((first, m)) if m != n => {
                let e = Error::shape(OP, format!("the mapped axes have {m} and {n} slices"));
                return Err(describe(inputs[first].describe(e, &format!("input {first}"))));
            }
            Some(_) => {}
        }
        mapped.push(Some(t.unbind(axis as isize)?));
    }
    let n = match size {
        None => {
            let e = Error::argument(OP, "no axis is mapped");
            return Err(
                e.help("give at least one input its axis in in_dims, Some(0) for example, or call the function")
            );
        }
        Some((i, 0)) => {
            let e = Error::argument(OP, "the mapped axes are empty: the function is never called, and gives no shape");
            return Err(inputs[i].describe(e, &format!("input {i}")));
        }
        Some((_, n)) => n,
    };
    let mut columns: Vec<HostVec<Slice>> = vec![];
    for k in 0..n {
        let pick = |(slices, &t): (&Option<Vec<Tensor>>, &&Tensor)| match slices.as_ref().and_then(|s| s.get(k)) {
            Some(slice) => slice.clone(),
            None => t.clone(),
        };
        let arguments: Vec<Tensor> = mapped.iter().zip(inputs).map(pick).collect();
        let outputs = f(&arguments).here()?.into_tensors();
        if k == 0 {
            let column = |y: &Tensor| HostVec::with_capacity(y.device().backend(), OP, n);
            columns = outputs.iter().map(column).collect::<Result<_>>().here()?;
        }
        if outputs.len() != columns.len() {
            let m = format!("slice {k} gives {} tensors, the first {}", outputs.len(), columns.len());
            return Err(Error::argument(OP, m));
        }
        for (i, (column, y)) in columns.iter_mut().zip(outputs).enumerate() {
            if let Some(first) =
                column.first().map(|s| &s.value).filter(|f| f.shape() != y.shape() || f.dtype() != y.dtype())
            {
                let e = Error::shape(OP, format!("output {i} differs in shape or dtype between slice 0 and {k}"));
                return Err(y.describe(first.describe(e, "slice 0"), &format!("slice {k}")));
            }
            column.push(OP, Slice::new(y)?)?;
        }
    }
    let entries = one_each("out_dims", out_dims, columns.len(), "outputs")?;
    for (i, column) in columns.iter().enumerate() {
        column.iter().enumerate().try_for_each(|(k, slice)| slice.check(i, k)).here()?;
    }
    let mut stacked = Vec::with_capacity(columns.len());
    for (column, dim) in columns.iter().zip(entries) {
        stacked.push(Tensor::stack(&column.iter().map(|s| &s.value).collect::<Vec<_>>(), dim)?);
    }
    as_outputs(OP, stacked)
}

const OP: &str = "vmap";

/// One output of one call.
struct Slice {
    value: Tensor,
    /// The version of the value's storage.
    version: u64,
}

impl Slice {
    /// Later calls may write into memory that someone else holds. An output in such memory is therefore copied or, if
    /// it is part of a graph, checked later.
    #[track_caller]
    fn new(y: Tensor) -> Result<Self> {
        let value = if y.requires_grad() || y.is_unshared() { y } else { y.copy()? };
        let version = value.storage().version();
        Ok(Slice { value, version })
    }

    /// Fails if output `i` of call `k` has been overwritten.
    #[track_caller]
    fn check(&self, i: usize, k: usize) -> Result<()> {
        let (t, version) = (&self.value, self.version);
        let Some(write) = t.overwritten(version) else { return Ok(()) };
        let m = format!("output {i} of slice {k} was overwritten by {} before all slices were done", write.op);
        let e = t.describe(Error::new(ErrorKind::Autograd, OP, m), "output");
        Err(e.note(format!("{} wrote at {}", write.op, write.location)).help("give a copy of it: y.copy()?"))
    }
}

/// Returns `n` entries: the list itself, or its only entry repeated.
#[track_caller]
fn one_each<T: Copy>(what: &str, list: &[T], n: usize, of: &str) -> Result<Vec<T>> {
    match *list {
        // The list has at most one entry for each input or output.
        [all] => Ok(vec![all; n]),
        _ if list.len() == n => Ok(list.to_vec()),
        _ => {
            let e = Error::argument(OP, format!("{} {what} for {n} {of}", list.len()));
            Err(e.help("pass one for each, or one for all"))
        }
    }
}
