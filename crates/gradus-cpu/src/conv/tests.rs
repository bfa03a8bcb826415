//! Tests of convolution, unfold and fold against plain loops.

use gradus_backend::{Backend, DType, ErrorKind, Layout, Scalar, Shape, Window};

use super::direct::{CHANNELS, Weights};
use super::sizes::Sizes;
use crate::CpuBackend;
use crate::access::{Float, with_float};
use crate::gemm::Real;
use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, integers, noise};

/// A convolution to test.
#[derive(Debug, Clone)]
struct Case {
    window: Window,
    n: usize,
    c: usize,
    k: usize,
    groups: usize,
    spatial: Vec<usize>,
}

fn window(kernel: &[usize], stride: &[usize], dilation: &[usize], before: &[usize], after: &[usize]) -> Window {
    let all = |v: &[usize], fill| std::array::from_fn(|i| v.get(i).copied().unwrap_or(fill));
    Window {
        rank: kernel.len(),
        kernel: all(kernel, 1),
        stride: all(stride, 1),
        dilation: all(dilation, 1),
        pad_before: all(before, 0),
        pad_after: all(after, 0),
    }
}

fn cases() -> Vec<Case> {
    let case = |window, [n, c, k, groups]: [usize; 4], spatial: &[usize]| Case {
        window,
        n,
        c,
        k,
        groups,
        spatial: spatial.into(),
    };
    vec![
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [2, 3, 5, 1], &[7, 9]),
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [1, 20, 17, 1], &[20, 21]),
        case(window(&[3, 2], &[2, 3], &[1, 2], &[1, 0], &[0, 2]), [2, 4, 6, 2], &[9, 11]),
        case(window(&[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [2, 5, 4, 1], &[6, 5]),
        case(window(&[1, 1], &[2, 2], &[1, 1], &[0, 0], &[0, 0]), [2, 5, 4, 1], &[6, 5]),
        case(window(&[3, 3], &[1, 1], &[2, 1], &[4, 3], &[0, 5]), [1, 4, 4, 4], &[5, 6]),
        case(window(&[5], &[2], &[1], &[3], &[1]), [3, 2, 3, 1], &[40]),
        case(window(&[4], &[1], &[3], &[0], &[2]), [2, 6, 3, 3], &[50]),
        case(window(&[2, 3, 2], &[1, 2, 1], &[1, 1, 2], &[1, 1, 0], &[0, 1, 1]), [2, 2, 3, 1], &[4, 6, 5]),
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [0, 3, 5, 1], &[7, 9]),
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [2, 0, 5, 1], &[4, 3]),
        case(window(&[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]), [2, 3, 0, 1], &[4, 3]),
        case(window(&[2, 2], &[2, 2], &[1, 1], &[1, 1], &[1, 1]), [20, 1, 3, 1], &[5, 5]),
        // There are enough output channels for vectors along them, both whole and partial vectors.
        case(window(&[3, 3], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [2, 40, 48, 1], &[9, 30]),
        case(window(&[3, 3], &[2, 2], &[2, 2], &[2, 2], &[2, 2]), [1, 24, 66, 2], &[15, 17]),
        case(window(&[7, 7], &[2, 2], &[1, 1], &[3, 3], &[3, 3]), [1, 3, 34, 1], &[33, 40]),
        case(window(&[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [2, 17, 130, 1], &[16, 16]),
        case(window(&[3], &[1], &[1], &[1], &[1]), [2, 9, 16, 1], &[1100]),
        case(window(&[3, 2, 3], &[1, 1, 2], &[1, 1, 1], &[1, 0, 1], &[1, 1, 1]), [1, 8, 18, 1], &[4, 7, 20]),
        case(window(&[2, 2], &[1, 1], &[1, 1], &[2, 2], &[2, 2]), [1, 8, 8, 1], &[0, 3]),
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [2, 0, 16, 1], &[4, 3]),
        // Blocks of positions with boxes of different sizes.
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [1, 3, 9, 1], &[5, 200]),
        // Half panels of four channels, with adjacent columns.
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [2, 8, 12, 1], &[1, 1]),
        case(window(&[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [2, 1, 12, 1], &[3, 5]),
        case(window(&[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [2, 12, 1, 1], &[3, 5]),
        // Few positions and many channels: one, two and three rows of several vectors, and the vectors that are left.
        case(window(&[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [3, 500, 330, 1], &[1, 1]),
        case(window(&[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]), [1, 40, 200, 1], &[3, 4]),
        case(window(&[1, 3], &[1, 1], &[1, 1], &[0, 1], &[0, 1]), [2, 9, 144, 1], &[1, 3]),
        // An odd number of lines, for a kernel that processes two at once.
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [2, 3, 17, 1], &[5, 2]),
        case(window(&[3, 3], &[2, 2], &[1, 2], &[1, 2], &[1, 2]), [2, 3, 17, 1], &[9, 5]),
        // A sum of the weight's gradient covers several images, and the last sum covers fewer. In these three cases,
        // the input is copied, copied in groups, and read in place.
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [13, 130, 9, 1], &[3, 4]),
        case(window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [34, 16, 16, 2], &[4, 5]),
        case(window(&[2, 2], &[1, 1], &[1, 1], &[0, 0], &[0, 0]), [33, 8, 8, 1], &[4, 5]),
        // Windows that reach far beyond the input, and strides that leave it.
        case(window(&[3, 3], &[1, 1], &[1000, 1000], &[1000, 1000], &[1000, 1000]), [1, 8, 16, 1], &[5, 6]),
        case(window(&[3, 3], &[1, 1], &[1 << 20; 2], &[1 << 20; 2], &[1 << 20; 2]), [1, 8, 64, 1], &[3, 3]),
        case(window(&[2, 2], &[1 << 40, 7], &[1, 1], &[0, 0], &[0, 0]), [1, 8, 16, 1], &[3, 3]),
        case(window(&[2, 2], &[(1 << 60) - 1, 1], &[1, 1], &[0, 0], &[0, 0]), [1, 16, 16, 1], &[3, 3]),
        case(window(&[2, 2], &[10, 10], &[(1 << 32) - 1; 2], &[1 << 32; 2], &[0, 0]), [1, 8, 16, 1], &[3, 3]),
    ]
}

impl Case {
    fn x_dims(&self) -> Vec<usize> {
        [&[self.n, self.c][..], &self.spatial].concat()
    }

    fn w_dims(&self) -> Vec<usize> {
        [&[self.k, self.c / self.groups][..], &self.window.kernel[..self.window.rank]].concat()
    }

    fn out_dims(&self) -> Vec<usize> {
        let out = self.window.output("test", &self.spatial).unwrap();
        [&[self.n, self.k][..], &out[..self.window.rank]].concat()
    }

    /// Calls `f` for every product of the convolution, with the row-major positions of the elements of input, weight
    /// and output.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (w, r) = (&self.window, self.window.rank);
        let out = w.output("test", &self.spatial).unwrap();
        let index = |mut i: usize, dims: &[usize]| {
            let mut at = [0; 3];
            for a in (0..dims.len()).rev() {
                at[a] = i % dims[a];
                i /= dims[a];
            }
            at
        };
        let (cg, kg) = (self.c / self.groups, self.k / self.groups);
        let (taps, positions) = (w.numel(), out[..r].iter().product::<usize>());
        let plane: usize = self.spatial.iter().product();
        for t in 0..taps {
            for p in 0..positions {
                let (ti, pi) = (index(t, &w.kernel[..r]), index(p, &out[..r]));
                let mut at = Some(0);
                for a in 0..r {
                    let i = (pi[a] * w.stride[a] + ti[a] * w.dilation[a]).checked_sub(w.pad_before[a]);
                    let i = i.filter(|&i| i < self.spatial[a]);
                    at = at.zip(i).map(|(at, i)| at * self.spatial[a] + i);
                }
                let Some(at) = at else { continue };
                for n in 0..self.n {
                    for k in 0..self.k {
                        for c in 0..cg {
                            let x = (n * self.c + k / kg * cg + c) * plane + at;
                            f(x, (k * cg + c) * taps + t, (n * self.k + k) * positions + p);
                        }
                    }
                }
            }
        }
    }
}

fn check(cpu: &CpuBackend, dtype: DType, exact: bool, tolerance: f64) {
    for (t, case) in cases().into_iter().enumerate() {
        let numbers = |seed| -> Box<dyn FnMut(usize) -> f64> {
            if exact { Box::new(integers(seed, 2)) } else { Box::new(noise(seed)) }
        };
        let lie = |i: usize| Lie::ALL[(t + i) % 4];
        let x = Tensor::new(cpu, dtype, &case.x_dims(), lie(0), numbers(1));
        let w = Tensor::new(cpu, dtype, &case.w_dims(), lie(1), numbers(2));
        let g = Tensor::new(cpu, dtype, &case.out_dims(), lie(2), numbers(3));
        let bias = Tensor::new(cpu, dtype, &[case.k], lie(3), numbers(4));
        let (xv, wv, gv, bv) = (x.values(cpu), w.values(cpu), g.values(cpu), bias.values(cpu));
        let positions = gv.len() / (case.n * case.k).max(1);
        let mut want_y: Vec<f64> = (0..gv.len()).map(|i| bv[i / positions % case.k]).collect();
        let (mut want_dx, mut want_dw) = (vec![0.0; xv.len()], vec![0.0; wv.len()]);
        case.each(|x, w, y| {
            want_y[y] += xv[x] * wv[w];
            want_dx[x] += gv[y] * wv[w];
            want_dw[w] += gv[y] * xv[x];
        });
        let (win, groups) = (&case.window, case.groups);
        let mut y = Tensor::canary(cpu, dtype, &case.out_dims(), lie(1));
        cpu.conv(win, groups, x.view(), w.view(), Some(bias.view()), &mut y.view_mut()).unwrap();
        assert_close(&y.values(cpu), &want_y, tolerance);
        y.assert_gaps_untouched(cpu);
        let mut dx = Tensor::canary(cpu, dtype, &case.x_dims(), lie(2));
        cpu.conv_backward_input(win, groups, g.view(), w.view(), &mut dx.view_mut()).unwrap();
        assert_close(&dx.values(cpu), &want_dx, tolerance);
        let mut dw = Tensor::canary(cpu, dtype, &case.w_dims(), lie(3));
        cpu.conv_backward_weight(win, groups, x.view(), g.view(), &mut dw.view_mut()).unwrap();
        assert_close(&dw.values(cpu), &want_dw, tolerance);
    }
}

#[test]
fn small_integers_are_exact() {
    for cpu in crate::testing::backends() {
        check(&cpu, DType::F32, true, 0.0);
        check(&cpu, DType::F64, true, 0.0);
    }
}

#[test]
fn random_convolutions_agree_with_f64() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    check(&cpu, DType::F64, false, 1e-13);
    check(&cpu, DType::F32, false, 1e-5);
    check(&cpu, DType::F16, false, 4e-3);
    check(&cpu, DType::BF16, false, 3e-2);
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    let win = window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    let strided = window(&[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]);
    for (win, out) in [(win, [14, 14]), (strided, [7, 7])] {
        for (c, k, dtype) in [(12, 10, DType::F32), (12, 4, DType::F32), (50, 38, DType::F32), (50, 38, DType::BF16)] {
            assert_same_bits(|cpu| {
                let x = Tensor::new(cpu, dtype, &[9, c, 14, 14], Lie::Contiguous, noise(1));
                let w = Tensor::new(cpu, dtype, &[k, c, 3, 3], Lie::Contiguous, noise(2));
                let mut y = Tensor::canary(cpu, dtype, &[9, k, out[0], out[1]], Lie::Contiguous);
                cpu.conv(&win, 1, x.view(), w.view(), None, &mut y.view_mut()).unwrap();
                let mut dx = Tensor::canary(cpu, dtype, &[9, c, 14, 14], Lie::Contiguous);
                cpu.conv_backward_input(&win, 1, y.view(), w.view(), &mut dx.view_mut()).unwrap();
                let mut dw = Tensor::canary(cpu, dtype, &[k, c, 3, 3], Lie::Contiguous);
                cpu.conv_backward_weight(&win, 1, x.view(), y.view(), &mut dw.view_mut()).unwrap();
                [y.bytes(cpu), dx.bytes(cpu), dw.bytes(cpu)].concat()
            });
        }
    }
}

