//! Tensors joined to vectors by their dtypes, and sums of these.

use gradus_nn::Parameter;
use gradus_tensor::{DType, Error, Result, Tensor, no_grad};

/// A parameter and its name.
pub(crate) type Named = (String, Parameter);

/// Vectors, each with a dtype that tells them apart.
pub(crate) type Flats = Vec<(DType, Tensor)>;

/// Takes vectors apart, in the order in which they were joined.
pub(crate) struct Reader<'a> {
    flats: Vec<(DType, &'a Tensor, usize)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(flats: &'a Flats) -> Self {
        Reader { flats: flats.iter().map(|(key, flat)| (*key, flat, 0)).collect() }
    }

    /// The next elements of the vector `key`, as a tensor of this dtype and shape.
    pub(crate) fn take(&mut self, key: DType, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let Some((_, flat, at)) = self.flats.iter_mut().find(|(other, _, _)| *other == key) else {
            return Err(Error::argument("data_parallel", format!("there is no vector of {key}")));
        };
        let n = shape.iter().product();
        let piece = flat.narrow(0, *at, n)?.reshape(shape)?;
        *at += n;
        piece.to_dtype(dtype)
    }
}

/// Joins pieces with the same key.
pub(crate) fn joined(pieces: &[(DType, Tensor)]) -> Result<Flats> {
    let mut keys: Vec<DType> = pieces.iter().map(|(key, _)| *key).collect();
    keys.sort();
    keys.dedup();
    let of = |key| pieces.iter().filter(move |(other, _)| *other == key).map(|(_, piece)| piece);
    keys.into_iter().map(|key| Ok((key, Tensor::cat(&of(key).collect::<Vec<_>>(), 0)?))).collect()
}

/// Adds zeros, so that the elements of each key are a multiple of `multiple`.
pub(crate) fn pad(pieces: &mut Vec<(DType, Tensor)>, multiple: usize) -> Result<()> {
    let mut counts = std::collections::BTreeMap::new();
    for (key, piece) in pieces.iter() {
        let (n, _, _) = counts.entry(*key).or_insert((0, piece.dtype(), piece.device().clone()));
        *n += piece.numel();
    }
    for (key, (n, dtype, device)) in counts {
        pieces.push((key, Tensor::zeros([usize::next_multiple_of(n, multiple) - n], dtype, &device)?));
    }
    Ok(())
}

/// Sums of the shards so far, each with the number of shards in it, a power of two; larger ones first.
#[derive(Default)]
pub(crate) struct Tree(Vec<(usize, Flats)>);

impl Tree {
    /// Adds the next shard. Sums of as many shards are added at once, the earlier one first.
    pub(crate) fn push(&mut self, flats: Flats) -> Result<()> {
        let (mut count, mut flats) = (1, flats);
        while let Some((_, left)) = self.0.pop_if(|(other, _)| *other == count) {
            flats = Tree::joined(left, &flats)?;
            count *= 2;
        }
        self.0.push((count, flats));
        Ok(())
    }

    /// Takes the sum of all, once there are so many shards, a power of two.
    pub(crate) fn take(&mut self, shards: usize) -> Option<Flats> {
        self.0.pop_if(|(count, _)| *count == shards).map(|(_, flats)| flats)
    }

    /// The sum of all. If they are no power of two, the last sums are added first.
    pub(crate) fn all(mut self) -> Result<Flats> {
        let mut all = self.0.pop().ok_or_else(|| Error::argument("data_parallel", "no shards"))?.1;
        while let Some((_, left)) = self.0.pop() {
            all = Tree::joined(left, &all)?;
        }
        Ok(all)
    }

    fn joined(left: Flats, right: &Flats) -> Result<Flats> {
        no_grad(|| left.iter().zip(right).try_for_each(|((_, into), (_, other))| into.add_(other)))?;
        Ok(left)
    }
}
