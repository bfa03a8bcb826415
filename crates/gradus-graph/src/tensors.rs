//! [`Tensors`]: values that consist of tensors, which a captured step takes and returns.

use gradus_tensor::Tensor;

/// A value that consists of tensors, so that a captured step can take or return it: tensors, tuples, arrays, lists and
/// options of them, and structs that derive this trait.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_graph::{Tensors, capture_typed};
///
/// #[derive(Tensors)]
/// struct Batch {
///     image: Tensor,
///     mask: Option<Tensor>,
/// }
///
/// #[derive(Tensors)]
/// struct Statistics {
///     mean: Tensor,
///     largest: Tensor,
/// }
///
/// let mut step = capture_typed(|batch: &Batch| {
///     let image = match &batch.mask {
///         Some(mask) => batch.image.mul(mask)?,
///         None => batch.image.clone(),
///     };
///     Ok(Statistics { mean: image.mean_all()?, largest: image.max_all()? })
/// });
/// for i in 0..4 {
///     let batch = Batch { image: Tensor::full([3], i as f64, DType::F32, &device)?, mask: None };
///     let got = step.call(&batch)?;
///     assert_eq!((got.mean.item()?, got.largest.item()?), (i as f64, i as f64));
/// }
/// assert_eq!(step.replays(), 2);
/// # Ok::<(), Error>(())
/// ```
///
/// Numbers and other values are not `Tensors`, since a replay could not follow them. Pass a number that changes as a tensor,
/// and let the closure capture one that does not.
///
/// ```compile_fail,E0277
/// # use gradus_tensor::Tensor;
/// #[derive(gradus_graph::Tensors)]
/// struct Batch {
///     image: Tensor,
///     weight: f64,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not consist of tensors, so a captured step cannot take or return it",
    note = "derive `Tensors` for a struct of tensors; pass a number that changes from call to call as a tensor"
)]
pub trait Tensors: Sized {
    /// Appends the tensors in a fixed order, and the form: the other facts from which
    /// [`unflatten`](Tensors::unflatten) makes the value again, such as the length of a list.
    fn flatten<'t>(&'t self, tensors: &mut Vec<&'t Tensor>, form: &mut Vec<usize>);

    /// Takes the tensors and the form of a value from the front, and makes the value; `None` if there are too few.
    fn unflatten(tensors: &mut impl Iterator<Item = Tensor>, form: &mut impl Iterator<Item = usize>) -> Option<Self>;
}

impl Tensors for Tensor {
    fn flatten<'t>(&'t self, tensors: &mut Vec<&'t Tensor>, _: &mut Vec<usize>) {
        tensors.push(self);
    }

    fn unflatten(tensors: &mut impl Iterator<Item = Tensor>, _: &mut impl Iterator<Item = usize>) -> Option<Self> {
        tensors.next()
    }
}

/// The result of a step that only changes its arguments or the parameters of a model.
impl Tensors for () {
    fn flatten<'t>(&'t self, _: &mut Vec<&'t Tensor>, _: &mut Vec<usize>) {}

    fn unflatten(_: &mut impl Iterator<Item = Tensor>, _: &mut impl Iterator<Item = usize>) -> Option<Self> {
        Some(())
    }
}

/// The number of elements is part of the form.
impl<T: Tensors> Tensors for Vec<T> {
    fn flatten<'t>(&'t self, tensors: &mut Vec<&'t Tensor>, form: &mut Vec<usize>) {
        form.push(self.len());
        self.iter().for_each(|part| part.flatten(tensors, form));
    }

    fn unflatten(tensors: &mut impl Iterator<Item = Tensor>, form: &mut impl Iterator<Item = usize>) -> Option<Self> {
        (0..form.next()?).map(|_| T::unflatten(tensors, form)).collect()
    }
}

impl<T: Tensors, const N: usize> Tensors for [T; N] {
    fn flatten<'t>(&'t self, tensors: &mut Vec<&'t Tensor>, form: &mut Vec<usize>) {
        self.iter().for_each(|part| part.flatten(tensors, form));
    }

    fn unflatten(tensors: &mut impl Iterator<Item = Tensor>, form: &mut impl Iterator<Item = usize>) -> Option<Self> {
        let parts = (0..N).map(|_| T::unflatten(tensors, form)).collect::<Option<Vec<_>>>()?;
        parts.try_into().ok()
    }
}

/// Whether there is a value is part of the form.
impl<T: Tensors> Tensors for Option<T> {
    fn flatten<'t>(&'t self, tensors: &mut Vec<&'t Tensor>, form: &mut Vec<usize>) {
        form.push(usize::from(self.is_some()));
        self.iter().for_each(|part| part.flatten(tensors, form));
    }

    fn unflatten(tensors: &mut impl Iterator<Item = Tensor>, form: &mut impl Iterator<Item = usize>) -> Option<Self> {
        match form.next()? {
            0 => Some(None),
            _ => T::unflatten(tensors, form).map(Some),
        }
    }
}

macro_rules! tuples {
    ($(($($t:ident $part:ident),*))*) => { $(
        impl<$($t: Tensors),*> Tensors for ($($t,)*) {
            fn flatten<'t>(&'t self, tensors: &mut Vec<&'t Tensor>, form: &mut Vec<usize>) {
                let ($($part,)*) = self;
                $($part.flatten(tensors, form);)*
            }

            fn unflatten(
                tensors: &mut impl Iterator<Item = Tensor>,
                form: &mut impl Iterator<Item = usize>,
            ) -> Option<Self> {
                Some(($($t::unflatten(tensors, form)?,)*))
            }
        }
    )* };
}
tuples! {
    (A a)
    (A a, B b)
    (A a, B b, C c)
    (A a, B b, C c, D d)
    (A a, B b, C c, D d, E e)
    (A a, B b, C c, D d, E e, F f)
}