#[test]
fn a_convolution_has_the_bits_of_the_product_with_the_unfolded_input() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let win = window(&[3, 3], &[2, 1], &[1, 2], &[1, 2], &[1, 2]);
    // The sum has more than one block.
    let (c, k, h) = (50, 40, 12);
    let x = Tensor::new(&cpu, DType::F32, &[1, c, h, h], Lie::Contiguous, noise(1));
    let w = Tensor::new(&cpu, DType::F32, &[k, c, 3, 3], Lie::Contiguous, noise(2));
    let out = win.output("test", &[h, h]).unwrap();
    let mut y = Tensor::canary(&cpu, DType::F32, &[1, k, out[0], out[1]], Lie::Contiguous);
    cpu.conv(&win, 1, x.view(), w.view(), None, &mut y.view_mut()).unwrap();
    let mut cols = Tensor::canary(&cpu, DType::F32, &[1, c, 3, 3, out[0], out[1]], Lie::Contiguous);
    cpu.unfold(&win, x.view(), Scalar::Float(0.0), &mut cols.view_mut()).unwrap();
    let flat = |dims: [usize; 2]| Layout::contiguous(Shape::new(&dims).unwrap());
    let (wide, long, square) = (flat([k, c * 9]), flat([c * 9, out[0] * out[1]]), flat([k, out[0] * out[1]]));
    let mut z = Tensor::canary(&cpu, DType::F32, &[k, out[0] * out[1]], Lie::Contiguous);
    let (one, zero) = (Scalar::Float(1.0), Scalar::Float(0.0));
    let (a, b) = (w.view().with(&wide), cols.view().with(&long));
    cpu.gemm(one, a, b, zero, &mut z.view_mut().with(&square)).unwrap();
    assert_eq!(y.bytes(&cpu), z.bytes(&cpu));
}

