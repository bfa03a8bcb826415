//! Shape arithmetic: operators on small integers on the host, which need no tensor on the device. If a function does
//! not apply, it returns `None`, and the operator runs on tensors instead.

use crate::elem::Elem;
use crate::graph::{Call, axis};
use crate::value::{Array, OnnxValue};

/// The largest number of elements of a result on the host.
const MOST: usize = 4096;

/// The largest number of equal integers that are made on the host. More of them are hardly a shape.
const FILLED: usize = 64;

/// The integers of an input, if they are on the host.
fn ints<'c>(c: &'c Call<'_>, input: usize) -> Option<(Elem, &'c [usize], &'c [i64])> {
    let Some(OnnxValue::Tensor(array)) = c.given(input) else { return None };
    let values = array.on_host().filter(|values| values.len() <= MOST)?;
    matches!(array.elem(), Elem::I64 | Elem::I32 | Elem::Bool).then_some((array.elem(), array.shape(), values))
}

fn host(elem: Elem, shape: Vec<usize>, values: Vec<i64>) -> Option<Array> {
    let in_range = elem != Elem::I32 || values.iter().all(|&v| i32::try_from(v).is_ok());
    (in_range && values.len() <= MOST).then(|| Array::host(elem, shape, values))
}

/// An operator on two inputs. They have the same shape, or one is a single number.
fn pairs(c: &Call<'_>, result: Option<Elem>, f: fn(i64, i64) -> Option<i64>) -> Option<Array> {
    if c.inputs.len() != 2 {
        return None;
    }
    let ((elem, shape, a), (other, shape_b, b)) = (ints(c, 0)?, ints(c, 1)?);
    if elem != other {
        return None;
    }
    let shape = match () {
        () if shape == shape_b || (b.len() == 1 && shape_b.len() <= shape.len()) => shape,
        () if a.len() == 1 && shape.len() <= shape_b.len() => shape_b,
        () => return None,
    };
    let at =
        |values: &[i64], i: usize| if values.len() == 1 { values.first().copied() } else { values.get(i).copied() };
    let n: usize = shape.iter().product();
    // At most `MOST`, the number of elements of an input.
    let values: Option<Vec<i64>> = (0..n).map(|i| f(at(a, i)?, at(b, i)?)).collect();
    host(result.unwrap_or(elem), shape.to_vec(), values?)
}

pub(super) fn add(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, i64::checked_add)
}

pub(super) fn sub(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, i64::checked_sub)
}

pub(super) fn mul(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, i64::checked_mul)
}

pub(super) fn div(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, i64::checked_div)
}

pub(super) fn max(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, |a, b| Some(a.max(b)))
}

pub(super) fn min(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, |a, b| Some(a.min(b)))
}

pub(super) fn equal(c: &Call<'_>) -> Option<Array> {
    pairs(c, Some(Elem::Bool), |a, b| Some((a == b).into()))
}

pub(super) fn less(c: &Call<'_>) -> Option<Array> {
    pairs(c, Some(Elem::Bool), |a, b| Some((a < b).into()))
}

pub(super) fn greater(c: &Call<'_>) -> Option<Array> {
    pairs(c, Some(Elem::Bool), |a, b| Some((a > b).into()))
}

pub(super) fn and(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, |a, b| Some(a & b))
}

pub(super) fn or(c: &Call<'_>) -> Option<Array> {
    pairs(c, None, |a, b| Some(a | b))
}

pub(super) fn not(c: &Call<'_>) -> Option<Array> {
    let (elem, shape, values) = ints(c, 0)?;
    host(elem, shape.to_vec(), values.iter().map(|&v| i64::from(v == 0)).collect())
}

/// Applies only between integer types; a result of a float type is a tensor.
pub(super) fn cast(c: &Call<'_>) -> Option<Array> {
    let (_, shape, values) = ints(c, 0)?;
    let elem = c.elem_attribute("to").ok()?.filter(|e| matches!(e, Elem::I64 | Elem::I32 | Elem::Bool))?;
    let values = values.iter().map(|&v| if elem == Elem::Bool { i64::from(v != 0) } else { v });
    host(elem, shape.to_vec(), values.collect())
}

/// Applies only to axis 0 of a vector.
pub(super) fn gather(c: &Call<'_>) -> Option<Array> {
    let ((elem, shape, values), (_, index_shape, index)) = (ints(c, 0)?, ints(c, 1)?);
    if shape.len() != 1 || axis(c.int("axis", 0).ok()?, 1).is_err() {
        return None;
    }
    let pick = |&i: &i64| values.get(axis(i, values.len()).ok()?).copied();
    host(elem, index_shape.to_vec(), index.iter().map(pick).collect::<Option<_>>()?)
}

