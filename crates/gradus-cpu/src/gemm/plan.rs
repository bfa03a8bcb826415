//! The sizes, strides and batch axes of a product.

use gradus_backend::{Error, MAX_RANK, Result, View, ViewMut};

pub(super) const OP: &str = "gemm";

/// The sizes of a product and the layout of its operands, which consist of matrices and batch axes that step between
/// them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// The row and column strides of A, B and C.
    pub(super) strides: [[isize; 2]; 3],
    pub(super) offsets: [usize; 3],
    /// The number of batch axes, which are listed outermost first.
    pub(super) batch_rank: usize,
    pub(super) batch: [usize; MAX_RANK],
    pub(super) batch_strides: [[isize; 3]; MAX_RANK],
}

impl Plan {
    pub(super) fn new(op: &str, a: &View<'_>, b: &View<'_>, c: &ViewMut<'_>) -> Result<Plan> {
        let layouts = [&a.layout, &b.layout, &c.layout];
        let rank = a.layout.rank();
        if rank < 2 || layouts.iter().any(|l| l.rank() != rank) {
            return Err(mismatch(op, "the operands need one rank of at least 2", a, b, c));
        }
        let r = rank - 2;
        let (ad, bd, cd) = (a.layout.dims(), b.layout.dims(), c.layout.dims());
        let (m, n, k) = (ad[r], bd[r + 1], ad[r + 1]);
        if bd[r] != k || cd[r..] != [m, n] {
            return Err(mismatch(op, "the operands are not [m, k], [k, n] and [m, n]", a, b, c));
        }
        if ad[..r] != bd[..r] || ad[..r] != cd[..r] {
            return Err(mismatch(op, "the batch axes differ", a, b, c));
        }
        let mut plan = Plan {
            m,
            n,
            k,
            strides: layouts.map(|l| [l.strides()[r], l.strides()[r + 1]]),
            offsets: layouts.map(|l| l.offset()),
            batch_rank: 0,
            batch: [1; MAX_RANK],
            batch_strides: [[0; 3]; MAX_RANK],
        };
        for (axis, &size) in ad[..r].iter().enumerate() {
            if size != 1 {
                plan.batch[plan.batch_rank] = size;
                plan.batch_strides[plan.batch_rank] = layouts.map(|l| l.strides()[axis]);
                plan.batch_rank += 1;
            }
        }
        Ok(plan)
    }

    /// Turns inner batch axes into rows as long as B is the same along them and the rows of A and C continue along
    /// them.
    pub(super) fn fold_rows(&mut self) {
        while self.batch_rank > 0 {
            let last = self.batch_rank - 1;
            let (size, [sa, sb, sc]) = (self.batch[last], self.batch_strides[last]);
            let goes_on = |s: isize, x: usize| self.m == 1 || s == self.strides[x][0] * self.m as isize;
            if sb != 0 || !goes_on(sa, 0) || !goes_on(sc, 2) {
                return;
            }
            if self.m == 1 {
                self.strides[0][0] = sa;
                self.strides[2][0] = sc;
            }
            self.m *= size;
            self.batch_rank -= 1;
        }
    }

    /// Makes products of one A with the panels of B one product, if they are the innermost batch axis, have `width`
    /// columns, and give successive columns of C. Returns the distance between panels.
    pub(super) fn fold_panels(&mut self, width: usize) -> Option<usize> {
        let last = self.batch_rank.checked_sub(1)?;
        let (size, [sa, sb, sc]) = (self.batch[last], self.batch_strides[last]);
        let [_, b, [_, cs]] = self.strides;
        let adjacent = b == [width as isize, 1] && cs == 1 && sc == width as isize;
        let apart = usize::try_from(sb).ok().filter(|_| self.n == width && sa == 0 && adjacent)?;
        self.n *= size;
        self.batch_rank -= 1;
        Some(apart)
    }

    /// Exchanges the roles of rows and columns: `c^T = b^T a^T`, with the same sums.
    pub(super) fn transpose(&mut self) {
        std::mem::swap(&mut self.m, &mut self.n);
        let [a, b, c] = self.strides;
        let flip = |s: [isize; 2]| [s[1], s[0]];
        self.strides = [flip(b), flip(a), flip(c)];
        self.offsets.swap(0, 1);
        self.batch_strides.iter_mut().for_each(|s| s.swap(0, 1));
    }

    pub(super) fn count(&self) -> usize {
        self.batch[..self.batch_rank].iter().product()
    }

    /// Returns the positions at which the operands of product `i` start.
    pub(super) fn starts(&self, mut i: usize) -> [usize; 3] {
        let mut at = self.offsets;
        for axis in (0..self.batch_rank).rev() {
            let index = (i % self.batch[axis]) as isize;
            i /= self.batch[axis];
            for (at, s) in at.iter_mut().zip(self.batch_strides[axis]) {
                *at = at.wrapping_add_signed(s.wrapping_mul(index));
            }
        }
        at
    }
}

#[cold]
fn mismatch(op: &str, message: &str, a: &View<'_>, b: &View<'_>, c: &ViewMut<'_>) -> Error {
    Error::shape(op, message)
        .operand("a", a.layout.dims(), a.dtype, "cpu")
        .operand("b", b.layout.dims(), b.dtype, "cpu")
        .operand("c", c.layout.dims(), c.dtype, "cpu")
}