/// A copy of a weight with adjacent output channels, and `more` elements after those of each step and of the last one.
fn adjacent(cpu: &CpuBackend, w: &Tensor, more: usize) -> Tensor {
    let dims = w.layout.dims();
    let apart = dims[0] + more;
    let mut strides = vec![1; dims.len()];
    strides[dims.len() - 1] = apart as isize;
    for i in (1..dims.len() - 1).rev() {
        strides[i] = strides[i + 1] * dims[i + 1] as isize;
    }
    let elements = apart * dims[1..].iter().product::<usize>();
    let layout = Layout::from_parts(Shape::new(dims).unwrap(), &strides, 0, elements).unwrap();
    let room = Tensor::canary(cpu, w.dtype, &[elements], Lie::Contiguous);
    let mut copy = Tensor { layout, ..room };
    cpu.copy_strided(w.view(), &mut copy.view_mut()).unwrap();
    copy
}

/// Whether the weight of a convolution is read in place for its adjacent output channels.
fn is_read_in_place(cpu: &CpuBackend, s: &Sizes, w: &Tensor) -> bool {
    fn of<S: Float<Compute: Real>>(cpu: &CpuBackend, s: &Sizes, w: &Tensor) -> gradus_backend::Result<bool> {
        Ok(Weights::adjacent(cpu.isa(), s, cpu.slice::<S>("test", w.view())?, &w.layout).is_some())
    }
    with_float!("test", w.dtype, S => of::<S>(cpu, s, w)).unwrap()
}

