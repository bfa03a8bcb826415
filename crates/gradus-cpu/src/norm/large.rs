//! The statistics of groups of finite elements whose sum or sum of squares overflows, or whose mean is large. They are
//! computed from the elements times a power of two. Ordinary groups pay only one comparison for this.

use gradus_backend::composite;

use super::groups::Groups;
use super::kernel::NormElement;
use crate::access::Float;
use crate::isa::Isa;
use crate::rows::Elementary;

/// The statistics of a group, in two forms: of the scaled and shifted elements, and of the elements themselves.
pub(super) struct Large<T> {
    /// The factor that elements are multiplied by. `first` is then subtracted from the products. If there is a mean, it
    /// is the first product, so that deviations of equal elements are exactly 0.
    down: T,
    first: T,
    /// The mean and `1 / sqrt(var + eps)` of the elements after [`scale`](Large::scale).
    pub(super) centre: T,
    pub(super) by: T,
    /// The mean and `1 / sqrt(var + eps)` of the elements themselves.
    pub(super) mean: T,
    pub(super) rstd: T,
}

impl<T: Elementary> Large<T> {
    /// Computes the statistics of the group that starts at `at`. Returns `None` if one of its elements is not finite.
    /// `work` has room for a run.
    pub(super) fn new<S: NormElement + Float<Compute = T>, const N: usize>(
        (isa, groups, at): (Isa, &Groups<N>, [usize; N]),
        x: &[S],
        rms: bool,
        eps: f64,
        work: &mut [T],
    ) -> Option<Self> {
        let down = composite::norm::Large::of(T::DTYPE).factor;
        let count = groups.count as f64;
        let first = if rms { T::ZERO } else { x[at[0]].widen() * T::from_f64(down) };
        let zero = Large { down: T::from_f64(down), first, centre: T::ZERO, by: T::ONE, mean: T::ZERO, rstd: T::ZERO };
        let (mut sum, mut square) = (0.0, 0.0);
        let mut each = |add: &mut dyn FnMut(&[T])| {
            groups.for_each_run(at, |p, n| {
                S::load(isa, x, p[0], groups.steps[0], &mut work[..n]);
                zero.scale(&mut work[..n]);
                add(&work[..n]);
            });
        };
        each(&mut |row| sum += S::sum(isa, row).to_f64());
        let centre = if rms { 0.0 } else { sum / count };
        each(&mut |row| square += S::squares(isa, row, T::from_f64(centre)).to_f64());
        let variance = square / count;
        if !variance.is_finite() {
            return None;
        }
        let mean = T::from_f64((first.to_f64() + centre) / down);
        let centre = T::from_f64(centre);
        if variance == 0.0 {
            return Some(Large { centre, mean, rstd: T::from_f64(1.0 / eps.sqrt()), ..zero });
        }
        let by = 1.0 / (variance + eps * down * down).sqrt();
        Some(Large { centre, by: T::from_f64(by), mean, rstd: T::from_f64(by * down), ..zero })
    }

    /// Scales and shifts elements so that `centre` and `by` are their statistics.
    pub(super) fn scale(&self, row: &mut [T]) {
        row.iter_mut().for_each(|x| *x = *x * self.down - self.first);
    }
}
