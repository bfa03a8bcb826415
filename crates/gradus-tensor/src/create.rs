//! Creation of tensors: from values, from constants, from ranges, and from random numbers.

use std::sync::Arc;

use gradus_backend::host_vec::vec_of;
use gradus_backend::{
    Buffer, DType, Distribution, Element, Error, Here, Layout, Result, Scalar, Shape, bf16_from_f64, f16_from_f64,
};

use crate::autograd::is_traced;
use crate::limit::alloc;
use crate::locks::of_device;
use crate::ops::{Arange, Fill, Op, Operation, Random, Spec, To, bind, note_made};
use crate::{Device, Generator, Storage, Tensor};

/// The maximum number of elements, of up to 8 bytes each, in one upload.
const PIECE: usize = 1 << 16;

/// Returns an error if `bytes`, which begin at byte `start` of the tensor, are not valid values of `dtype`.
#[track_caller]
fn check_bytes(bytes: &[u8], start: usize, dtype: DType) -> Result<()> {
    if dtype == DType::Bool
        && let Some(at) = bytes.iter().position(|&b| b > 1)
    {
        let m = format!("byte {} is {}, where a boolean is 0 or 1", start + at, bytes[at]);
        return Err(Error::argument("from_bytes", m).help("read them as u8, and compare: x.ne(0)?"));
    }
    Ok(())
}