#[test]
fn adjacent_output_channels_change_no_bit() {
    for cpu in crate::testing::backends() {
        for (case, dtype) in
            cases().into_iter().flat_map(|c| [DType::F32, DType::F64, DType::F16].map(|d| (c.clone(), d)))
        {
            let x = Tensor::new(&cpu, dtype, &case.x_dims(), Lie::Contiguous, noise(1));
            let w = Tensor::new(&cpu, dtype, &case.w_dims(), Lie::Contiguous, noise(2));
            let bias = Tensor::new(&cpu, dtype, &[case.k], Lie::Contiguous, noise(3));
            let run = |w: &Tensor| {
                let mut y = Tensor::canary(&cpu, dtype, &case.out_dims(), Lie::Contiguous);
                cpu.conv(&case.window, case.groups, x.view(), w.view(), Some(bias.view()), &mut y.view_mut()).unwrap();
                y.bytes(&cpu)
            };
            let want = run(&w);
            let y = Tensor::canary(&cpu, dtype, &case.out_dims(), Lie::Contiguous);
            let s = Sizes::new("test", &case.window, case.groups, x.view(), w.view(), y.view()).unwrap();
            let may = dtype != DType::F16 && s.kg >= CHANNELS && s.taps() > 0;
            // Without more elements, whole vectors may not fit.
            for more in [0, 1, 48] {
                let w = adjacent(&cpu, &w, more);
                let is = is_read_in_place(&cpu, &s, &w);
                assert!(if more == 48 { is == may } else { may || !is }, "{dtype} {case:?} {more}");
                assert!(run(&w) == want, "{dtype} {case:?} {more}");
            }
        }
    }
}

