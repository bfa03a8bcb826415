//! The distances between tokens that a [`T5`](crate::T5) tells apart.

use gradus_tensor::{DType, Device, Error, Result, Tensor};

pub(super) const OP: &str = "t5";

/// How distances become rows of the table of biases.
#[derive(Debug, Clone, Copy)]
pub(super) struct T5Distances {
    /// Whether later tokens count as being at distance 0. Otherwise half of the rows are for them.
    pub(super) causal: bool,
    /// How many distances are told apart.
    pub(super) rows: usize,
    /// The distance from which on all are the same.
    pub(super) most: usize,
}

impl T5Distances {
    #[track_caller]
    pub(super) fn check(self) -> Result<()> {
        let T5Distances { rows, most, .. } = self;
        if !rows.is_multiple_of(2) || !(4..=1 << 20).contains(&rows) {
            let m = format!("relative_attention_num_buckets is {rows}; it is even, and 4 to {}", 1 << 20);
            return Err(Error::argument(OP, m));
        }
        if !(rows + 1..=1 << 20).contains(&most) {
            let m = format!("relative_attention_max_distance is {most}; it is {} to {}", rows + 1, 1 << 20);
            return Err(Error::argument(OP, m));
        }
        Ok(())
    }

    /// The row for a key at this place after the query: exact for the nearest half of the distances, and the others by
    /// their logarithm, which is computed in f32 as in transformers so that both round alike.
    fn row(self, after: i64) -> i64 {
        let (rows, first) = match () {
            () if self.causal => (self.rows, 0),
            () if after > 0 => (self.rows / 2, self.rows / 2),
            () => (self.rows / 2, 0),
        };
        let distance = if self.causal { (-after).max(0) } else { after.abs() };
        let exact = rows / 2;
        let row = if distance < exact as i64 {
            distance
        } else {
            let ratio = (distance as f32 / exact as f32).ln() / (self.most as f64 / exact as f64).ln() as f32;
            (exact as i64 + (ratio * (rows - exact) as f32) as i64).min(rows as i64 - 1)
        };
        first as i64 + row
    }

    /// The distance from which on all have the same row. It is `most`, or a little more where the logarithm rounds down.
    fn last(self) -> i64 {
        let most = self.most as i64;
        (most..2 * most).find(|&d| [d, -d].iter().all(|&d| self.row(d) == self.row(2 * d))).unwrap_or(2 * most)
    }
}

/// The rows `[length, first + length]` for queries from the position `first` on, and for all keys.
#[track_caller]
pub(super) fn buckets(distances: T5Distances, first: usize, length: usize, device: &Device) -> Result<Tensor> {
    let (first, end) = (first as i64, (first + length) as i64);
    // A row for each distance that is told apart, and then a choice for each pair of tokens.
    let most = distances.last();
    let rows: Vec<i64> = (-most..=most).map(|after| distances.row(after)).collect();
    let rows = Tensor::from_vec(&rows[..], [rows.len()], device)?;
    let keys = Tensor::arange(0, end, 1, DType::I64, device)?;
    let queries = Tensor::arange(first, end, 1, DType::I64, device)?;
    let place = keys.unsqueeze(0)?.sub(&queries.unsqueeze(1)?)?.clamp(-most, most)?.add(most)?;
    rows.index_select(0, &place.flatten(0, 1)?)?.reshape(place.shape())
}

#[cfg(test)]
mod tests {
    use super::T5Distances;

    /// What `T5Attention._relative_position_bucket` of transformers 5.24 returns: the first distance of each row.
    #[test]
    fn rows_are_those_of_transformers() {
        let both = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
        let back =
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67];
        let back = [&back[..], &[77, 87, 99, 113]].concat();
        let row_of = |first: &[i64], distance: i64| first.iter().filter(|&&f| f <= distance).count() as i64 - 1;
        for after in -200..=200i64 {
            let distances = T5Distances { causal: false, rows: 32, most: 128 };
            let later = if after > 0 { 16 } else { 0 };
            assert_eq!(distances.row(after), later + row_of(&both, after.abs()), "{after}");
            assert_eq!(distances.last(), 128);
            let distances = T5Distances { causal: true, ..distances };
            assert_eq!(distances.last(), 128);
            assert_eq!(distances.row(after), row_of(&back, (-after).max(0)), "{after}");
        }
    }
}
