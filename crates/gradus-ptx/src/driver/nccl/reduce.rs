//! Reductions of the elements of several ranks.

use half::{bf16, f16};

/// Reduces the bytes of all ranks, the last one first. An error says what the library does not have.
pub(super) fn reduced(rows: Vec<Vec<u8>>, kind: i32, reduction: i32) -> Result<Vec<u8>, String> {
    let mut rows = rows.into_iter().rev();
    let mut sum = rows.next().unwrap_or_default();
    for row in rows {
        let done = combine(&mut sum, &row, kind, reduction);
        done.ok_or_else(|| format!("there is no reduction {reduction} of elements of kind {kind}"))?;
    }
    Ok(sum)
}

/// `into = into op other` for elements of `N` bytes.
fn each<const N: usize>(into: &mut [u8], other: &[u8], op: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (into, _) = into.as_chunks_mut();
    let (other, _) = other.as_chunks();
    into.iter_mut().zip(other).for_each(|(a, &b)| *a = op(*a, b));
}

fn combine(into: &mut [u8], other: &[u8], kind: i32, reduction: i32) -> Option<()> {
    macro_rules! integers {
        ($t:ty) => {{
            let op: fn($t, $t) -> $t = match reduction {
                0 => <$t>::wrapping_add,
                1 => <$t>::wrapping_mul,
                2 => Ord::max,
                3 => Ord::min,
                _ => return None,
            };
            each(into, other, |a, b| op(<$t>::from_ne_bytes(a), <$t>::from_ne_bytes(b)).to_ne_bytes());
        }};
    }
    macro_rules! floats {
        ($t:ty, $wide:ty, $widen:expr, $narrow:expr) => {{
            let op: fn($wide, $wide) -> $wide = match reduction {
                0 => |a, b| a + b,
                1 => |a, b| a * b,
                2 => <$wide>::max,
                3 => <$wide>::min,
                _ => return None,
            };
            let (widen, narrow) = ($widen, $narrow);
            each(into, other, |a, b| {
                narrow(op(widen(<$t>::from_ne_bytes(a)), widen(<$t>::from_ne_bytes(b)))).to_ne_bytes()
            });
        }};
    }
    match kind {
        0 => integers!(i8),
        1 => integers!(u8),
        2 => integers!(i32),
        3 => integers!(u32),
        4 => integers!(i64),
        5 => integers!(u64),
        6 => floats!(f16, f32, f16::to_f32, f16::from_f32),
        7 => floats!(f32, f32, |x| x, |x| x),
        8 => floats!(f64, f64, |x| x, |x| x),
        9 => floats!(bf16, f32, bf16::to_f32, bf16::from_f32),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rank_comes_first() {
        // 1 is lost beside 2^24.
        let rows = [1.0f32, 1.0, 16_777_216.0].map(|x| x.to_ne_bytes().to_vec());
        let sum = reduced(rows.to_vec(), 7, 0).unwrap();
        assert_eq!(f32::from_ne_bytes(sum.try_into().unwrap()), 16_777_216.0);
        assert_eq!(reduced(vec![vec![250, 3], vec![10, 4]], 1, 0).unwrap(), [4, 7]);
        assert_eq!(reduced(vec![vec![250, 3], vec![10, 4]], 0, 2).unwrap(), [10, 4]);
        assert!(reduced(vec![vec![1], vec![1]], 1, 4).is_err() && reduced(vec![vec![1], vec![1]], 10, 0).is_err());
    }
}