/// Windows of depthwise convolutions, with the sizes of their images: rows that are wide, narrow and of one position,
/// strides above and below the kernel, and padding on all sides or cropping. Then rows of one vector and of more, of which
/// there are few. Last come rows of whole vectors, rows with 18 positions after whole strips, and many rows of one position.
fn depthwise() -> Vec<(Window, [usize; 2])> {
    let small = (1..8).flat_map(|h| [5, 19].map(|w| (window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [h, w])));
    let mut all = vec![
        (window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), [7, 75]),
        (window(&[5, 5], &[2, 2], &[1, 1], &[2, 2], &[2, 2]), [12, 41]),
        (window(&[3, 2], &[2, 3], &[2, 1], &[1, 0], &[0, 4]), [9, 30]),
        (window(&[2, 3], &[1, 5], &[1, 3], &[0, 8], &[1, 1]), [4, 13]),
        (window(&[1, 7], &[3, 1], &[1, 1], &[0, 3], &[0, 3]), [5, 9]),
        (window(&[4, 4], &[9, 9], &[1, 1], &[0, 0], &[0, 0]), [4, 6]),
    ];
    all.extend(small);
    let sizes = [[7, 16], [7, 32], [8, 50], [7, 64], [40, 1]];
    all.extend(sizes.map(|size| (window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]), size)));
    all
}

#[test]
fn a_depthwise_convolution_has_the_bits_of_the_products_with_the_unfolded_channels() {
    let (c, each) = (3, 2);
    for (win, [h, width]) in depthwise() {
        let of = |cpu: &CpuBackend| {
            let x = Tensor::new(cpu, DType::F32, &[2, c, h, width], Lie::Contiguous, noise(1));
            let w =
                Tensor::new(cpu, DType::F32, &[c * each, 1, win.kernel[0], win.kernel[1]], Lie::Contiguous, noise(2));
            let bias = Tensor::new(cpu, DType::F32, &[c * each], Lie::Contiguous, noise(3));
            let out = win.output("test", &[h, width]).unwrap();
            (x, w, bias, [out[0], out[1]])
        };
        let run = |cpu: &CpuBackend| {
            let (x, w, bias, [oh, ow]) = of(cpu);
            let mut y = Tensor::canary(cpu, DType::F32, &[2, c * each, oh, ow], Lie::Contiguous);
            cpu.conv(&win, c, x.view(), w.view(), Some(bias.view()), &mut y.view_mut()).unwrap();
            y.bytes(cpu)
        };
        assert_same_bits(run);
        let cpu = &CpuBackend::with_threads(2).unwrap();
        let (x, w, bias, [oh, ow]) = of(cpu);
        let (taps, places) = (win.kernel[0] * win.kernel[1], oh * ow);
        let mut cols = Tensor::canary(cpu, DType::F32, &[2, c, win.kernel[0], win.kernel[1], oh, ow], Lie::Contiguous);
        cpu.unfold(&win, x.view(), Scalar::Float(0.0), &mut cols.view_mut()).unwrap();
        let at = |dims: [usize; 2], offset: usize, len: usize| {
            Layout::from_parts(Shape::new(&dims).unwrap(), &[dims[1] as isize, 1], offset, len).unwrap()
        };
        let mut want = Vec::new();
        for image in 0..2 * c {
            let k = image % c * each;
            let mut z =
                Tensor::new(cpu, DType::F32, &[each, places], Lie::Contiguous, |i| bias.values(cpu)[k + i / places]);
            let (all_w, all_x) = (c * each * taps, 2 * c * taps * places);
            let (a, b) = (at([each, taps], k * taps, all_w), at([taps, places], image * taps * places, all_x));
            let (one, square) = (Scalar::Float(1.0), at([each, places], 0, each * places));
            cpu.gemm(one, w.view().with(&a), cols.view().with(&b), one, &mut z.view_mut().with(&square)).unwrap();
            want.extend(z.bytes(cpu));
        }
        assert!(run(cpu) == want, "{win:?}");
    }
}

