//! The default bodies of convolution and pooling, compared with nested loops; their gradients are compared with finite
//! differences.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod common;

use common::{Tensor, dot, is_gradient, near, numbers};
use gradus_backend::{Backend, Window};
use gradus_conformance::OracleBackend;

/// A window over three axes, and the sizes that it slides over. Only the last `rank` axes are used; the others have
/// size 1.
#[derive(Clone, Copy)]
struct Setting {
    rank: usize,
    n: usize,
    c: usize,
    k: usize,
    groups: usize,
    spatial: [usize; 3],
    /// Per axis: kernel, stride, dilation, padding before and after.
    axes: [[usize; 5]; 3],
}

const IDLE: [usize; 5] = [1, 1, 1, 0, 0];

const SETTINGS: [Setting; 6] = [
    Setting { rank: 1, n: 2, c: 2, k: 3, groups: 1, spatial: [1, 1, 7], axes: [IDLE, IDLE, [3, 2, 2, 1, 2]] },
    Setting {
        rank: 2,
        n: 2,
        c: 3,
        k: 2,
        groups: 1,
        spatial: [1, 4, 5],
        axes: [IDLE, [3, 1, 1, 1, 1], [2, 1, 1, 0, 1]],
    },
    Setting {
        rank: 2,
        n: 1,
        c: 4,
        k: 6,
        groups: 2,
        spatial: [1, 5, 6],
        axes: [IDLE, [2, 2, 1, 0, 1], [3, 1, 2, 2, 0]],
    },
    Setting {
        rank: 2,
        n: 2,
        c: 3,
        k: 3,
        groups: 3,
        spatial: [1, 3, 3],
        axes: [IDLE, [3, 1, 1, 1, 1], [3, 3, 1, 0, 0]],
    },
    Setting {
        rank: 2,
        n: 1,
        c: 1,
        k: 1,
        groups: 1,
        spatial: [1, 1, 1],
        axes: [IDLE, [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]],
    },
    Setting {
        rank: 3,
        n: 1,
        c: 2,
        k: 2,
        groups: 1,
        spatial: [3, 4, 3],
        axes: [[2, 1, 1, 1, 0], [3, 2, 1, 1, 1], [2, 1, 2, 0, 0]],
    },
];

impl Setting {
    fn window(&self) -> Window {
        let used = &self.axes[3 - self.rank..];
        let of = |part: usize| {
            let mut all = [if part < 3 { 1 } else { 0 }; 3];
            all.iter_mut().zip(used).for_each(|(to, axis)| *to = axis[part]);
            all
        };
        Window { rank: self.rank, kernel: of(0), stride: of(1), dilation: of(2), pad_before: of(3), pad_after: of(4) }
    }

    fn kernel(&self) -> [usize; 3] {
        self.axes.map(|a| a[0])
    }

    fn positions(&self) -> [usize; 3] {
        std::array::from_fn(|i| {
            let [k, s, d, before, after] = self.axes[i];
            (self.spatial[i] + before + after - d * (k - 1) - 1) / s + 1
        })
    }

    /// The element of axis `i` under tap `t` of the window at `p`, if it is not padding.
    fn at(&self, i: usize, p: usize, t: usize) -> Option<usize> {
        let [_, s, d, before, _] = self.axes[i];
        let at = (p * s + t * d) as isize - before as isize;
        (0..self.spatial[i] as isize).contains(&at).then_some(at as usize)
    }

    fn shape(&self, lead: [usize; 2], sizes: [usize; 3]) -> Vec<usize> {
        [&lead, &sizes[3 - self.rank..]].concat()
    }

    fn x_shape(&self) -> Vec<usize> {
        self.shape([self.n, self.c], self.spatial)
    }

    fn w_shape(&self) -> Vec<usize> {
        self.shape([self.k, self.c / self.groups], self.kernel())
    }

    fn y_shape(&self) -> Vec<usize> {
        self.shape([self.n, self.k], self.positions())
    }

    fn pooled_shape(&self) -> Vec<usize> {
        self.shape([self.n, self.c], self.positions())
    }
}

fn product(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// All indices into a shape of three axes.
fn triples([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |l| [i, j, l])))
}

fn flat(index: [usize; 3], sizes: [usize; 3]) -> usize {
    (index[0] * sizes[1] + index[1]) * sizes[2] + index[2]
}

/// Convolution computed from its definition.
fn convolved(s: &Setting, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    let (kernel, positions) = (s.kernel(), s.positions());
    let (per_group, outs) = (s.c / s.groups, s.k / s.groups);
    let mut y = Vec::new();
    for n in 0..s.n {
        for k in 0..s.k {
            for p in triples(positions) {
                let mut sum = bias[k];
                for c in 0..per_group {
                    for t in triples(kernel) {
                        let (Some(i), Some(j), Some(l)) =
                            (s.at(0, p[0], t[0]), s.at(1, p[1], t[1]), s.at(2, p[2], t[2]))
                        else {
                            continue;
                        };
                        let channel = k / outs * per_group + c;
                        let x = x[(n * s.c + channel) * product(&s.spatial) + flat([i, j, l], s.spatial)];
                        sum += x * w[(k * per_group + c) * product(&kernel) + flat(t, kernel)];
                    }
                }
                y.push(sum);
            }
        }
    }
    y
}

fn conv(b: &OracleBackend, s: &Setting, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    let (x, w) = (Tensor::new(b, &s.x_shape(), x), Tensor::new(b, &s.w_shape(), w));
    let bias = Tensor::new(b, &[s.k], bias);
    let mut y = Tensor::zeros(b, &s.y_shape());
    b.conv(&s.window(), s.groups, x.view(), w.view(), Some(bias.view()), &mut y.out()).unwrap();
    y.values(b)
}

