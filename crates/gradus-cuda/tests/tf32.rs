//! Products of f32 whose factors are rounded to tf32, beside sums in f64.

mod common;

use gradus_backend::{Backend, DType, Element, Layout, Result, Scalar, Shape, View, ViewMut};
use gradus_cuda::{CudaBackend, CudaOptions};

/// Half of the distance of neighbouring numbers of tf32, relative to their magnitude.
const HALF: f64 = 1.0 / 2048.0;
/// The same for f32.
const HALF_OF_F32: f64 = 1.0 / (1u64 << 24) as f64;

/// The sizes of a product, `[batch, m, k, n]`, and whether a factor is stored the other way round. A transposed factor of
/// odd size, or one with an offset, has no groups of 16 bytes.
const CASES: [([usize; 4], [bool; 2]); 9] = [
    ([1, 16, 8, 9], [false, false]),
    ([1, 33, 20, 17], [true, false]),
    ([2, 40, 64, 72], [false, true]),
    ([3, 64, 100, 33], [true, true]),
    ([1, 64, 52, 128], [false, false]),
    ([1, 65, 37, 71], [false, true]),
    ([1, 20, 600, 24], [false, false]),  // The inner axis is cut.
    ([132, 72, 12, 128], [true, false]), // The largest tiles.
    ([132, 70, 9, 99], [false, true]),
];

/// Numbers with magnitudes from 1/4 to 4, of either sign if asked for.
fn numbers(count: usize, seed: u32, signed: bool) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let one = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        // All 23 bits of the fraction count.
        let value = f32::from_bits(0x3e80_0000 + (state >> 6 & 0x01ff_ffff));
        if signed && state >> 31 == 1 { -value } else { value }
    };
    std::iter::repeat_with(one).take(count).collect()
}

/// The nearest number of tf32, with ties away from 0.
fn rounded(x: f32) -> f64 {
    f32::from_bits((x.to_bits() + 0x1000) & !0x1fff).into()
}