#[test]
fn an_image_has_the_same_bits_alone_and_in_a_batch() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let win = window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    let x = Tensor::new(&cpu, DType::F32, &[5, 40, 9, 9], Lie::Contiguous, noise(1));
    let w = Tensor::new(&cpu, DType::F32, &[8, 40, 3, 3], Lie::Contiguous, noise(2));
    let run = |n: usize| {
        let mut y = Tensor::canary(&cpu, DType::F32, &[n, 8, 9, 9], Lie::Contiguous);
        let layout = x.layout.narrow(0, 0, n).unwrap();
        cpu.conv(&win, 1, x.view().with(&layout), w.view(), None, &mut y.view_mut()).unwrap();
        y.bytes(&cpu)
    };
    assert!(run(5).starts_with(&run(1)));
}

#[test]
fn unfold_and_fold_move_every_element_in_every_dtype() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for (t, case) in cases().into_iter().enumerate() {
        for dtype in DType::ALL {
            let one = Case { c: 2, k: 1, groups: 1, ..case.clone() };
            let dims = [&one.x_dims()[..2], &one.w_dims()[2..], &one.out_dims()[2..]].concat();
            let x = Tensor::new(&cpu, dtype, &one.x_dims(), Lie::ALL[t % 4], |i| (i % 2) as f64);
            let mut cols = Tensor::canary(&cpu, dtype, &dims, Lie::ALL[(t + 1) % 4]);
            cpu.unfold(&one.window, x.view(), Scalar::Int(1), &mut cols.view_mut()).unwrap();
            cols.assert_gaps_untouched(&cpu);
            let (xv, taps) = (x.values(&cpu), one.window.numel());
            let positions: usize = one.out_dims()[2..].iter().product();
            let mut want = vec![1.0; cols.layout.numel()];
            let mut sums = vec![0.0; xv.len()];
            let plane: usize = one.spatial.iter().product();
            one.each(|x, w, y| {
                let col = (x / plane * taps + w % taps) * positions + y % positions;
                want[col] = xv[x];
                sums[x] += xv[x];
            });
            assert_eq!(cols.values(&cpu), want, "{dtype} {one:?}");
            let mut back = Tensor::canary(&cpu, dtype, &one.x_dims(), Lie::ALL[(t + 2) % 4]);
            let folded = cpu.fold(&one.window, cols.view(), &mut back.view_mut());
            if dtype == DType::Bool {
                assert_eq!(folded.unwrap_err().kind(), &ErrorKind::UnsupportedDType);
            } else {
                folded.unwrap();
                assert_eq!(back.values(&cpu), sums, "{dtype} {one:?}");
            }
        }
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let t = |dtype, dims: &[usize]| Tensor::new(&cpu, dtype, dims, Lie::Contiguous, |_| 1.0);
    let win = window(&[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    let run = |win: &Window, groups, x: Tensor, w: Tensor, mut y: Tensor| {
        cpu.conv(win, groups, x.view(), w.view(), None, &mut y.view_mut()).unwrap_err().kind().clone()
    };
    let f = DType::F32;
    let (x, w, y) = ([1, 4, 5, 5], [6, 4, 3, 3], [1, 6, 5, 5]);
    assert_eq!(run(&win, 1, t(DType::Bool, &x), t(DType::Bool, &w), t(DType::Bool, &y)), ErrorKind::UnsupportedDType);
    assert_eq!(run(&win, 1, t(f, &x), t(DType::F64, &w), t(f, &y)), ErrorKind::DTypeMismatch);
    assert_eq!(run(&win, 3, t(f, &x), t(f, &w), t(f, &y)), ErrorKind::InvalidArgument);
    assert_eq!(run(&win, 0, t(f, &x), t(f, &w), t(f, &y)), ErrorKind::InvalidArgument);
    assert_eq!(run(&win, 2, t(f, &x), t(f, &w), t(f, &y)), ErrorKind::ShapeMismatch);
    assert_eq!(run(&win, 1, t(f, &x), t(f, &w), t(f, &[1, 6, 5, 4])), ErrorKind::ShapeMismatch);
    assert_eq!(run(&win, 1, t(f, &[4, 5, 5]), t(f, &w), t(f, &y)), ErrorKind::ShapeMismatch);
    let none = Window { stride: [0; 3], ..win };
    assert_eq!(run(&none, 1, t(f, &x), t(f, &w), t(f, &y)), ErrorKind::InvalidArgument);
    let four = Window { rank: 4, ..win };
    assert_eq!(run(&four, 1, t(f, &x), t(f, &w), t(f, &y)), ErrorKind::InvalidArgument);
}
