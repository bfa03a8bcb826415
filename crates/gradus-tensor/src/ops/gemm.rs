//! `addmm` and `baddbmm`: a matrix product added to a matrix. `gemm`: the same on flat buffers with leading dimensions,
//! as in BLAS libraries.

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Layout, Result, Scalar, Shape, View, ViewMut};

use super::operand_rules::common_dtype;
use super::{Effect, Flow, InPlace, InputSpec, Operation, Outputs, one};
use crate::{Tensor, is_grad_enabled};

impl Tensor {
    /// `beta * self + alpha * (a @ b)` for `a [m, k]` and `b [k, n]`; `self` broadcasts to `[m, n]`. If `beta` is 0,
    /// `self` is not read, so a NaN in it has no effect. Half precision is rounded only once. Differentiable.
    #[track_caller]
    pub fn addmm(&self, a: &Tensor, b: &Tensor, beta: impl Into<Scalar>, alpha: impl Into<Scalar>) -> Result<Tensor> {
        self.add_product("addmm", 2, a, b, beta.into(), alpha.into())
    }

    /// `beta * self + alpha * (a @ b)` for each matrix of a batch: `a [batch, m, k]` and `b [batch, k, n]`; `self`
    /// broadcasts to `[batch, m, n]`. For the details see [`addmm`](Tensor::addmm).
    #[track_caller]
    pub fn baddbmm(&self, a: &Tensor, b: &Tensor, beta: impl Into<Scalar>, alpha: impl Into<Scalar>) -> Result<Tensor> {
        self.add_product("baddbmm", 3, a, b, beta.into(), alpha.into())
    }

    #[track_caller]
    fn add_product(
        &self,
        op: &str,
        rank: usize,
        a: &Tensor,
        b: &Tensor,
        beta: Scalar,
        alpha: Scalar,
    ) -> Result<Tensor> {
        let describe = |e: Error| b.describe(a.describe(self.describe(e, "self"), "a"), "b");
        if a.rank() != rank || b.rank() != rank || a.shape()[..rank - 2] != b.shape()[..rank - 2] {
            let e = Error::shape(op, format!("both factors have rank {rank} and one batch size"));
            return Err(describe(e).help("use matmul and add for other ranks"));
        }
        let dtype = common_dtype(op, &[self, a, b], &["self", "a", "b"])?;
        for s in [alpha, beta] {
            s.check(dtype).map_err(|e| describe(Error::argument(op, e.message()))).here()?;
        }
        let wide = dtype.compute();
        // Inside autocast the operands are first rounded to the dtype of the result.
        let this = self.to_dtype(dtype)?.to_dtype(wide)?;
        let product = a.to_dtype(dtype)?.to_dtype(wide)?.product(&b.to_dtype(dtype)?.to_dtype(wide)?)?;
        let fits = Shape::broadcast(op, self.shape(), product.shape()).is_ok_and(|s| s.dims() == product.shape());
        if !fits {
            let m = format!("self does not broadcast to the product, which is {}", Shape::display(product.shape()));
            return Err(describe(Error::new(ErrorKind::Broadcast, op, m)));
        }
        let scaled = if alpha.eq(1) { product } else { product.mul(alpha)? };
        let sum = match beta {
            beta if beta.eq(0) => scaled,
            beta if beta.eq(1) => scaled.add(&this)?,
            beta => scaled.add(&this.mul(beta)?)?,
        };
        sum.to_dtype(dtype)
    }
}

/// A product `C = alpha * op(A) @ op(B) + beta * C` of row-major matrices in flat buffers. `op(A)` is m x k, `op(B)` is
/// k x n and `C` is m x n; `op` is the transpose or the identity.
///
/// A leading dimension is the distance, in elements, between the rows of a matrix as it is stored (a transposed A is
/// stored as `k` by `m`). By default the rows follow one another without gaps. The buffers are contiguous tensors of
/// any shape and of one dtype, whose elements are read in row-major order.
///
/// If `beta` is 0, the old C is not read. If `k` is 0, the result is `beta * C`. Products with 0 are not skipped. Any
/// dtype but bool is accepted; half precision accumulates in f32, and integers wrap. A `Gemm` is never recorded; for
/// gradients use [`Tensor::addmm`].
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// // The left 2 x 2 block of a matrix with rows of 3, transposed, times a column.
/// let a = Tensor::from_vec(vec![1.0f32, 2.0, 9.0, 3.0, 4.0, 9.0], [6], &device)?;
/// let b = Tensor::from_vec(vec![1.0f32, 10.0], [2], &device)?;
/// let c = Gemm::new(2, 1, 2).trans_a(true).lda(3).run(&a, &b, None)?;
/// assert_eq!(c.to_vec::<f32>()?, [31.0, 42.0]);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "a product is computed by `run`, and setting a parameter gives a new `Gemm`"]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gemm {
    m: usize,
    n: usize,
    k: usize,
    trans_a: bool,
    trans_b: bool,
    alpha: Scalar,
    beta: Scalar,
    lda: Option<usize>,
    ldb: Option<usize>,
    ldc: Option<usize>,
    /// The number of products, and the distances between successive matrices of A, B and C.
    batch: Option<(usize, [usize; 3])>,
}