/// Of vectors.
pub(super) fn concat(c: &Call<'_>) -> Option<Array> {
    let mut all = Vec::new();
    let mut elem = None;
    for i in 0..c.inputs.len() {
        let (of, shape, values) = ints(c, i)?;
        if shape.len() != 1 || *elem.get_or_insert(of) != of {
            return None;
        }
        all.extend_from_slice(values);
    }
    axis(c.int("axis", 1).ok()?, 1).ok()?;
    host(elem?, vec![all.len()], all)
}

/// Applies only to a vector, with the positions given as inputs.
pub(super) fn slice(c: &Call<'_>) -> Option<Array> {
    let (elem, shape, values) = ints(c, 0)?;
    let ([n], (_, _, &[start]), (_, _, &[end])) = (shape, ints(c, 1)?, ints(c, 2)?) else { return None };
    let single = |input: usize, default: i64| match c.given(input) {
        None => Some(default),
        Some(_) => ints(c, input).and_then(|(_, _, values)| if let &[v] = values { Some(v) } else { None }),
    };
    if axis(single(3, 0)?, 1).is_err() || single(4, 1)? != 1 {
        return None;
    }
    let n = *n as i64;
    let place = |v: i64| if v < 0 { v.saturating_add(n) } else { v }.clamp(0, n) as usize;
    let picked = values.get(place(start)..place(end)).unwrap_or_default().to_vec();
    host(elem, vec![picked.len()], picked)
}

pub(super) fn where_(c: &Call<'_>) -> Option<Array> {
    let ((_, shape, condition), (elem, shape_a, a), (other, shape_b, b)) = (ints(c, 0)?, ints(c, 1)?, ints(c, 2)?);
    if elem != other || shape != shape_a || shape != shape_b {
        return None;
    }
    let picked = condition.iter().zip(a.iter().zip(b)).map(|(&c, (&a, &b))| if c != 0 { a } else { b });
    host(elem, shape.to_vec(), picked.collect())
}

/// Applies only to a single number, which becomes a vector of one element.
pub(super) fn unsqueeze(c: &Call<'_>) -> Option<Array> {
    let (elem, shape, values) = ints(c, 0)?;
    let axes = match c.given(1) {
        Some(_) => ints(c, 1)?.2,
        None => c.ints("axes").ok()??,
    };
    (shape.is_empty() && matches!(axes, [0 | -1])).then(|| host(elem, vec![1], values.to_vec()))?
}

pub(super) fn squeeze(c: &Call<'_>) -> Option<Array> {
    let (elem, shape, values) = ints(c, 0)?;
    let axes = match c.given(1) {
        Some(_) => ints(c, 1)?.2,
        None => c.ints("axes").ok()?.unwrap_or(&[0]),
    };
    (shape == [1] && matches!(axes, [0 | -1])).then(|| host(elem, vec![], values.to_vec()))?
}

/// To a vector.
pub(super) fn reshape(c: &Call<'_>) -> Option<Array> {
    let (elem, _, values) = ints(c, 0)?;
    let (_, _, &[to]) = ints(c, 1)? else { return None };
    (to == -1 || to == values.len() as i64).then(|| host(elem, vec![values.len()], values.to_vec()))?
}

/// Applies only to the product of all elements of a vector.
pub(super) fn reduce_prod(c: &Call<'_>) -> Option<Array> {
    let (elem, shape, values) = ints(c, 0)?;
    if shape.len() != 1 || c.has("axes") && !matches!(c.ints("axes").ok()??, [0 | -1]) {
        return None;
    }
    if c.given(1).is_some() && !matches!(ints(c, 1)?.2, [0 | -1]) || c.flag("noop_with_empty_axes", false).ok()? {
        return None;
    }
    let product = values.iter().try_fold(1i64, |n, &v| n.checked_mul(v))?;
    let shape = if c.flag("keepdims", true).ok()? { vec![1] } else { vec![] };
    host(elem, shape, vec![product])
}

/// Applies only to integers and booleans.
pub(super) fn constant_of_shape(c: &Call<'_>) -> Option<Array> {
    let (_, _, sizes) = ints(c, 0)?;
    let Ok(Some(OnnxValue::Tensor(value))) = c.value("value") else { return None };
    let (elem @ (Elem::I64 | Elem::I32 | Elem::Bool), &[value]) = (value.elem(), value.on_host()?) else { return None };
    let shape = sizes.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<_>>>()?;
    let n = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size)).filter(|&n| n <= FILLED)?;
    host(elem, shape, vec![value; n])
}

pub(super) fn range(c: &Call<'_>) -> Option<Array> {
    let ((elem, _, &[start]), (_, _, &[end]), (_, _, &[step])) = (ints(c, 0)?, ints(c, 1)?, ints(c, 2)?) else {
        return None;
    };
    let mut values = Vec::new();
    let mut at = start;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        if values.len() >= MOST {
            return None;
        }
        values.push(at);
        at = at.checked_add(step)?;
    }
    (step != 0).then(|| host(elem, vec![values.len()], values))?
}