impl Tensor {
    /// Creates a tensor with the given values in row-major order.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2, 3, 4, 5, 6i64], [2, 3], &device)?;
    /// assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::I64));
    /// assert!(Tensor::from_vec(vec![1.0f32], [2], &device).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn from_vec<T: Element>(
        values: impl AsRef<[T]>,
        shape: impl AsRef<[usize]>,
        device: &Device,
    ) -> Result<Tensor> {
        Tensor::from_bytes(T::as_bytes(values.as_ref()), shape, T::DTYPE, device)
    }

    /// Creates a tensor from the bytes of its elements, in row-major order and native byte order. A boolean must be a
    /// byte 0 or 1; other bytes are an error.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], shape: impl AsRef<[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        let shape = Shape::new(shape.as_ref())?;
        if bytes.len() != shape.numel() * dtype.size() {
            let m = format!("{} values do not fill {shape}, which has {}", bytes.len() / dtype.size(), shape.numel());
            return Err(Error::shape("from_vec", m));
        }
        check_bytes(bytes, 0, dtype)?;
        Tensor::uploaded("from_vec", shape, dtype, device, |buffer| {
            if bytes.is_empty() { Ok(()) } else { device.backend().upload(buffer, 0, bytes) }
        })
    }

    /// Creates a tensor whose bytes, in row-major order and native byte order, arrive in pieces of at most 512 KiB.
    /// `read` is called to fill one slice after the other. In this way a file becomes a tensor without a copy of the
    /// whole file on the host. A boolean must be a byte 0 or 1; other bytes are an error.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc; use std::io::Read;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let mut file = std::io::Cursor::new(1.5f32.to_ne_bytes().repeat(6));
    /// let x = Tensor::from_pieces([2, 3], DType::F32, &device, |piece| {
    ///     file.read_exact(piece).map_err(|e| Error::io("read", "weights", e))
    /// })?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.5; 6]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `read`, and [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) before `read` is called.
    #[track_caller]
    pub fn from_pieces(
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        mut read: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<Tensor> {
        const OP: &str = "from_pieces";
        let shape = Shape::new(shape.as_ref())?;
        let (bytes, room) = (shape.numel() * dtype.size(), PIECE * dtype.size());
        Tensor::uploaded(OP, shape, dtype, device, |buffer| {
            let mut piece = vec_of(OP, bytes.min(room))?;
            // At most `PIECE` elements. This does not allocate: `vec_of` has reserved as much.
            piece.resize(bytes.min(room), 0);
            for start in (0..bytes).step_by(room) {
                let piece = &mut piece[..room.min(bytes - start)];
                read(piece)?;
                check_bytes(piece, start, dtype)?;
                device.backend().upload(buffer, start, piece)?;
            }
            Ok(())
        })
    }

    /// Creates a tensor whose bytes `upload` copies to the device.
    #[track_caller]
    fn uploaded(
        op: &str,
        shape: Shape,
        dtype: DType,
        device: &Device,
        upload: impl FnOnce(&mut Buffer) -> Result<()>,
    ) -> Result<Tensor> {
        if !device.backend().supports(dtype) {
            return of_device(Err(device.backend().unsupported(op, dtype)));
        }
        let mut buffer = of_device(alloc(device, shape.numel() * dtype.size()))?;
        upload(&mut buffer).here()?;
        let storage = Arc::new(Storage::new(device.clone(), buffer));
        let made = Tensor::from_parts(storage, Layout::contiguous(shape), dtype);
        if is_traced() {
            note_made(&made)?;
        }
        Ok(made)
    }

    /// Creates a tensor of rank 0 with the dtype of `value`.
    #[track_caller]
    pub fn scalar<T: Element>(value: T, device: &Device) -> Result<Tensor> {
        Tensor::from_vec([value], [], device)
    }

    /// Creates a tensor of zeros.
    #[track_caller]
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full(shape, 0, dtype, device)
    }

    /// Creates a tensor of ones.
    #[track_caller]
    pub fn ones(shape: impl AsRef<[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::full(shape, 1, dtype, device)
    }

    /// Creates a tensor filled with `value`, which the dtype must be able to represent.
    #[track_caller]
    pub fn full(shape: impl AsRef<[usize]>, value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Tensor> {
        let value = value.into();
        value.check(dtype).map_err(|e| Error::argument("full", e.message())).here()?;
        made(Fill { value, spec: Spec { shape: Shape::new(shape.as_ref())?, dtype } }, device)
    }

    /// Creates zeros with the shape, dtype and device of this tensor.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(self.shape(), self.dtype(), self.device())
    }

    /// Creates ones with the shape, dtype and device of this tensor.
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(self.shape(), self.dtype(), self.device())
    }

    /// Creates a tensor filled with `value`, with the shape, dtype and device of this tensor. The dtype must be able to
    /// represent `value`.
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        Tensor::full(self.shape(), value, self.dtype(), self.device())
    }

    /// The integers `start`, `start + step`, .. up to but not including `end`; empty if `start` and `end` are equal. A
    /// step of 0, or one that leads away from `end`, is an error.
    #[track_caller]
    pub fn arange(start: i64, end: i64, step: i64, dtype: DType, device: &Device) -> Result<Tensor> {
        let (distance, stride) = (i128::from(end) - i128::from(start), i128::from(step));
        if step == 0 || (distance != 0 && distance.signum() != stride.signum()) {
            let m = format!("steps of {step} never lead from {start} to {end}");
            return Err(Error::argument("arange", m).help("give the step the sign of `end - start`"));
        }
        let n = (distance.abs() + stride.abs() - 1) / stride.abs();
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        // Checks the size before anything that large is allocated.
        let shape = Shape::new(&[n])?;
        if n > 0 {
            for v in [start, start.wrapping_add((n as i64 - 1).wrapping_mul(step))] {
                Scalar::Int(v).check(dtype).map_err(|e| Error::argument("arange", e.message())).here()?;
            }
        }
        made(Arange { start, step, spec: Spec { shape, dtype } }, device)
    }

    /// `n` evenly spaced values from `start` to `end`, both included. Both must be finite, and the dtype must be a
    /// float.
    #[track_caller]
    pub fn linspace(start: f64, end: f64, n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        if !dtype.is_float() {
            return Err(Error::dtype("linspace", dtype, "floats"));
        }
        if !start.is_finite() || !end.is_finite() {
            return Err(Error::argument("linspace", format!("{start} to {end}: nothing lies evenly between them"))
                .help("both ends are finite"));
        }
        let shape = Shape::new(&[n])?;
        let last = n.saturating_sub(1).max(1) as f64;
        // Each value is computed from the nearer end, so that both ends are exact. If `end - start` overflows, the ends
        // have different signs, so their weighted sum cannot overflow.
        let far = (end - start).is_infinite();
        let at = |i: usize| {
            let i = i as f64;
            if far {
                return start * ((last - i) / last) + end * (i / last);
            }
            if 2.0 * i < last { start + (end - start) * (i / last) } else { end - (end - start) * ((last - i) / last) }
        };
        let values = (0..n).map(|i| Scalar::Float(if n == 1 { start } else { at(i) }));
        Tensor::from_scalars(values, shape, dtype, device)
    }

    /// The identity matrix of size `n`.
    #[track_caller]
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let shape = Shape::new(&[n, n])?;
        Tensor::from_scalars((0..n * n).map(|i| Scalar::Bool(i % (n + 1) == 0)), shape, dtype, device)
    }

    /// Random floats, uniform in `[0, 1)`.
    #[track_caller]
    pub fn rand(
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        Tensor::random(Distribution::Uniform { lo: 0.0, hi: 1.0 }, shape, dtype, device, generator)
    }

    /// Random floats from the normal distribution with mean 0 and standard deviation 1.
    #[track_caller]
    pub fn randn(
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        Tensor::random(Distribution::Normal { mean: 0.0, std: 1.0 }, shape, dtype, device, generator)
    }

    /// Random integers, uniform in `lo..hi`. The dtype may be a float, but must represent `lo` and `hi - 1` exactly.
    #[track_caller]
    pub fn randint(
        lo: i64,
        hi: i64,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        Tensor::random(Distribution::Int { lo, hi }, shape, dtype, device, generator)
    }

    /// Random elements from a distribution. The generator advances by the number of words that the draw consumes.
    #[track_caller]
    pub fn random(
        dist: Distribution,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        let fail = |m: String| Err(Error::argument("random", m));
        match dist {
            Distribution::Uniform { lo, hi } if !(hi - lo).is_finite() || lo > hi => {
                return fail(format!("{lo} to {hi} is no range")).here();
            }
            Distribution::Normal { mean, std } if !mean.is_finite() || !std.is_finite() || std < 0.0 => {
                return fail(format!("mean {mean} and standard deviation {std} are no normal distribution")).here();
            }
            Distribution::Bernoulli { p } if !(0.0..=1.0).contains(&p) => {
                return fail(format!("p is {p}; it is a probability, 0 to 1")).here();
            }
            Distribution::Int { lo, hi } => {
                if lo >= hi {
                    return fail(format!("{lo}..{hi} is empty")).here();
                }
                for v in [lo, hi - 1] {
                    Scalar::Int(v).check(dtype).map_err(|e| Error::argument("random", e.message())).here()?;
                    if dtype.is_float() && !is_exact(v, dtype) {
                        return fail(format!("{v}, an end of {lo}..{hi}, cannot be represented as {dtype}")).here();
                    }
                }
            }
            _ => {}
        }
        let wants_float = matches!(dist, Distribution::Uniform { .. } | Distribution::Normal { .. });
        if wants_float && !dtype.is_float() {
            return Err(Error::dtype("random", dtype, "floats"));
        }
        if matches!(dist, Distribution::Int { .. }) && dtype == DType::Bool {
            return Err(Error::dtype("random", dtype, "numbers; use a Bernoulli draw for booleans"));
        }
        let shape = Shape::new(shape.as_ref())?;
        // The generator advances only after the numbers have been computed.
        let mut moved = generator.clone();
        let (seed, offset) = moved.advance(dist, dtype, shape.numel());
        let y = made(Random { distribution: dist, seed, offset, spec: Spec { shape, dtype } }, device)?;
        *generator = moved;
        Ok(y)
    }

    /// Creates a tensor of numbers that the host converts to `dtype`, so the device needs no support for their original
    /// type.
    #[track_caller]
    pub(crate) fn from_scalars(
        values: impl Iterator<Item = Scalar>,
        shape: Shape,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        use gradus_backend::{bf16, f16};
        macro_rules! make {
            ($($d:ident $t:ty),*) => {
                match dtype {
                    $(DType::$d => Tensor::in_pieces::<$t>(values, shape, device),)*
                }
            };
        }
        make!(F64 f64, F32 f32, F16 f16, BF16 bf16, I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8,
            Bool bool)
    }

    /// Uploads the values piece by piece, so that the host never holds all of them.
    #[track_caller]
    fn in_pieces<T: Element>(
        mut values: impl Iterator<Item = Scalar>,
        shape: Shape,
        device: &Device,
    ) -> Result<Tensor> {
        let n = shape.numel();
        Tensor::uploaded("create", shape, T::DTYPE, device, |buffer| {
            let mut piece = vec_of("create", n.min(PIECE))?;
            for start in (0..n).step_by(PIECE) {
                piece.clear();
                for value in values.by_ref().take(PIECE) {
                    piece.push(T::from_scalar(value)?);
                }
                device.backend().upload(buffer, start * size_of::<T>(), T::as_bytes(&piece))?;
            }
            Ok(())
        })
    }
}

/// Runs an operation that has no inputs.
#[track_caller]
fn made<O: Operation + Into<Op>>(op: O, device: &Device) -> Result<Tensor> {
    let specs = op.infer(&[]).here()?;
    if let Some(spec) = specs.iter().find(|spec| !device.backend().supports(spec.dtype)) {
        return of_device(Err(device.backend().unsupported(op.name(), spec.dtype)));
    }
    bind(op, &[], To::New(device))
}

/// Whether the integer `v` is exactly representable in this float dtype.
fn is_exact(v: i64, dtype: DType) -> bool {
    let nearest = match dtype {
        DType::F32 => f64::from(v as f32),
        DType::F16 => f16_from_f64(v as f64).to_f64(),
        DType::BF16 => bf16_from_f64(v as f64).to_f64(),
        _ => v as f64,
    };
    nearest.is_finite() && nearest as i128 == i128::from(v)
}
