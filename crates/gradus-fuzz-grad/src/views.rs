//! Views in the reference: which elements of the source they contain, and whether they are possible.

use crate::arrays::{at, fits, numel, places, with, without};
use crate::program::{Name, Statement};

/// Maps the position of an element in a view to its position in the source.
type Source = Box<dyn Fn(&[usize]) -> Vec<usize>>;

/// The shape of a view, and the flat index in the source of each of its elements.
pub(crate) fn view(s: &Statement, shape: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
    let (rank, axis) = (shape.len(), s.place(0));
    let mut new = shape.to_vec();
    let source: Source = match s.name {
        Name::Slice => {
            let (start, end, step) = (s.place(1), s.place(2), s.place(3));
            if axis >= rank || start > end || end > shape[axis] || step == 0 || step > 16 {
                return None;
            }
            new[axis] = (end - start).div_ceil(step);
            Box::new(move |i| with(i, axis, start + i[axis] * step))
        }
        Name::Select => {
            let k = s.place(1);
            if axis >= rank || k >= shape[axis] {
                return None;
            }
            new.remove(axis);
            Box::new(move |i| [&i[..axis], &[k], &i[axis..]].concat())
        }
        Name::Transpose => {
            let other = s.place(1);
            if axis >= rank || other >= rank {
                return None;
            }
            new.swap(axis, other);
            Box::new(move |i| {
                let mut i = i.to_vec();
                i.swap(axis, other);
                i
            })
        }
        Name::Flip => {
            let size = *shape.get(axis)?;
            Box::new(move |i| with(i, axis, size - 1 - i[axis]))
        }
        Name::Squeeze => {
            if shape.get(axis) != Some(&1) {
                return None;
            }
            new.remove(axis);
            Box::new(move |i| [&i[..axis], &[0], &i[axis..]].concat())
        }
        Name::Unsqueeze => {
            if axis > rank {
                return None;
            }
            new.insert(axis, 1);
            Box::new(move |i| without(i, axis))
        }
        Name::Reshape | Name::Expand => {
            new = s.numbers.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
            let expand = s.name == Name::Expand;
            let stretches = new.len() >= rank
                && new.iter().rev().zip(shape.iter().rev()).all(|(&n, &old)| old == n || old == 1)
                && new != shape;
            if !fits(&new) || (if expand { !stretches } else { numel(&new) != numel(shape) }) {
                return None;
            }
            if !expand {
                return Some((new.clone(), (0..numel(&new)).collect()));
            }
            let old = shape.to_vec();
            return Some((new.clone(), places(&new).iter().map(|i| at(&old, i)).collect()));
        }
        Name::Diagonal => {
            let (offset, a, b) = (s.number(0), s.place(1), s.place(2));
            let (down, right) = if offset < 0 { (offset.unsigned_abs() as usize, 0) } else { (0, offset as usize) };
            if a >= rank || b >= rank || a == b || down >= shape[a] || right >= shape[b] {
                return None;
            }
            new = (0..rank).filter(|&k| k != a && k != b).map(|k| shape[k]).collect();
            new.push((shape[a] - down).min(shape[b] - right));
            Box::new(move |i| {
                let (mut rest, k) = (i[..i.len() - 1].iter(), i[i.len() - 1]);
                let one = |axis| match axis {
                    _ if axis == a => k + down,
                    _ if axis == b => k + right,
                    _ => rest.next().copied().unwrap_or(0),
                };
                (0..rank).map(one).collect()
            })
        }
        Name::Windows => {
            let (size, step) = (s.place(1), s.place(2));
            if axis >= rank || size == 0 || size > shape[axis] || step == 0 || step > 16 {
                return None;
            }
            new[axis] = (shape[axis] - size) / step + 1;
            new.push(size);
            Box::new(move |i| with(&i[..rank], axis, i[axis] * step + i[rank]))
        }
        _ => return None,
    };
    if !fits(&new) {
        return None;
    }
    let from = places(&new).iter().map(|i| at(shape, &source(i))).collect();
    Some((new, from))
}

/// Whether an offset and one stride per axis can describe the places, so that a view of this shape exists.
pub(crate) fn is_strided(shape: &[usize], at: &[usize]) -> bool {
    if at.is_empty() {
        return true;
    }
    let mut span = 1;
    let mut strides = vec![0isize; shape.len()];
    for k in (0..shape.len()).rev() {
        if shape[k] > 1 {
            strides[k] = at[span] as isize - at[0] as isize;
        }
        span *= shape[k];
    }
    let place = |mut n: usize| {
        let mut p = at[0] as isize;
        for k in (0..shape.len()).rev() {
            p += (n % shape[k]) as isize * strides[k];
            n /= shape[k];
        }
        p
    };
    at.iter().enumerate().all(|(n, &p)| place(n) == p as isize)
}