#[test]
fn convolution_is_its_nested_loops() {
    let b = OracleBackend::new();
    for s in SETTINGS {
        let (x, w, bias) = (numbers(product(&s.x_shape()), 1), numbers(product(&s.w_shape()), 2), numbers(s.k, 3));
        near("conv", &conv(&b, &s, &x, &w, &bias), &convolved(&s, &x, &w, &bias), 1e-14);
    }
}

#[test]
fn convolution_has_the_gradients_of_its_differences() {
    let b = OracleBackend::new();
    for s in SETTINGS {
        let (x, w) = (numbers(product(&s.x_shape()), 1), numbers(product(&s.w_shape()), 2));
        let (bias, g) = (vec![0.0; s.k], numbers(product(&s.y_shape()), 4));
        let (tx, tw) = (Tensor::new(&b, &s.x_shape(), &x), Tensor::new(&b, &s.w_shape(), &w));
        let tg = Tensor::new(&b, &s.y_shape(), &g);
        let (mut dx, mut dw) = (Tensor::zeros(&b, &s.x_shape()), Tensor::zeros(&b, &s.w_shape()));
        b.conv_backward_input(&s.window(), s.groups, tg.view(), tw.view(), &mut dx.out()).unwrap();
        b.conv_backward_weight(&s.window(), s.groups, tx.view(), tg.view(), &mut dw.out()).unwrap();
        is_gradient("dx", &x, &dx.values(&b), |x| dot(&conv(&b, &s, x, &w, &bias), &g));
        is_gradient("dw", &w, &dw.values(&b), |w| dot(&conv(&b, &s, &x, w, &bias), &g));
    }
}

/// The elements of plane `plane` under the window at `p`, as (value, offset).
fn covered<'a>(s: &'a Setting, x: &'a [f64], plane: usize, p: [usize; 3]) -> impl Iterator<Item = (f64, usize)> + 'a {
    triples(s.kernel()).filter_map(move |t| {
        let place = flat([s.at(0, p[0], t[0])?, s.at(1, p[1], t[1])?, s.at(2, p[2], t[2])?], s.spatial);
        Some((x[plane * product(&s.spatial) + place], place))
    })
}

#[test]
fn max_pool_finds_the_first_of_the_largest_and_never_the_padding() {
    let b = OracleBackend::new();
    for s in SETTINGS {
        if s.window().check_pool("max_pool", &s.spatial[3 - s.rank..]).is_err() {
            continue;
        }
        let n = product(&s.x_shape());
        let ties: Vec<f64> = numbers(n, 5).iter().map(|v| (v * 2.0).round()).collect();
        let mut odd = ties.clone();
        odd.iter_mut().step_by(4).for_each(|v| *v = f64::NEG_INFINITY);
        odd[n / 2] = f64::NAN;
        for x in [ties, odd, vec![f64::NEG_INFINITY; n], vec![-1e300; n]] {
            let tx = Tensor::new(&b, &s.x_shape(), &x);
            let mut y = Tensor::zeros(&b, &s.pooled_shape());
            let mut at = Tensor::new(&b, &s.pooled_shape(), &vec![-1i64; product(&s.pooled_shape())]);
            b.max_pool(&s.window(), tx.view(), &mut y.out(), &mut at.out()).unwrap();
            let (y, at) = (y.values::<f64>(&b), at.values::<i64>(&b));
            let mut i = 0;
            for plane in 0..s.n * s.c {
                for p in triples(s.positions()) {
                    let mut best: Option<(f64, usize)> = None;
                    for (v, place) in covered(&s, &x, plane, p) {
                        let wins = best.is_none_or(|(b, _)| !b.is_nan() && (v.is_nan() || v > b));
                        best = if wins { Some((v, place)) } else { best };
                    }
                    let (v, place) = best.unwrap();
                    assert!(y[i] == v || (y[i].is_nan() && v.is_nan()), "{} {v}", y[i]);
                    assert_eq!(at[i], place as i64);
                    i += 1;
                }
            }
        }
    }
}

fn avg_pool(b: &OracleBackend, s: &Setting, padded: bool, x: &[f64]) -> Vec<f64> {
    let mut y = Tensor::zeros(b, &s.pooled_shape());
    b.avg_pool(&s.window(), padded, Tensor::new(b, &s.x_shape(), x).view(), &mut y.out()).unwrap();
    y.values(b)
}

#[test]
fn avg_pool_is_the_mean_of_what_counts_and_has_the_gradient_of_its_differences() {
    let b = OracleBackend::new();
    for s in SETTINGS {
        for padded in [false, true] {
            let x = numbers(product(&s.x_shape()), 6);
            let mut want = Vec::new();
            for plane in 0..s.n * s.c {
                for p in triples(s.positions()) {
                    let all: Vec<f64> = covered(&s, &x, plane, p).map(|(v, _)| v).collect();
                    let count = if padded { product(&s.kernel()) } else { all.len() };
                    want.push(all.iter().sum::<f64>() / count as f64);
                }
            }
            near("avg_pool", &avg_pool(&b, &s, padded, &x), &want, 1e-14);

            let g = numbers(want.len(), 7);
            let mut dx = Tensor::zeros(&b, &s.x_shape());
            let tg = Tensor::new(&b, &s.pooled_shape(), &g);
            b.avg_pool_backward(&s.window(), padded, tg.view(), &mut dx.out()).unwrap();
            is_gradient("dx", &x, &dx.values(&b), |x| dot(&avg_pool(&b, &s, padded, x), &g));
        }
    }
}