/// A product and its factors, all row by row.
struct Product {
    sizes: [usize; 4],
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Product {
    fn of(backend: &dyn Backend, (sizes, transposed): ([usize; 4], [bool; 2]), signed: bool) -> Result<Product> {
        let [batch, m, k, n] = sizes;
        let (a, b) = (numbers(batch * m * k, 1, signed), numbers(batch * k * n, 2, signed));
        let upload = |values: &[f32], [rows, cols]: [usize; 2], other: bool| {
            let shape = Shape::new(&if other { [batch, cols, rows] } else { [batch, rows, cols] })?;
            let layout = Layout::contiguous(shape);
            let layout = if other { layout.transpose(1, 2)? } else { layout };
            let mut stored = vec![0.0; values.len()];
            for (i, &value) in values.iter().enumerate() {
                let (matrix, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
                let within = if other { col * rows + row } else { row * cols + col };
                stored[matrix * rows * cols + within] = value;
            }
            let mut buffer = backend.alloc(values.len() * 4)?;
            backend.upload(&mut buffer, 0, f32::as_bytes(&stored))?;
            Ok((buffer, layout))
        };
        let ((x, p), (y, q)) = (upload(&a, [m, k], transposed[0])?, upload(&b, [k, n], transposed[1])?);
        let mut buffer = backend.alloc(batch * m * n * 4)?;
        let layout = Layout::contiguous(Shape::new(&[batch, m, n])?);
        let mut out = ViewMut { buffer: &mut buffer, dtype: DType::F32, layout: &layout };
        let view = |buffer, layout| View { buffer, dtype: DType::F32, layout };
        backend.gemm(Scalar::Int(1), view(&x, &p), view(&y, &q), Scalar::Int(0), &mut out)?;
        let mut bytes = vec![0; batch * m * n * 4];
        backend.download(&buffer, 0, &mut bytes)?;
        let c = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Product { sizes, a, b, c })
    }

    /// The largest error of an element, relative to the sum of the magnitudes of its products, if its factors are what
    /// `factor` makes of them.
    fn error(&self, factor: impl Fn(f32) -> f64) -> f64 {
        let [_, m, k, n] = self.sizes;
        let one = |i: usize| {
            let (matrix, row, col) = (i / (m * n), i / n % m, i % n);
            let products =
                (0..k).map(|l| factor(self.a[(matrix * m + row) * k + l]) * factor(self.b[(matrix * k + l) * n + col]));
            let (mut sum, mut magnitudes) = (0.0, 0.0);
            products.for_each(|p| (sum, magnitudes) = (sum + p, magnitudes + p.abs()));
            let error = (f64::from(self.c[i]) - sum).abs() / magnitudes;
            if error.is_nan() { f64::INFINITY } else { error }
        };
        (0..self.c.len()).map(one).fold(0.0, f64::max)
    }

    /// What sums in f32 add to the error, in whatever order.
    fn bound_of_sums(&self) -> f64 {
        // A GPU may drop bits of a partial sum instead of rounding it.
        self.sizes[2] as f64 * 2.0 * HALF_OF_F32
    }
}

fn opened() -> Option<CudaBackend> {
    common::opened()?;
    Some(
        CudaBackend::open_with(0, CudaOptions { tf32: true, ..CudaOptions::default() })
            .expect("a device that was opened before"),
    )
}

#[test]
fn factors_are_rounded_to_tf32_and_sums_are_those_of_f32() {
    let Some(backend) = opened() else { return };
    assert!(backend.info().features.iter().any(|feature| feature == "tf32"));
    for (case, signed) in CASES.into_iter().zip([false, true].into_iter().cycle()) {
        let product = Product::of(&backend, case, signed).unwrap();
        let (of_exact, of_rounded) = (product.error(f64::from), product.error(rounded));
        let sums = product.bound_of_sums();
        assert!(of_rounded <= sums, "{case:?}: {of_rounded} beside rounded factors, of {sums}");
        assert!(of_exact <= 2.0 * HALF + HALF * HALF + sums, "{case:?}: {of_exact} beside f64");
        assert!(of_exact > HALF / 64.0, "{case:?}: {of_exact} is an error of f32");
        let cut = |x: f32| f64::from(f32::from_bits(x.to_bits() & !0x1fff));
        assert!(product.error(cut) > sums, "{case:?}: factors that are cut off");
    }
}

#[test]
fn a_planted_mistake_is_beyond_the_bound() {
    let Some(backend) = opened() else { return };
    let mut product = Product::of(&backend, CASES[4], false).unwrap();
    let sums = product.bound_of_sums();
    assert!(product.error(rounded) <= sums);
    let last = product.c.len() - 1;
    let (right, lost) = (product.c[last], product.a[product.a.len() - 1] * product.b[product.b.len() - 1]);
    for wrong in [right - lost, right + lost, right * (1.0 + HALF as f32), 0.0, product.c[0], f32::NAN] {
        product.c[last] = wrong;
        assert!(product.error(rounded) > sums, "{wrong} beside {right}");
    }
}

#[test]
fn without_the_request_products_are_those_of_f32() {
    let (Some(backend), Some(_)) = (common::opened(), opened()) else { return };
    assert!(!backend.info().features.iter().any(|feature| feature == "tf32"));
    for case in [CASES[2], CASES[5], CASES[6]] {
        let product = Product::of(&backend, case, true).unwrap();
        assert!(product.error(f64::from) <= product.bound_of_sums() / 2.0, "{case:?}");
    }
}

#[test]
fn thin_products_are_not_concerned() {
    let Some(backend) = opened() else { return };
    let product = Product::of(&backend, ([1, 70, 40, 8], [false, false]), true).unwrap();
    assert!(product.error(f64::from) <= product.bound_of_sums());
}

#[test]
fn infinities_and_nan_spread_as_in_f32_and_the_largest_numbers_round_to_infinity() {
    let Some(backend) = opened() else { return };
    let (rows, cols) = (16, 16);
    let layout = Layout::contiguous(Shape::new(&[rows, cols]).unwrap());
    let diagonal = |values: [f32; 3]| {
        let mut all = vec![0.0f32; rows * cols];
        values.into_iter().enumerate().for_each(|(i, value)| all[i * cols + i] = value);
        all
    };
    let values = [diagonal([f32::INFINITY, f32::NAN, f32::MAX]), diagonal([1.0; 3]), vec![0.0; rows * cols]];
    let mut buffers = values.map(|values| {
        let mut buffer = backend.alloc(values.len() * 4).unwrap();
        backend.upload(&mut buffer, 0, f32::as_bytes(&values)).unwrap();
        buffer
    });
    let [x, y, z] = &mut buffers;
    let view = |buffer| View { buffer, dtype: DType::F32, layout: &layout };
    let mut out = ViewMut { buffer: z, dtype: DType::F32, layout: &layout };
    backend.gemm(Scalar::Int(1), view(x), view(y), Scalar::Int(0), &mut out).unwrap();
    let mut bytes = vec![0; rows * cols * 4];
    backend.download(z, 0, &mut bytes).unwrap();
    let at = |row: usize, col: usize| {
        let place = (row * cols + col) * 4;
        f32::from_ne_bytes(bytes[place..place + 4].try_into().unwrap())
    };
    assert_eq!((at(0, 0), at(2, 2), at(5, 5)), (f32::INFINITY, f32::INFINITY, 0.0));
    assert!(at(1, 1).is_nan() && at(0, 1).is_nan());
}
