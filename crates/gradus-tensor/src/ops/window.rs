//! Options of the operations that slide a window over spatial axes: [`ConvOptions`] and [`PoolOptions`].

use gradus_backend::{Error, Result, Window};

/// How a window slides over `N` spatial axes (1 to 3) in convolution, transposed convolution, unfold and fold. The
/// defaults are stride 1, no padding, dilation 1 and one group.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::ones([1, 4, 8, 8], DType::F32, &device)?;
/// let w = Tensor::ones([6, 2, 3, 3], DType::F32, &device)?;
/// let y = x.conv2d(&w, None, ConvOptions::new().stride([2, 2]).padding([1, 1]).groups(2))?;
/// assert_eq!(y.shape(), [1, 6, 4, 4]);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "options do nothing until they are passed to an operation, and setting one gives new options"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvOptions<const N: usize> {
    pub(super) stride: [usize; N],
    pub(super) padding: [(usize, usize); N],
    pub(super) dilation: [usize; N],
    pub(super) groups: usize,
    pub(super) output_padding: [usize; N],
}

impl<const N: usize> Default for ConvOptions<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> ConvOptions<N> {
    /// The defaults: stride 1, no padding, dilation 1, one group.
    pub const fn new() -> Self {
        ConvOptions { stride: [1; N], padding: [(0, 0); N], dilation: [1; N], groups: 1, output_padding: [0; N] }
    }

    /// Sets the step between windows, which must be at least 1.
    pub const fn stride(mut self, stride: [usize; N]) -> Self {
        self.stride = stride;
        self
    }

    /// Sets the number of zeros before and after each axis, the same on both sides.
    pub fn padding(mut self, padding: [usize; N]) -> Self {
        self.padding = padding.map(|p| (p, p));
        self
    }

    /// Sets the numbers of zeros `(before, after)` each axis.
    pub const fn padding_sides(mut self, padding: [(usize, usize); N]) -> Self {
        self.padding = padding;
        self
    }

    /// Sets the step between the elements of a window, which must be at least 1.
    pub const fn dilation(mut self, dilation: [usize; N]) -> Self {
        self.dilation = dilation;
        self
    }

    /// Sets the number of groups of channels, which are convolved separately. Applies to convolutions only.
    pub const fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Sets the number of elements added at the end of each axis of the result, which must be less than the larger of
    /// stride and dilation. A strided convolution maps several input sizes to the same output size; this option chooses
    /// which of them the transposed convolution returns. Applies to transposed convolutions only.
    pub const fn output_padding(mut self, output_padding: [usize; N]) -> Self {
        self.output_padding = output_padding;
        self
    }

    /// The window of this kernel. Fails unless `N` is 1 to 3 and the kernel has `N` axes.
    #[track_caller]
    pub(super) fn window(&self, op: &str, kernel: &[usize]) -> Result<Window> {
        let mut w =
            Window { rank: N, kernel: [1; 3], stride: [1; 3], dilation: [1; 3], pad_before: [0; 3], pad_after: [0; 3] };
        if !(1..=3).contains(&N) || kernel.len() != N {
            return Err(Error::argument(op, format!("a window over {N} axes; 1 to 3 are possible")));
        }
        w.kernel[..N].copy_from_slice(kernel);
        w.stride[..N].copy_from_slice(&self.stride);
        w.dilation[..N].copy_from_slice(&self.dilation);
        for (i, &(before, after)) in self.padding.iter().enumerate() {
            (w.pad_before[i], w.pad_after[i]) = (before, after);
        }
        Ok(w)
    }

    #[track_caller]
    pub(super) fn refuse_output_padding(&self, op: &str) -> Result<()> {
        if self.output_padding == [0; N] {
            return Ok(());
        }
        let m = format!("output padding {:?} has no meaning here", self.output_padding);
        Err(Error::argument(op, m).help("it belongs to transposed convolutions"))
    }

    #[track_caller]
    pub(super) fn refuse_groups(&self, op: &str) -> Result<()> {
        if self.groups == 1 {
            return Ok(());
        }
        let m = format!("{} groups have no meaning here", self.groups);
        Err(Error::argument(op, m).help("groups belong to convolutions"))
    }
}

/// How a pooling window slides over `N` spatial axes. By default, the stride is the kernel size (so windows do not
/// overlap), there is no padding, the dilation is 1, and a window that does not fit at the end is left out.
#[must_use = "options do nothing until they are passed to an operation, and setting one gives new options"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions<const N: usize> {
    stride: Option<[usize; N]>,
    padding: [usize; N],
    dilation: [usize; N],
    ceil_mode: bool,
}

impl<const N: usize> Default for PoolOptions<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> PoolOptions<N> {
    /// The defaults: the stride is the kernel size, there is no padding, the dilation is 1, and the number of windows
    /// is rounded down.
    pub const fn new() -> Self {
        PoolOptions { stride: None, padding: [0; N], dilation: [1; N], ceil_mode: false }
    }

    /// Sets the step between windows, which must be at least 1.
    pub const fn stride(mut self, stride: [usize; N]) -> Self {
        self.stride = Some(stride);
        self
    }

    /// Sets the padding on both sides, which must be at most half the kernel.
    pub const fn padding(mut self, padding: [usize; N]) -> Self {
        self.padding = padding;
        self
    }

    /// Sets the step between the elements of a window, which must be at least 1.
    pub const fn dilation(mut self, dilation: [usize; N]) -> Self {
        self.dilation = dilation;
        self
    }

    /// Sets whether the number of windows is rounded up. The last window may then reach past the padding, if it starts
    /// before it.
    pub const fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.ceil_mode = ceil_mode;
        self
    }

    /// The window over axes of these sizes, and the padding that must be added after each axis if the number of windows
    /// is rounded up. The window does not include the added padding.
    #[track_caller]
    pub(super) fn window(&self, op: &str, kernel: [usize; N], spatial: &[usize]) -> Result<(Window, [usize; 3])> {
        let stride = self.stride.unwrap_or(kernel);
        let options = ConvOptions::new().stride(stride).padding(self.padding).dilation(self.dilation);
        let w = options.window(op, &kernel)?;
        if (0..N).any(|i| self.padding[i] > kernel[i] / 2) {
            let m = format!("padding {:?} is more than half of the kernel {kernel:?}", self.padding);
            return Err(Error::argument(op, m).help("a window must not lie in padding only"));
        }
        if spatial.contains(&0) {
            return Err(Error::shape(op, "a spatial axis is empty"));
        }
        let (mut more, mut widened) = ([0; 3], w);
        let end = |i: usize| spatial[i].saturating_add(2 * self.padding[i]);
        let reach = |i: usize| kernel[i].saturating_sub(1).saturating_mul(self.dilation[i]).saturating_add(1);
        for i in (0..N).filter(|_| self.ceil_mode) {
            // If not even one window fits, the first window may reach past the end by less than a stride.
            let short = reach(i).saturating_sub(end(i));
            more[i] = if short < stride[i] { short } else { 0 };
            widened.pad_after[i] = widened.pad_after[i].saturating_add(more[i]);
        }
        let floor = widened.output(op, spatial)?;
        for i in (0..N).filter(|_| self.ceil_mode) {
            let next = floor[i] * stride[i];
            // Adds a window if part of the padded axis is left over and the window starts before the padding.
            let left_over = more[i] == 0 && !(end(i) - reach(i)).is_multiple_of(stride[i]);
            if left_over && next < spatial[i] + self.padding[i] {
                more[i] = next + reach(i) - end(i);
            }
        }
        Ok((w, more))
    }
}
