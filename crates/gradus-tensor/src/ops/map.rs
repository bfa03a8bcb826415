//! A recorded elementwise kernel, and its gradient, which consists of such kernels again.

use std::borrow::Cow;
use std::sync::Arc;

use gradus_backend::kernel::{Vjp, VjpArg};
use gradus_backend::{Backend, Error, ErrorKind, Here, Kernel, Layout, MapArg, Result, Scalar, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, Spec, To, Update, apply_one, bind, one};
use crate::Tensor;

/// The largest number of arguments and outputs that one gradient kernel may have together. A larger kernel is replaced
/// by a kernel for each output. A gradient kernel has the arguments of its kernel and one more for each output, so
/// kernels of several outputs double with each order of differentiation, whereas kernels of one output grow by one.
const LARGE: usize = 20;

/// The source of a kernel's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arg {
    /// Input number `.0` of the operation.
    Tensor(usize),
    /// A constant number.
    Scalar(Scalar),
    /// Output number `.0` of an [`Update`], with its value before the update.
    Output(usize),
}

/// An elementwise kernel applied to tensors that broadcast together.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Map {
    /// The kernel to apply.
    pub kernel: Arc<Kernel>,
    /// The source of each argument of the kernel.
    pub args: SmallVec<[Arg; 3]>,
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        describe(&self.kernel, &self.args, f)
    }
}

/// Prints a kernel's name, followed by its scalar arguments and, for a conversion, the dtype.
pub(super) fn describe(kernel: &Kernel, args: &[Arg], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    f.write_str(kernel.name())?;
    let scalars = args.iter().filter_map(|a| if let Arg::Scalar(s) = a { Some(s.to_string()) } else { None });
    let cast = kernel.outputs().iter().filter(|_| kernel.name() == "to_dtype").map(|o| o.1.to_string());
    let parameters: Vec<String> = scalars.chain(cast).collect();
    if parameters.is_empty() { Ok(()) } else { write!(f, "[{}]", parameters.join(", ")) }
}

impl Map {
    fn input_of(&self, kernel_arg: usize) -> Option<usize> {
        match self.args[kernel_arg] {
            Arg::Tensor(i) => Some(i),
            Arg::Scalar(_) | Arg::Output(_) => None,
        }
    }

    /// A mask with bit `i` set if kernel argument `i` is an input whose gradient is needed.
    fn wanted(&self, needs: impl Fn(usize) -> bool) -> u32 {
        (0..self.args.len()).filter(|&i| self.input_of(i).is_some_and(&needs)).fold(0, |m, i| m | 1 << i)
    }

    /// Calls `f` with the kernels that compute the gradients of the arguments in `wanted`: a single kernel or, if that
    /// would exceed [`LARGE`], one for each argument. The second argument of `f` says whether the kernel is the only
    /// one.
    #[track_caller]
    fn each_vjp(&self, wanted: u32, mut f: impl FnMut(&Vjp, bool) -> Result<()>) -> Result<()> {
        let several = wanted.count_ones() > 1;
        let fits = |vjp: &Vjp| !several || vjp.args.len() + vjp.wanted.len() <= LARGE;
        match self.kernel.made_vjp(wanted) {
            Some(vjp) if fits(vjp) => return f(vjp, true),
            Some(_) => {}
            None => match self.kernel.vjp(wanted) {
                Ok(vjp) if fits(&vjp) => return f(&vjp, true),
                Err(e) if !several => return Err(e),
                _ => {}
            },
        }
        let each = (0..self.args.len()).map(|i| 1 << i).filter(|one| wanted & one != 0);
        each.map(|one| self.kernel.vjp(one)).try_for_each(|vjp| f(&*vjp?, false))
    }