impl Gemm {
    /// `C = A @ B` with A m x k and B k x n.
    pub fn new(m: usize, n: usize, k: usize) -> Gemm {
        let (alpha, beta) = (Scalar::Int(1), Scalar::Int(0));
        Gemm { m, n, k, trans_a: false, trans_b: false, alpha, beta, lda: None, ldb: None, ldc: None, batch: None }
    }

    /// Sets whether A is stored transposed, as k x m.
    pub fn trans_a(mut self, transposed: bool) -> Gemm {
        self.trans_a = transposed;
        self
    }

    /// Sets whether B is stored transposed, as n x k.
    pub fn trans_b(mut self, transposed: bool) -> Gemm {
        self.trans_b = transposed;
        self
    }

    /// Sets the factor of the product, which is 1 by default.
    pub fn alpha(mut self, alpha: impl Into<Scalar>) -> Gemm {
        self.alpha = alpha.into();
        self
    }

    /// Sets the factor of the old C, which is 0 by default.
    pub fn beta(mut self, beta: impl Into<Scalar>) -> Gemm {
        self.beta = beta.into();
        self
    }

    /// Sets the distance between the stored rows of A, which must be at least their length.
    pub fn lda(mut self, lda: usize) -> Gemm {
        self.lda = Some(lda);
        self
    }

    /// Sets the distance between the stored rows of B, which must be at least their length.
    pub fn ldb(mut self, ldb: usize) -> Gemm {
        self.ldb = Some(ldb);
        self
    }

    /// Sets the distance between the rows of C, which must be at least n.
    pub fn ldc(mut self, ldc: usize) -> Gemm {
        self.ldc = Some(ldc);
        self
    }

    /// Computes `count` products. Successive matrices of A, B and C lie this many elements apart. With a distance of 0,
    /// all products use the same A or B. The matrices of C must not overlap.
    pub fn strided_batched(mut self, count: usize, stride_a: usize, stride_b: usize, stride_c: usize) -> Gemm {
        self.batch = Some((count, [stride_a, stride_b, stride_c]));
        self
    }

    /// Returns the result as a new tensor. With `c`, this is a copy of `c` in which the matrix is replaced. Without
    /// `c`, it is the matrix alone, as `[m, n]` or `[count, m, n]`.
    ///
    /// # Errors
    /// Fails if the buffers are not contiguous, are too short or have different dtypes; if a leading dimension is below
    /// the row length; if matrices of C overlap; if the dtype cannot represent a scalar; if `beta`, `ldc` or a distance
    /// refers to a `c` that is not given; or if a tensor requires a gradient.
    #[track_caller]
    pub fn run(&self, a: &Tensor, b: &Tensor, c: Option<&Tensor>) -> Result<Tensor> {
        if let Some(c) = c {
            let result = c.detach().copy()?;
            check_untracked(&[a, b, c])?;
            self.run_(a, b, &result)?;
            return Ok(result);
        }
        let size = self.m.checked_mul(self.n);
        let apart = self.batch.is_none_or(|(count, s)| count <= 1 || Some(s[2]) == size);
        if !self.beta.eq(0) || self.ldc.is_some_and(|ldc| ldc != self.n) || !apart {
            let m = "without C, beta is 0 and the rows and matrices of the result follow one another";
            return Err(Error::argument("gemm", m).help("pass C, which gives the places of the result"));
        }
        let dims = match self.batch {
            Some((count, _)) => vec![count, self.m, self.n],
            None => vec![self.m, self.n],
        };
        let result = Tensor::zeros(dims, a.dtype(), a.device())?;
        self.run_(a, b, &result)?;
        Ok(result)
    }

    /// Writes the result into the buffer `c` and raises its version. Elements outside the matrix stay as they are.
    /// Fails where [`run`](Gemm::run) does, and then writes nothing.
    #[track_caller]
    pub fn run_(&self, a: &Tensor, b: &Tensor, c: &Tensor) -> Result<()> {
        check_untracked(&[a, b, c])?;
        c.check_writable(InPlace::Gemm, &[a, b])?;
        super::same_device("gemm", &[a, b, c])?;
        for (name, t) in [("A", a), ("B", b), ("C", c)] {
            if t.dtype() != a.dtype() {
                let e = Error::new(ErrorKind::DTypeMismatch, "gemm", format!("{name} has another dtype than A"));
                return Err(c.describe(b.describe(a.describe(e, "A"), "B"), "C").help("convert with to_dtype"));
            }
            if t.dtype() == DType::Bool {
                return Err(t.describe(Error::dtype("gemm", DType::Bool, "numbers; cast first"), name));
            }
            if !t.is_contiguous() {
                let e = Error::argument("gemm", format!("{name} is no flat buffer: its elements are strided"));
                return Err(t.describe(e, name).help("pass x.contiguous()?, or use matmul, which takes any strides"));
            }
        }
        for (name, s) in [("alpha", self.alpha), ("beta", self.beta)] {
            s.check(a.dtype()).map_err(|e| Error::argument("gemm", format!("{name}: {}", e.message()))).here()?;
        }
        let [.., lc] = self
            .matrices([a.layout(), b.layout(), c.layout()])
            .map_err(|e| c.describe(b.describe(a.describe(e, "A"), "B"), "C"))?;
        if lc.numel() == 0 {
            return Ok(());
        }
        c.write(InPlace::Gemm, *self, &[a, b])
    }

