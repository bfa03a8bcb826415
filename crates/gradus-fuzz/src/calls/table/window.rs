//! Sliding windows, and resampling.

use gradus::prelude::*;
use gradus::tensor::{GridPadding, GridSample, Interpolate, Interpolation, Resized, Sampling};

use super::{Row, SHORT, rows};
use crate::calls::Draw;

/// A float tensor, usually of shape `[n, c, spatial..]` with `axes` spatial axes.
pub(super) fn images(d: &mut Draw, c: usize, axes: usize) -> Result<Tensor> {
    let mut dims = vec![if d.once_in(10) { 0 } else { 1 + d.below(2) }, c];
    dims.extend((0..axes).map(|_| if d.once_in(12) { d.below(2) } else { 3 + d.below(5) }));
    d.floats(&dims)
}

fn conv_options<const N: usize>(d: &mut Draw, groups: usize) -> ConvOptions<N> {
    let mut options = ConvOptions::new().groups(groups);
    if d.flag() {
        options = options.stride(d.sizes());
    }
    if d.flag() {
        options = options.padding(d.sizes());
    }
    if d.once_in(3) {
        options = options.dilation(d.sizes());
    }
    if d.once_in(6) {
        options = options.padding_sides(std::array::from_fn(|_| (d.size(), d.size())));
    }
    if d.once_in(5) {
        options = options.output_padding(d.sizes());
    }
    options
}

/// An input, a weight and a bias, usually of matching shapes. For a transposed convolution, the first two axes of the
/// weight are exchanged.
fn conv<const N: usize>(d: &mut Draw, turned: bool) -> Result<(Tensor, Tensor, Option<Tensor>, ConvOptions<N>)> {
    let groups = d.of(&[1, 1, 2]);
    let [c, k] = [groups * (1 + d.below(3)), groups * (1 + d.below(3))];
    let x = images(d, c, N)?;
    let mut dims = if turned { vec![c, k / groups] } else { vec![k, c / groups] };
    dims.extend((0..N).map(|_| 1 + d.below(3)));
    let w = d.sized(&dims, x.dtype())?;
    let bias = d.maybe(|d| d.sized(&[k], x.dtype()))?;
    let groups = if d.once_in(12) { d.size() } else { groups };
    Ok((x, w, bias, conv_options(d, groups)))
}

fn pool_options<const N: usize>(d: &mut Draw) -> PoolOptions<N> {
    let mut options = PoolOptions::new();
    if d.flag() {
        options = options.stride(d.sizes());
    }
    if d.flag() {
        options = options.padding(d.sizes());
    }
    if d.once_in(3) {
        options = options.dilation(d.sizes());
    }
    options.ceil_mode(d.flag())
}

/// One row for each convolution, given its method, its number of spatial axes, and whether it is transposed.
macro_rules! convolutions {
    ($($name:ident $n:literal $turned:literal)*) => {
        rows! { SHORT; $($name |d| { let (x, w, b, options) = conv::<$n>(d, $turned)?; x.$name(&w, b.as_ref(), options) };)* }
    };
}
const CONVOLUTIONS: &[Row] = convolutions! {
    conv1d 1 false conv2d 2 false conv3d 3 false conv_transpose1d 1 true conv_transpose2d 2 true conv_transpose3d 3 true
};

macro_rules! pools {
    ($($n:literal: $max:ident $indices:ident $avg:ident $amax:ident $aindices:ident $aavg:ident;)*) => {
        rows! { SHORT; $(
            $max |d| images(d, 2, $n)?.$max(d.sizes(), pool_options(d));
            $indices |d| images(d, 2, $n)?.$indices(d.sizes(), pool_options(d));
            $avg |d| images(d, 2, $n)?.$avg(d.sizes(), pool_options(d), d.flag());
            $amax |d| images(d, 2, $n)?.$amax(d.sizes());
            $aindices |d| images(d, 2, $n)?.$aindices(d.sizes());
            $aavg |d| images(d, 2, $n)?.$aavg(d.sizes());
        )* }
    };
}
const POOLS: &[Row] = pools! {
    1: max_pool1d max_pool1d_with_indices avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices adaptive_avg_pool1d;
    2: max_pool2d max_pool2d_with_indices avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_avg_pool2d;
    3: max_pool3d max_pool3d_with_indices avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices adaptive_avg_pool3d;
};

const OTHERS: &[Row] = rows! { SHORT;
    unfold |d| images(d, 2, 2)?.unfold::<2>(d.sizes(), conv_options(d, 1));
    fold |d| {
        let (kernel, options) = (d.sizes(), conv_options(d, 1));
        let output = [3 + d.below(4), 3 + d.below(4)];
        let columns = Tensor::ones([1, 2, output[0], output[1]], DType::F32, &d.device)?.unfold::<2>(kernel, options);
        match columns {
            Ok(columns) if !d.once_in(3) => columns.fold(output, kernel, options),
            _ => d.float()?.fold(d.sizes::<2>(), kernel, options),
        }
    };
    interpolate |d| {
        use Interpolation::*;
        let axes = 1 + d.below(3);
        let x = images(d, 2, axes)?;
        let count = if d.once_in(10) { d.below(5) } else { axes };
        let sizes: Vec<usize> = (0..count).map(|_| d.size()).collect();
        let factors: Vec<f64> = (0..count).map(|_| d.number().abs() + 0.3).collect();
        let to = if d.flag() { Resized::To(&sizes) } else { Resized::By(&factors) };
        let mut how = Interpolate::from(d.of(&[Nearest, NearestExact, Linear, Bilinear, Trilinear, Bicubic, Area]));
        if d.once_in(3) {
            how = how.align_corners();
        }
        if d.once_in(3) {
            how = how.antialias();
        }
        x.interpolate(to, how)
    };
    grid_sample |d| {
        let x = images(d, 2, 2)?;
        let n = x.shape().first().copied().unwrap_or(1);
        let dims = [n.min(3), d.below(4), d.below(4), 2];
        let grid = d.sized(&dims, x.dtype())?;
        x.grid_sample(&grid, GridSample {
            mode: d.of(&[Sampling::Bilinear, Sampling::Nearest, Sampling::Bicubic]),
            padding: d.of(&[GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection]),
            align_corners: d.flag(),
        })
    };
    affine_grid |d| { let n = d.below(3); d.floats(&[n, 2, 3])?.affine_grid(d.size(), d.size(), d.flag()) };
};

pub(super) const ROWS: &[&[Row]] = &[CONVOLUTIONS, POOLS, OTHERS];
