//! [`View`]: a tensor as a view of a storage, by an offset and strides.

use gradus_tensor::backend::HostVec;
use gradus_tensor::{Error, ErrorKind, Result, Tensor};

use super::storages::OP;

pub(super) struct View<'a> {
    pub(super) offset: usize,
    pub(super) shape: &'a [usize],
    pub(super) strides: &'a [usize],
}

impl View<'_> {
    /// The view of the elements of a storage. It shares the memory of the storage if its elements are adjacent.
    /// Otherwise they are copied, and their number is subtracted from `copies`, the number of elements that may still
    /// be copied.
    #[track_caller]
    pub(super) fn of(&self, elements: &Tensor, copies: &mut usize) -> Result<Tensor> {
        let (shape, strides) = (self.shape, self.strides);
        if shape.contains(&0) {
            return Tensor::zeros(shape, elements.dtype(), elements.device());
        }
        let farthest = shape
            .iter()
            .zip(strides)
            .try_fold(self.offset, |at, (&size, &stride)| at.checked_add((size - 1).checked_mul(stride)?));
        if farthest.is_none_or(|at| at >= elements.numel()) {
            let m = format!(
                "a tensor {shape:?} with strides {strides:?} from element {} on is not within a storage of {}",
                self.offset,
                elements.numel()
            );
            return Err(Error::new(ErrorKind::Format, OP, m).help("the file is damaged: save it again"));
        }
        // The other axes have one element, or repeat one.
        let moving: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] > 1 && strides[axis] > 0).collect();
        let mut tensor = match self.dense(elements, &moving)? {
            Some(tensor) => tensor,
            None => self.gathered(elements, &moving, copies)?,
        };
        for axis in (0..shape.len()).filter(|axis| !moving.contains(axis)) {
            tensor = tensor.unsqueeze(axis as isize)?;
        }
        if tensor.shape() == shape { Ok(tensor) } else { tensor.expand(shape) }
    }

    /// The view of these axes if its elements are adjacent, possibly after reordering the axes.
    #[track_caller]
    fn dense(&self, elements: &Tensor, moving: &[usize]) -> Result<Option<Tensor>> {
        let mut outer_first = moving.to_vec();
        outer_first.sort_by_key(|&axis| std::cmp::Reverse(self.strides[axis]));
        let mut next = 1usize;
        for &axis in outer_first.iter().rev() {
            if self.strides[axis] != next {
                return Ok(None);
            }
            // The view lies within the storage, so this does not overflow.
            next = next.saturating_mul(self.shape[axis]);
        }
        let sizes: Vec<usize> = outer_first.iter().map(|&axis| self.shape[axis]).collect();
        let dense = elements.narrow(0, self.offset, next)?.reshape(sizes)?;
        if outer_first == moving {
            return Ok(Some(dense));
        }
        let places = moving.iter().map(|axis| outer_first.iter().position(|a| a == axis).unwrap_or(0) as isize);
        Ok(Some(dense.permute(&places.collect::<Vec<_>>())?))
    }

    /// A copy of the elements of these axes.
    #[track_caller]
    fn gathered(&self, elements: &Tensor, moving: &[usize], copies: &mut usize) -> Result<Tensor> {
        let sizes: Vec<usize> = moving.iter().map(|&axis| self.shape[axis]).collect();
        let count = sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        let left = count.and_then(|count| Some((count, copies.checked_sub(count)?)));
        let Some((count, left)) = left else {
            let m = format!("a tensor {:?} repeats elements of a storage of {}", self.shape, elements.numel());
            let e = Error::new(ErrorKind::Format, OP, m);
            return Err(e.help("save a copy of it: tensor.clone()"));
        };
        *copies = left;
        let mut indices = HostVec::with_capacity(elements.device().backend(), OP, count)?;
        for i in 0..count {
            let (mut rest, mut at) = (i, self.offset);
            for (&axis, &size) in moving.iter().zip(&sizes).rev() {
                at += rest % size * self.strides[axis];
                rest /= size;
            }
            indices.push(OP, at as i64)?;
        }
        let indices = Tensor::from_vec(indices, [count], elements.device())?;
        elements.index_select(0, &indices)?.reshape(sizes)
    }
}