    /// The layouts of `op(A)`, `op(B)` and C in their buffers.
    #[track_caller]
    fn matrices(&self, [a, b, c]: [&Layout; 3]) -> Result<[Layout; 3]> {
        let (rows_a, columns_a) = if self.trans_a { (self.k, self.m) } else { (self.m, self.k) };
        let (rows_b, columns_b) = if self.trans_b { (self.n, self.k) } else { (self.k, self.n) };
        let strides = self.batch.map_or([0; 3], |b| b.1);
        let la = self.matrix("A", a, rows_a, columns_a, self.lda, strides[0])?;
        let lb = self.matrix("B", b, rows_b, columns_b, self.ldb, strides[1])?;
        let lc = self.matrix("C", c, self.m, self.n, self.ldc, strides[2])?;
        if lc.overlaps_itself() {
            let e = Error::argument("gemm", format!("matrices of C {} elements apart overlap", strides[2]));
            return Err(e.help("the distance is at least (m - 1) * ldc + n"));
        }
        let la = if self.trans_a { la.transpose(-2, -1)? } else { la };
        let lb = if self.trans_b { lb.transpose(-2, -1)? } else { lb };
        Ok([la, lb, lc])
    }

    /// The layout of a stored matrix (or a batch of them) in a flat buffer.
    #[track_caller]
    fn matrix(
        &self,
        name: &str,
        buffer: &Layout,
        rows: usize,
        columns: usize,
        ld: Option<usize>,
        stride: usize,
    ) -> Result<Layout> {
        let ld = ld.unwrap_or(columns);
        if ld < columns {
            let m = format!("the leading dimension of {name} is {ld}, below its rows of {columns}");
            return Err(Error::argument("gemm", m));
        }
        let overflow = || Error::new(ErrorKind::Overflow, "gemm", format!("the sizes of {name} overflow"));
        let count = self.batch.map_or(1, |b| b.0);
        // One past the last element. The last row may be shorter than the leading dimension.
        let needed = if rows == 0 || columns == 0 || count == 0 {
            0
        } else {
            let matrix = (rows - 1).checked_mul(ld).and_then(|n| n.checked_add(columns));
            let before = (count - 1).checked_mul(stride);
            before.zip(matrix).and_then(|(b, m)| b.checked_add(m)).ok_or_else(overflow).here()?
        };
        if needed > buffer.numel() {
            let m = format!("{name} needs a buffer of {needed} elements, and has {}", buffer.numel());
            return Err(Error::shape("gemm", m));
        }
        let signed = |n: usize| isize::try_from(n).map_err(|_| overflow());
        let shape = [count, rows, columns];
        let strides = [signed(stride).here()?, signed(ld).here()?, 1];
        let lead = usize::from(self.batch.is_none());
        Layout::from_parts(Shape::new(&shape[lead..])?, &strides[lead..], buffer.offset(), usize::MAX)
    }
}

/// Inputs: the flat buffers A and B. `infer` receives C first.
impl Operation for Gemm {
    fn name(&self) -> &str {
        "gemm"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["C", "A", "B"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let [c, a, b] = [0, 1, 2].map(|i| Layout::contiguous(*inputs[i].shape));
        self.matrices([&a, &b, &c])?;
        Ok(one(*inputs[0].shape, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (a, b, c) = (inputs[0], inputs[1], &mut outputs[0]);
        let [la, lb, lc] = self.matrices([a.layout, b.layout, c.layout])?;
        backend.gemm(self.alpha, a.with(&la), b.with(&lb), self.beta, &mut c.with(&lc))
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn effect(&self) -> Effect {
        Effect::Updates
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

#[track_caller]
fn check_untracked(tensors: &[&Tensor]) -> Result<()> {
    match tensors.iter().find(|t| is_grad_enabled() && t.requires_grad()) {
        None => Ok(()),
        Some(t) => {
            let e = Error::new(ErrorKind::Autograd, "gemm", "it is not recorded, but a gradient is required");
            Err(t.describe(e, "operand").help("use addmm or matmul, or call it inside no_grad(|| ..)"))
        }
    }
}
