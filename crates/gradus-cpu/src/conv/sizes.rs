//! The sizes of a convolution, and how they are checked.

use gradus_backend::{Error, Result, View, Window};

use super::window::{Geometry, split};
use crate::access::{check_dtype, check_shape};

/// The sizes of a convolution. Each group has `cg` input channels and `kg` output channels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) n: usize,
    pub(super) groups: usize,
    pub(super) cg: usize,
    pub(super) kg: usize,
    pub(super) geometry: Geometry,
}

impl Sizes {
    /// Determines the sizes from the layouts of input, weight and output (or of their gradients), and checks them.
    pub(super) fn new(
        op: &str,
        w: &Window,
        groups: usize,
        x: View<'_>,
        weight: View<'_>,
        out: View<'_>,
    ) -> Result<Sizes> {
        if !x.dtype.is_float() {
            return Err(Error::dtype(op, x.dtype, "f64, f32, f16 and bf16"));
        }
        check_dtype(op, "the weight", weight.dtype, x.dtype)?;
        check_dtype(op, "the output", out.dtype, x.dtype)?;
        if !(1..=3).contains(&w.rank) {
            return Err(Error::argument(op, format!("a window over {} axes; it has 1 to 3", w.rank)));
        }
        let (n, c, spatial) = split(op, "the input", x.layout, w.rank)?;
        let (k, cg, kernel) = split(op, "the weight", weight.layout, w.rank)?;
        check_shape(op, "the kernel", kernel, &w.kernel[..w.rank])?;
        if groups == 0 || !c.is_multiple_of(groups) || !k.is_multiple_of(groups) {
            let m = format!("{c} input and {k} output channels do not divide into {groups} groups");
            return Err(Error::argument(op, m));
        }
        if cg != c / groups {
            let m = format!("the weight has {cg} input channels a group, the input {c} channels in {groups} groups");
            return Err(Error::shape(op, m));
        }
        let geometry = Geometry::new(op, w, spatial)?;
        geometry.check(op)?;
        let mut dims = vec![n, k];
        dims.extend_from_slice(&geometry.output[3 - w.rank..]);
        check_shape(op, "the output", out.layout.dims(), &dims)?;
        Ok(Sizes { n, groups, cg, kg: k / groups, geometry })
    }

    pub(super) fn c(&self) -> usize {
        self.cg * self.groups
    }

    pub(super) fn k(&self) -> usize {
        self.kg * self.groups
    }

    /// The number of rows in the unfolded input of one group.
    pub(super) fn taps(&self) -> usize {
        self.cg * self.geometry.taps()
    }
}