    /// Adds the gradients that `vjp` computes to `found`. `last` says that no other kernel reads `grads`.
    #[track_caller]
    fn pull(
        &self,
        vjp: &Vjp,
        last: bool,
        ctx: &Context<'_>,
        grads: &[Option<Tensor>],
        found: &mut Grads,
    ) -> Result<()> {
        let mut add = |input: usize, g: Tensor| -> Result<()> {
            let shape = &ctx.input_spec(input)?.shape;
            let g = if g.layout().shape() == shape { g } else { g.sum_to(shape)? };
            found[input] = Some(match found[input].take() {
                Some(sum) => sum.add(&g)?,
                None => g,
            });
            Ok(())
        };
        if !vjp.passed.is_empty() {
            let mut rest = vjp.wanted.iter().fold(0, |mask, &arg| mask | 1 << arg);
            for &(arg, output) in &vjp.passed {
                rest &= !(1 << arg);
                if let (Some(input), Some(g)) = (self.input_of(arg), &grads[output]) {
                    add(input, g.clone())?;
                }
            }
            return if rest == 0 {
                Ok(())
            } else {
                self.each_vjp(rest, |vjp, one| self.pull(vjp, last && one, ctx, grads, found))
            };
        }
        // If the kernel reads no incoming gradient that is present, its result is the constant zero.
        if !vjp.args.iter().any(|a| matches!(a, VjpArg::Grad(k) if grads[*k].is_some())) {
            return Ok(());
        }
        let mut tensors: SmallVec<[Cow<'_, Tensor>; 4]> = SmallVec::new();
        let mut args = SmallVec::new();
        for arg in &vjp.args {
            let tensor = match *arg {
                VjpArg::Input(i) => match self.args[i] {
                    Arg::Tensor(input) => ctx.borrow_input(input)?,
                    scalar => {
                        args.push(scalar);
                        continue;
                    }
                },
                VjpArg::Grad(k) => match &grads[k] {
                    Some(g) => Cow::Borrowed(g),
                    None => {
                        args.push(Arg::Scalar(Scalar::Float(0.0)));
                        continue;
                    }
                },
            };
            args.push(Arg::Tensor(tensors.len()));
            tensors.push(tensor);
        }
        let mut refs: SmallVec<[&Tensor; 4]> = SmallVec::new();
        for t in &tensors {
            refs.push(t);
        }
        if let [arg] = vjp.wanted[..] {
            let dtype = vjp.kernel.outputs()[0].1;
            let fits = |g: &&Tensor| g.dtype() == dtype && g.is_spare();
            let spare = if last && ctx.spares_grads() { grads.iter().flatten().find(fits) } else { None };
            let g = match spare {
                Some(g) => map_over(g, &vjp.kernel, &args, &refs)?,
                None => apply_one(Map { kernel: vjp.kernel.clone(), args }, &refs)?,
            };
            return self.input_of(arg).map_or(Ok(()), |input| add(input, g));
        }
        let map = Map { kernel: vjp.kernel.clone(), args };
        for (&arg, g) in vjp.wanted.iter().zip(super::apply(map, &refs)?) {
            if let Some(input) = self.input_of(arg) {
                add(input, g)?;
            }
        }
        Ok(())
    }
}

impl Operation for Map {
    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let mut shape = *inputs[0].shape;
        for t in &inputs[1..] {
            if *t.shape != shape {
                shape = Shape::broadcast(self.name(), &shape, t.shape)
                    .map_err(|e| {
                        Error::new(ErrorKind::Broadcast, self.name(), e.message())
                            .help("sizes must be equal or 1, aligned from the right; use unsqueeze or expand")
                    })
                    .here()?;
            }
        }
        Ok(match *self.kernel.outputs() {
            [(_, dtype)] => one(shape, dtype),
            ref several => several.iter().map(|&(_, dtype)| Spec { shape, dtype }).collect(),
        })
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        if let ([Arg::Tensor(0), Arg::Tensor(1)], [a, b]) = (&self.args[..], inputs)
            && a.layout.shape() == b.layout.shape()
        {
            return backend.map(&self.kernel, &[MapArg::View(*a), MapArg::View(*b)], outputs);
        }
        let layouts = stretched(inputs, outputs[0].layout.shape())?;
        backend.map(&self.kernel, &arguments(&self.args, inputs, &layouts), outputs)
    }

    fn flow(&self) -> Flow {
        Flow::InPlace
    }

    fn can_fail(&self) -> bool {
        self.kernel.can_fail()
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        let mut inputs = 0;
        let read = self.each_vjp(self.wanted(|i| needs[i]), |vjp, _| {
            for arg in &vjp.args {
                if let VjpArg::Input(i) = *arg
                    && let Some(input) = self.input_of(i)
                {
                    inputs |= 1 << input;
                }
            }
            Ok(())
        });
        // A gradient that is too large for a kernel is reported when it is computed. Until then nothing is saved for
        // it.
        if read.is_ok() { Keep { inputs, outputs: 0 } } else { Keep::NONE }
    }

    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let mut found: Grads = SmallVec::from_elem(None, ctx.input_count());
        self.each_vjp(self.wanted(|i| ctx.needs(i)), |vjp, one| self.pull(vjp, one, ctx, grads, &mut found))?;
        Ok(found)
    }
}

/// Runs a kernel with one output on `tensors`, which broadcast to the shape of `spare`, and writes the result into the
/// memory of `spare`. That tensor has the result's dtype, is not read again, and satisfies [`Tensor::is_spare`].
#[track_caller]
pub(crate) fn map_over(spare: &Tensor, kernel: &Arc<Kernel>, args: &[Arg], tensors: &[&Tensor]) -> Result<Tensor> {
    let mut others: SmallVec<[&Tensor; 4]> = SmallVec::new();
    let mut places: SmallVec<[Arg; 4]> = SmallVec::new();
    for &t in tensors {
        if std::ptr::eq(t, spare) {
            places.push(Arg::Output(0));
        } else {
            places.push(Arg::Tensor(others.len()));
            others.push(t);
        }
    }
    let args = args.iter().map(|&arg| if let Arg::Tensor(i) = arg { places[i] } else { arg }).collect();
    bind(Update { kernel: kernel.clone(), args }, &others, To::Spare(spare))
}

/// The arguments of a kernel. Unless `layouts` is empty, input `i` is viewed through `layouts[i]`, which broadcasts it.
#[inline]
pub(super) fn arguments<'a>(args: &[Arg], inputs: &[View<'a>], layouts: &'a [Layout]) -> SmallVec<[MapArg<'a>; 4]> {
    let mut found = SmallVec::new();
    for arg in args {
        found.push(match *arg {
            Arg::Tensor(i) => MapArg::View(layouts.get(i).map_or(inputs[i], |l| inputs[i].with(l))),
            Arg::Scalar(s) => MapArg::Scalar(s),
            Arg::Output(i) => MapArg::Output(i),
        });
    }
    found
}

/// Layouts that broadcast the views to `shape`. There are none if all views have that shape already.
#[inline]
#[track_caller]
pub(super) fn stretched(views: &[View<'_>], shape: &Shape) -> Result<SmallVec<[Layout; 2]>> {
    if views.iter().all(|v| v.layout.shape() == shape) {
        return Ok(SmallVec::new());
    }
    views.iter().map(|v| v.layout.expand(*shape)).collect()
}
