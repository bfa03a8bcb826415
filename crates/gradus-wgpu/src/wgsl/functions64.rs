//! The f64 functions of the library, accurate to within two units in the last place (three for `erfc`). The algorithms
//! and coefficients are those of FreeBSD's msun (Sun Microsystems, freely usable if its notice is kept), taken from the
//! crate `libm`.
//!
//! Copyright (C) 1993, 2004 by Sun Microsystems, Inc. All rights reserved. Permission to use, copy, modify, and
//! distribute this software is freely granted, provided that this notice is preserved.

library! {
high_f64: "fn high_f64(x: f64) -> f64 { return bitcast<f64>(bitcast<u64>(x) & 0xffffffff00000000lu); }
"
power_of_two: "fn power_of_two(k: i32) -> f64 { return bitcast<f64>(u64(k + 1023) << 52u); }
"
scaled_f64: "fn scaled_f64(y: f64, k: i32) -> f64 { let h = k >> 1u; return y * power_of_two(h) * power_of_two(k - h); }
"
exp_reduced: "fn exp_reduced(hi: f64, lo: f64, k: i32) -> f64 {
  let x = opaque_f64(hi - lo); let t = opaque_f64(x * x);
  let p = 6.61375632143793436117e-05lf + opaque_f64(t * (-1.65339022054652515390e-06lf + opaque_f64(t * 4.13813679705723846039e-08lf)));
  let c = x - opaque_f64(t * (1.66666666666666019037e-01lf + opaque_f64(t * (-2.77777777770155933842e-03lf + opaque_f64(t * p)))));
  return scaled_f64(1.0lf + opaque_f64(opaque_f64(opaque_f64(x * c) / (2.0lf - c) - lo) + hi), k);
}
"
exp_f64: "fn exp_f64(x0: f64) -> f64 {
  let v = opaque_f64(x0);
  if (is_nan_f64(v)) { return v; }
  if (v > 709.782712893383973096lf) { return f64_of(0x7ff0000000000000lu); }
  if (v < -745.2lf) { return 0.0lf; }
  let n = rounded_f64(v * 1.44269504088896338700lf);
  return exp_reduced(opaque_f64(v - n * 6.93147180369123816490e-01lf), opaque_f64(n * 1.90821492927058770002e-10lf), i32(n));
}
"
exp2_f64: "fn exp2_f64(x0: f64) -> f64 {
  let v = opaque_f64(x0);
  if (is_nan_f64(v)) { return v; }
  if (v >= 1024.0lf) { return f64_of(0x7ff0000000000000lu); }
  if (v < -1076.0lf) { return 0.0lf; }
  let n = rounded_f64(v); let r = v - n; let h = high_f64(r);
  let hi = r * 6.93147180559945286227e-01lf;
  let lo = opaque_f64(hi - h * 6.93147182464599609375e-01lf) - (h * -1.90465429995776804525e-09lf + (r - h) * 6.93147180559945286227e-01lf);
  return exp_reduced(hi, lo, i32(n));
}
"
expm1_f64: "fn expm1_f64(x0: f64) -> f64 {
  let v = opaque_f64(x0);
  if (is_nan_f64(v) || abs(v) < 5.551115123125783e-17lf) { return v; }
  if (v < -38.9lf) { return -1.0lf; }
  if (v > 709.782712893383973096lf) { return f64_of(0x7ff0000000000000lu); }
  var k = 0; var x = v; var c = 0.0lf;
  if (abs(v) > 0.34657359027997264lf) {
    let n = rounded_f64(v * 1.44269504088896338700lf); k = i32(n);
    let hi = opaque_f64(v - n * 6.93147180369123816490e-01lf); let lo = n * 1.90821492927058770002e-10lf;
    x = opaque_f64(hi - lo); c = (hi - x) - lo;
  }
  let hfx = 0.5lf * x; let hxs = x * hfx;
  let r1 = 1.0lf + hxs * (-3.33333333333331316428e-02lf + hxs * (1.58730158725481460165e-03lf + hxs * (-7.93650757867487942473e-05lf + hxs * (4.00821782732936239552e-06lf + hxs * -2.01099218183624371326e-07lf))));
  let t = 3.0lf - r1 * hfx;
  var e = hxs * ((r1 - t) / (6.0lf - x * t));
  if (k == 0) { return x - (x * e - hxs); }
  e = x * (e - c) - c; e = e - hxs;
  if (k == -1) { return 0.5lf * (x - e) - 0.5lf; }
  if (k == 1) { if (x < -0.25lf) { return -2.0lf * (e - (x + 0.5lf)); } return 1.0lf + 2.0lf * (x - e); }
  if (k < 0 || k > 56) { return scaled_f64(x - e + 1.0lf, k) - 1.0lf; }
  let uf = power_of_two(-k);
  if (k < 20) { return (x - e + (1.0lf - uf)) * power_of_two(k); }
  return (x - (e + uf) + 1.0lf) * power_of_two(k);
}
"
log_split_f64: "struct LogSplit { k: f64, f: f64 }
fn log_split_f64(v: f64) -> LogSplit {
  let tiny = v < 2.2250738585072014e-308lf;
  let bits = bitcast<u64>(select(v, v * 18014398509481984.0lf, tiny));
  let hx = u32(bits >> 32u) + 0x3ff00000u - 0x3fe6a09eu;
  let k = i32(hx >> 20u) - 0x3ff - select(0, 54, tiny);
  let m = bitcast<f64>((u64((hx & 0xfffffu) + 0x3fe6a09eu) << 32u) | (bits & 0xfffffffflu));
  return LogSplit(f64(k), m - 1.0lf);
}
"
log_rest_f64: "fn log_rest_f64(f: f64) -> f64 {
  let s = f / (2.0lf + f); let z = s * s; let w = z * z; let hfsq = 0.5lf * f * f;
  let t1 = w * (3.999999999940941908e-01lf + w * (2.222219843214978396e-01lf + w * 1.531383769920937332e-01lf));
  let t2 = z * (6.666666666666735130e-01lf + w * (2.857142874366239149e-01lf + w * (1.818357216161805012e-01lf + w * 1.479819860511658591e-01lf)));
  return s * (hfsq + (t2 + t1));
}
"
special_log_f64: "fn special_log_f64(x: f64, y: f64) -> f64 {
  if (is_nan_f64(x) || x < 0.0lf) { return f64_of(0x7ff8000000000000lu); }
  if (x == 0.0lf) { return f64_of(0xfff0000000000000lu); }
  return select(x, y, is_finite_f64(x));
}
"
log_f64: "fn log_f64(x: f64) -> f64 {
  let p = log_split_f64(x); let hfsq = 0.5lf * p.f * p.f;
  let low = opaque_f64(log_rest_f64(p.f) + p.k * 1.90821492927058770002e-10lf - hfsq + p.f);
  return special_log_f64(x, low + p.k * 6.93147180369123816490e-01lf);
}
"
log1p_f64: "fn log1p_f64(x: f64) -> f64 {
  if (is_nan_f64(x) || abs(x) < 1.1102230246251565e-16lf) { return x; }
  if (x > -0.29289lf && x < 0.41421lf) {
    let hfsq = 0.5lf * x * x;
    return x - (hfsq - log_rest_f64(x));
  }
  let u = opaque_f64(1.0lf + x); let p = log_split_f64(u); let hfsq = 0.5lf * p.f * p.f;
  var c = 0.0lf;
  if (p.k < 54.0lf) { c = select(x - (u - 1.0lf), 1.0lf - (u - x), p.k >= 2.0lf) / u; }
  let low = opaque_f64(log_rest_f64(p.f) + (p.k * 1.90821492927058770002e-10lf + c) - hfsq + p.f);
  return special_log_f64(u, low + p.k * 6.93147180369123816490e-01lf);
}
"
log2_f64: "fn log2_f64(x: f64) -> f64 {
  let p = log_split_f64(x); let hfsq = 0.5lf * p.f * p.f;
  let hi = high_f64(p.f - hfsq); let lo = (p.f - hi) - hfsq + log_rest_f64(p.f);
  let vh = hi * 1.44269504072144627571e+00lf; var vl = (lo + hi) * 1.67517131648865118353e-10lf + lo * 1.44269504072144627571e+00lf;
  let w = opaque_f64(p.k + vh); vl = vl + ((p.k - w) + vh);
  return special_log_f64(x, vl + w);
}
"
log10_f64: "fn log10_f64(x: f64) -> f64 {
  let p = log_split_f64(x); let hfsq = 0.5lf * p.f * p.f;
  let hi = high_f64(p.f - hfsq); let lo = (p.f - hi) - hfsq + log_rest_f64(p.f);
  let vh = hi * 4.34294481878168880939e-01lf; let y = p.k * 3.01029995663611771306e-01lf;
  var vl = p.k * 3.69423907715893078616e-13lf + (lo + hi) * 2.50829467116452752298e-11lf + lo * 4.34294481878168880939e-01lf;
  let w = opaque_f64(y + vh); vl = vl + ((y - w) + vh);
  return special_log_f64(x, vl + w);
}
"
rsqrt_f64: "fn rsqrt_f64(x: f64) -> f64 { return divided_f64(1.0lf, sqrt(x)); }
"
sigmoid_f64: "fn sigmoid_f64(x: f64) -> f64 { let e = exp_f64(-abs(x)); return select(e, 1.0lf, x >= 0.0lf) / (1.0lf + e); }
"
sigmoid_neg_f64: "fn sigmoid_neg_f64(x: f64) -> f64 { return sigmoid_f64(-x); }
"
softplus_f64: "fn softplus_f64(x: f64) -> f64 {
  if (is_nan_f64(x)) { return x; }
  let tail = log1p_f64(exp_f64(-abs(x))); return select(tail, x + tail, x > 0.0lf);
}
"
expo2_f64: "fn expo2_f64(x: f64) -> f64 { return exp_f64(x - 1416.0996898839683lf) * 2.247116418577895e+307lf * 2.247116418577895e+307lf; }
"
sinh_f64: "fn sinh_f64(x: f64) -> f64 {
  if (!is_finite_f64(x)) { return x; }
  let a = abs(x); let h = select(0.5lf, -0.5lf, x < 0.0lf);
  if (a >= 709.782712893383973096lf) { return 2.0lf * h * expo2_f64(a); }
  if (a < 1.0e-8lf) { return x; }
  let t = expm1_f64(a);
  if (a < 1.0lf) { return h * (2.0lf * t - t * t / (t + 1.0lf)); }
  return h * (t + t / (t + 1.0lf));
}
"
cosh_f64: "fn cosh_f64(x: f64) -> f64 {
  if (is_nan_f64(x)) { return x; }
  let a = abs(x);
  if (a < 0.6931471805599453lf) { let t = expm1_f64(a); return 1.0lf + t * t / (2.0lf * (1.0lf + t)); }
  if (a < 709.782712893383973096lf) { let t = exp_f64(a); return 0.5lf * (t + 1.0lf / t); }
  if (a > 711.0lf) { return f64_of(0x7ff0000000000000lu); }
  return expo2_f64(a);
}
"
tanh_f64: "fn tanh_f64(x: f64) -> f64 {
  if (is_nan_f64(x) || abs(x) < 1.0e-300lf) { return x; }
  let a = abs(x); var y: f64;
  if (a > 20.0lf) { y = 1.0lf; }
  else if (a > 0.5493061443340549lf) { y = 1.0lf - 2.0lf / (expm1_f64(2.0lf * a) + 2.0lf); }
  else if (a > 0.2554128118829954lf) { let t = expm1_f64(2.0lf * a); y = t / (t + 2.0lf); }
  else { let t = expm1_f64(-2.0lf * a); y = -t / (t + 2.0lf); }
  return select(y, -y, x < 0.0lf);
}
"
asinh_f64: "fn asinh_f64(x: f64) -> f64 {
  if (!is_finite_f64(x)) { return x; }
  let a = abs(x); var y: f64;
  if (a < 1.4901161193847656e-08lf) { return x; }
  if (a >= 67108864.0lf) { y = log_f64(a) + 0.6931471805599453lf; }
  else if (a >= 2.0lf) { y = log_f64(2.0lf * a + 1.0lf / (sqrt(a * a + 1.0lf) + a)); }
  else { y = log1p_f64(a + a * a / (sqrt(a * a + 1.0lf) + 1.0lf)); }
  return select(y, -y, x < 0.0lf);
}
"
acosh_f64: "fn acosh_f64(x: f64) -> f64 {
  if (is_nan_f64(x) || x < 1.0lf) { return f64_of(0x7ff8000000000000lu); }
  if (!is_finite_f64(x)) { return x; }
  if (x < 2.0lf) { let t = x - 1.0lf; return log1p_f64(t + sqrt(t * t + 2.0lf * t)); }
  if (x < 67108864.0lf) { return log_f64(2.0lf * x - 1.0lf / (x + sqrt(x * x - 1.0lf))); }
  return log_f64(x) + 0.6931471805599453lf;
}
"
atanh_f64: "fn atanh_f64(x: f64) -> f64 {
  let a = abs(x);
  if (is_nan_f64(x) || a > 1.0lf) { return f64_of(0x7ff8000000000000lu); }
  if (a < 2.3283064365386963e-10lf) { return x; }
  var y: f64;
  if (a == 1.0lf) { y = f64_of(0x7ff0000000000000lu); }
  else if (a < 0.5lf) { y = 0.5lf * log1p_f64(2.0lf * a + 2.0lf * a * a / (1.0lf - a)); }
  else { y = 0.5lf * log1p_f64(2.0lf * (a / (1.0lf - a))); }
  return select(y, -y, x < 0.0lf);
}
"
TWO_OVER_PI: "var<private> two_over_pi: array<u32, 48> = array<u32, 48>(42722829u, 48555073u, 21659401u, 56087029u, 13858563u, 28715353u, 38736100u, 4324945u, 26128250u, 62674459u, 29957006u, 37899730u, 58726692u, 49193117u, 6588223u, 35515164u, 46442140u, 65964067u, 24988590u, 54822121u, 41009306u, 54917092u, 5137525u, 37323603u, 15192690u, 4585659u, 58608142u, 52426903u, 67074070u, 25231090u, 63202006u, 34237727u, 28629499u, 15891632u, 40752081u, 37709470u, 25143477u, 55737260u, 33225084u, 24853767u, 15195689u, 19476134u, 50255852u, 18845021u, 2185228u, 50622407u, 47901436u, 13614112u);
fn TWO_OVER_PI(i: i32) -> f64 { return f64(two_over_pi[i]); }
"
reduced_f64: "struct Reduced { r: f64, lo: f64, n: i32 }
fn reduced_f64(x: f64) -> Reduced {
  if (abs(x) < 1647099.0lf) {
    let n = rounded_f64(x * 6.36619772367581382433e-01lf);
    let a = opaque_f64(x - n * 1.57079632673412561417e+00lf);
    let w1 = n * 6.07710050630396597660e-11lf; let b = opaque_f64(a - w1); let e1 = (a - b) - w1;
    let w2 = n * 2.02226624871116645580e-21lf; let c = opaque_f64(b - w2); let e2 = (b - c) - w2;
    let e = e1 + e2 - n * 8.47842766036889956997e-32lf;
    let r = opaque_f64(c + e);
    return Reduced(r, (c - r) + e, i32(n));
  }
  let bits = bitcast<u64>(x) & 0x7ffffffffffffffflu;
  let e = i32(bits >> 52u) - 1075;
  let m = (bits & 0xffffffffffffflu) | 0x10000000000000lu;
  let mh = f64(m >> 26u); let ml = f64(m & 0x3fffffflu);
  let i0 = max((e - 2) / 26, 0);
  var hi = 0.0lf; var lo = 0.0lf;
  for (var i = i0; i < i0 + 9; i = i + 1) {
    let c = TWO_OVER_PI(i); let s = e - 26 * (i + 1);
    for (var half = 0; half < 2; half = half + 1) {
      let p = select(ml * c, mh * c, half == 0) * power_of_two(select(s, s + 26, half == 0));
      let q = p - 4.0lf * rounded_f64(p * 0.25lf);
      let sum = opaque_f64(hi + q); let t = opaque_f64(sum - hi);
      lo = lo + ((hi - opaque_f64(sum - t)) + (q - t)); hi = sum;
    }
  }
  hi = hi - 4.0lf * rounded_f64(hi * 0.25lf);
  let n = rounded_f64(hi); let f = hi - n;
  let g = opaque_f64(f + lo); let gl = lo - (g - f);
  let gh = high_f64(g); let rest = (g - gh) + gl;
  let ph = gh * 1.57079632673412561417e+00lf;
  let pl = gh * 6.07710050650619224932e-11lf + rest * 1.57079632679489655800e+00lf;
  let r = opaque_f64(ph + pl); let rl = pl - (r - ph);
  let negative = x < 0.0lf;
  return Reduced(select(r, -r, negative), select(rl, -rl, negative), select(i32(n), -i32(n), negative));
}
"
k_sin: "fn k_sin(x: f64, y: f64) -> f64 {
  let z = x * x; let w = z * z; let v = z * x;
  let r = 8.33333333332248946124e-03lf + z * (-1.98412698298579493134e-04lf + z * 2.75573137070700676789e-06lf) + z * w * (-2.50507602534068634195e-08lf + z * 1.58969099521155010221e-10lf);
  return x - ((z * (0.5lf * y - v * r) - y) - v * -1.66666666666666324348e-01lf);
}
"
k_cos: "fn k_cos(x: f64, y: f64) -> f64 {
  let z = x * x; let w = z * z;
  let r = z * (4.16666666666666019037e-02lf + z * (-1.38888888888741095749e-03lf + z * 2.48015872894767294178e-05lf)) + w * w * (-2.75573143513906633035e-07lf + z * (2.08757232129817482790e-09lf + z * -1.13596475577881948265e-11lf));
  let hz = 0.5lf * z; let u = opaque_f64(1.0lf - hz);
  return u + (((1.0lf - u) - hz) + (z * r - x * y));
}
"
k_tan: "fn k_tan(x0: f64, y0: f64, odd: bool) -> f64 {
  let big = abs(x0) >= 0.67434lf; let negative = x0 < 0.0lf;
  var x = x0; var y = y0;
  if (big) {
    if (negative) { x = -x; y = -y; }
    x = opaque_f64(7.85398163397448278999e-01lf - x) + (3.06161699786838301793e-17lf - y); y = 0.0lf;
  }
  let z = x * x; let w2 = z * z;
  let ra = 1.33333333333201242699e-01lf + w2 * (2.18694882948595424599e-02lf + w2 * (3.59207910759131235356e-03lf + w2 * (5.88041240820264096874e-04lf + w2 * (7.81794442939557092300e-05lf + w2 * -1.85586374855275456654e-05lf))));
  let va = z * (5.39682539762260521377e-02lf + w2 * (8.86323982359930005737e-03lf + w2 * (1.45620945432529025516e-03lf + w2 * (2.46463134818469906812e-04lf + w2 * (7.14072491382608190305e-05lf + w2 * 2.59073051863633712884e-05lf)))));
  let s = z * x;
  let r = y + z * (s * (ra + va) + y) + s * 3.33333333333334091986e-01lf;
  let w = opaque_f64(x + r);
  if (big) {
    let t = select(1.0lf, -1.0lf, odd);
    let v = t - 2.0lf * (x + (r - w * w / (w + t)));
    return select(v, -v, negative);
  }
  if (!odd) { return w; }
  let w0 = high_f64(w); let v = r - (w0 - x);
  let a = -1.0lf / w; let a0 = high_f64(a);
  return a0 + a * (opaque_f64(1.0lf + a0 * w0) + a0 * v);
}
"
sin_f64: "fn sin_f64(x: f64) -> f64 {
  if (!is_finite_f64(x)) { return f64_of(0x7ff8000000000000lu); }
  if (abs(x) < 1.0e-8lf) { return x; }
  let p = reduced_f64(x);
  let y = select(k_cos(p.r, p.lo), k_sin(p.r, p.lo), (p.n & 1) == 0);
  return select(y, -y, (p.n & 2) != 0);
}
"
cos_f64: "fn cos_f64(x: f64) -> f64 {
  if (!is_finite_f64(x)) { return f64_of(0x7ff8000000000000lu); }
  let p = reduced_f64(x);
  let y = select(k_sin(p.r, p.lo), k_cos(p.r, p.lo), (p.n & 1) == 0);
  return select(y, -y, ((p.n + 1) & 2) != 0);
}
"
tan_f64: "fn tan_f64(x: f64) -> f64 {
  if (!is_finite_f64(x)) { return f64_of(0x7ff8000000000000lu); }
  if (abs(x) < 1.0e-8lf) { return x; }
  let p = reduced_f64(x);
  return k_tan(p.r, p.lo, (p.n & 1) == 1);
}
"
asin_rational: "fn asin_rational(z: f64) -> f64 {
  let p = z * (1.66666666666666657415e-01lf + z * (-3.25565818622400915405e-01lf + z * (2.01212532134862925881e-01lf + z * (-4.00555345006794114027e-02lf + z * (7.91534994289814532176e-04lf + z * 3.47933107596021167570e-05lf)))));
  let q = 1.0lf + z * (-2.40339491173441421878e+00lf + z * (2.02094576023350569471e+00lf + z * (-6.88283971605453293030e-01lf + z * 7.70381505559019352791e-02lf)));
  return p / q;
}
"
asin_f64: "fn asin_f64(x: f64) -> f64 {
  let a = abs(x);
  if (is_nan_f64(x) || a > 1.0lf) { return f64_of(0x7ff8000000000000lu); }
  if (a < 1.4901161193847656e-08lf) { return x; }
  if (a < 0.5lf) { return x + x * asin_rational(x * x); }
  let z = (1.0lf - a) * 0.5lf; let s = sqrt(z); let r = asin_rational(z); var y: f64;
  if (a == 1.0lf) { y = 1.57079632679489655800e+00lf; }
  else if (a >= 0.975lf) { y = 1.57079632679489655800e+00lf - (2.0lf * (s + s * r) - 6.12323399573676603587e-17lf); }
  else {
    let f = high_f64(s); let c = (z - f * f) / (s + f);
    y = opaque_f64(2.0lf * s * r - (6.12323399573676603587e-17lf - 2.0lf * c)) - opaque_f64(7.85398163397448278999e-01lf - 2.0lf * f);
    y = 7.85398163397448278999e-01lf - y;
  }
  return select(y, -y, x < 0.0lf);
}
"
acos_f64: "fn acos_f64(x: f64) -> f64 {
  if (is_nan_f64(x) || abs(x) > 1.0lf) { return f64_of(0x7ff8000000000000lu); }
  if (x == 1.0lf) { return 0.0lf; }
  if (x == -1.0lf) { return 3.141592653589793lf; }
  if (abs(x) < 0.5lf) { return 1.57079632679489655800e+00lf - opaque_f64(x - (6.12323399573676603587e-17lf - x * asin_rational(x * x))); }
  if (x < 0.0lf) {
    let z = (1.0lf + x) * 0.5lf; let s = sqrt(z); let w = asin_rational(z) * s - 6.12323399573676603587e-17lf;
    return 2.0lf * (1.57079632679489655800e+00lf - opaque_f64(s + w));
  }
  let z = (1.0lf - x) * 0.5lf; let s = sqrt(z); let df = high_f64(s); let c = (z - df * df) / (s + df);
  return 2.0lf * (df + opaque_f64(asin_rational(z) * s + c));
}
"
atan_f64: "fn atan_f64(x: f64) -> f64 {
  if (is_nan_f64(x) || abs(x) < 7.450580596923828e-09lf) { return x; }
  let a = abs(x); var t = a; var hi = 0.0lf; var lo = 0.0lf;
  if (a >= 2.4375lf) { t = select(-1.0lf / a, 0.0lf, !is_finite_f64(a)); hi = 1.57079632679489655800e+00lf; lo = 6.12323399573676603587e-17lf; }
  else if (a >= 1.1875lf) { t = (a - 1.5lf) / (1.0lf + 1.5lf * a); hi = 9.82793723247329054082e-01lf; lo = 1.39033110312309984516e-17lf; }
  else if (a >= 0.6875lf) { t = (a - 1.0lf) / (a + 1.0lf); hi = 7.85398163397448278999e-01lf; lo = 3.06161699786838301793e-17lf; }
  else if (a >= 0.4375lf) { t = (2.0lf * a - 1.0lf) / (2.0lf + a); hi = 4.63647609000806093515e-01lf; lo = 2.26987774529616870924e-17lf; }
  let z = t * t; let w = z * z;
  let s1 = z * (3.33333333333329318027e-01lf + w * (1.42857142725034663711e-01lf + w * (9.09088713343650656196e-02lf + w * (6.66107313738753120669e-02lf + w * (4.97687799461593236017e-02lf + w * 1.62858201153657823623e-02lf)))));
  let s2 = w * (-1.99999999998764832476e-01lf + w * (-1.11111104054623557880e-01lf + w * (-7.69187620504482999495e-02lf + w * (-5.83357013379057348645e-02lf + w * -3.65315727442169155270e-02lf))));
  let y = hi - opaque_f64(t * (s1 + s2) - lo - t);
  return select(y, -y, x < 0.0lf);
}
"
erf_near: "fn erf_near(z: f64) -> f64 {
  let r = 1.28379167095512558561e-01lf + z * (-3.25042107247001499370e-01lf + z * (-2.84817495755985104766e-02lf + z * (-5.77027029648944159157e-03lf + z * -2.37630166566501626084e-05lf)));
  let s = 1.0lf + z * (3.97917223959155352819e-01lf + z * (6.50222499887672944485e-02lf + z * (5.08130628187576562776e-03lf + z * (1.32494738004321644526e-04lf + z * -3.96022827877536812320e-06lf))));
  return r / s;
}
"
erfc_far: "fn erfc_far(a: f64) -> f64 {
  if (a < 1.25lf) {
    let s = a - 1.0lf;
    let p = -2.36211856075265944077e-03lf + s * (4.14856118683748331666e-01lf + s * (-3.72207876035701323847e-01lf + s * (3.18346619901161753674e-01lf + s * (-1.10894694282396677476e-01lf + s * (3.54783043256182359371e-02lf + s * -2.16637559486879084300e-03lf)))));
    let q = 1.0lf + s * (1.06420880400844228286e-01lf + s * (5.40397917702171048937e-01lf + s * (7.18286544141962662868e-02lf + s * (1.26171219808761642112e-01lf + s * (1.36370839120290507362e-02lf + s * 1.19844998467991074170e-02lf)))));
    return 1.0lf - 8.45062911510467529297e-01lf - p / q;
  }
  let s = 1.0lf / (a * a); var r: f64; var t: f64;
  if (a < 2.857142857142857lf) {
    r = -9.86494403484714822705e-03lf + s * (-6.93858572707181764372e-01lf + s * (-1.05586262253232909814e+01lf + s * (-6.23753324503260060396e+01lf + s * (-1.62396669462573470355e+02lf + s * (-1.84605092906711035994e+02lf + s * (-8.12874355063065934246e+01lf + s * -9.81432934416914548592e+00lf))))));
    t = 1.0lf + s * (1.96512716674392571292e+01lf + s * (1.37657754143519042600e+02lf + s * (4.34565877475229228821e+02lf + s * (6.45387271733267880336e+02lf + s * (4.29008140027567833386e+02lf + s * (1.08635005541779435134e+02lf + s * (6.57024977031928170135e+00lf + s * -6.04244152148580987438e-02lf)))))));
  } else {
    r = -9.86494292470009928597e-03lf + s * (-7.99283237680523006574e-01lf + s * (-1.77579549177547519889e+01lf + s * (-1.60636384855821916062e+02lf + s * (-6.37566443368389627722e+02lf + s * (-1.02509513161107724954e+03lf + s * -4.83519191608651397019e+02lf)))));
    t = 1.0lf + s * (3.03380607434824582924e+01lf + s * (3.25792512996573918826e+02lf + s * (1.53672958608443695994e+03lf + s * (3.19985821950859553908e+03lf + s * (2.55305040643316442583e+03lf + s * (4.74528541206955367215e+02lf + s * -2.24409524465858183362e+01lf))))));
  }
  let z = high_f64(a);
  return exp_f64(-z * z - 0.5625lf) * exp_f64((z - a) * (z + a) + r / t) / a;
}
"
erf_f64: "fn erf_f64(x: f64) -> f64 {
  if (is_nan_f64(x)) { return x; }
  let a = abs(x);
  if (a < 3.725290298461914e-09lf) { return x + 1.28379167095512586316e-01lf * x; }
  if (a < 0.84375lf) { return x + x * erf_near(x * x); }
  let y = select(1.0lf, 1.0lf - erfc_far(min(a, 6.0lf)), a < 6.0lf);
  return select(y, -y, x < 0.0lf);
}
"
erfc_f64: "fn erfc_f64(x: f64) -> f64 {
  if (is_nan_f64(x)) { return x; }
  let a = abs(x);
  if (a < 0.84375lf) {
    let y = erf_near(x * x);
    if (x < 0.25lf) { return 1.0lf - (x + x * y); }
    return 0.5lf - (x - 0.5lf + x * y);
  }
  if (a >= 28.0lf) { return select(0.0lf, 2.0lf, x < 0.0lf); }
  let y = erfc_far(a);
  return select(y, 2.0lf - y, x < 0.0lf);
}
"
pow_magnitude: "fn pow_magnitude(a: f64, y: f64) -> f64 {
  let tiny = a < 2.2250738585072014e-308lf;
  let bits = bitcast<u64>(select(a, a * 9007199254740992.0lf, tiny));
  var n = i32(bits >> 52u) - 0x3ff - select(0, 53, tiny);
  let j = u32(bits >> 32u) & 0xfffffu; var ix = j | 0x3ff00000u; var k = 0u;
  if (j > 0x3988eu) { if (j < 0xbb67au) { k = 1u; } else { n = n + 1; ix = ix - 0x100000u; } }
  let ax = bitcast<f64>((u64(ix) << 32u) | (bits & 0xfffffffflu));
  let bp = select(1.0lf, 1.5lf, k == 1u);
  let u = ax - bp; let v = 1.0lf / (ax + bp); let ss = u * v; let s_h = high_f64(ss);
  let t_h = bitcast<f64>(u64(((ix >> 1u) | 0x20000000u) + 0x80000u + (k << 18u)) << 32u);
  let t_l = ax - (t_h - bp);
  let s_l = v * (opaque_f64(u - s_h * t_h) - s_h * t_l);
  let s2 = ss * ss;
  let r0 = s2 * s2 * (5.99999999999994648725e-01lf + s2 * (4.28571428578550184252e-01lf + s2 * (3.33333329818377432918e-01lf + s2 * (2.72728123808534006489e-01lf + s2 * (2.30660745775561754067e-01lf + s2 * 2.06975017800338417784e-01lf)))));
  let r = r0 + s_l * (s_h + ss); let q2 = s_h * s_h;
  let th2 = high_f64(3.0lf + q2 + r); let tl2 = r - ((th2 - 3.0lf) - q2);
  let u2 = s_h * th2; let v2 = s_l * th2 + tl2 * ss;
  let p_h = high_f64(u2 + v2); let p_l = v2 - (p_h - u2);
  let dp_h = select(0.0lf, 5.84962487220764160156e-01lf, k == 1u);
  let z_h = 9.61796700954437255859e-01lf * p_h;
  let z_l = -7.02846165095275826516e-09lf * p_h + p_l * 9.61796693925975554329e-01lf + select(0.0lf, 1.35003920212974897128e-08lf, k == 1u);
  let t = f64(n);
  let t1 = high_f64(((z_h + z_l) + dp_h) + t); let t2 = z_l - (((t1 - t) - dp_h) - z_h);
  let y1 = high_f64(y); let pl = (y - y1) * t1 + y * t2; let ph = y1 * t1;
  let z = opaque_f64(pl + ph);
  if (z >= 1024.0lf) { if (z > 1024.0lf || pl + 8.0085662595372944372e-017lf > z - ph) { return f64_of(0x7ff0000000000000lu); } }
  if (z < -1080.0lf) { return 0.0lf; }
  let m = rounded_f64(z); let f_h = ph - m;
  let f = high_f64(pl + f_h); let a1 = f * 6.93147182464599609375e-01lf;
  let b1 = (pl - (f - f_h)) * 6.93147180559945286227e-01lf + f * -1.90465429995776804525e-09lf;
  let g = opaque_f64(a1 + b1); let w = b1 - (g - a1); let g2 = g * g;
  let h = g - g2 * (1.66666666666666019037e-01lf + g2 * (-2.77777777770155933842e-03lf + g2 * (6.61375632143793436117e-05lf + g2 * (-1.65339022054652515390e-06lf + g2 * 4.13813679705723846039e-08lf))));
  let e = (g * h) / (h - 2.0lf) - (w + g * w);
  return scaled_f64(1.0lf - (e - g), i32(m));
}
"
pow_f64: "fn pow_f64(x: f64, y: f64) -> f64 {
  if (x == 1.0lf || y == 0.0lf) { return 1.0lf; }
  if (is_nan_f64(x) || is_nan_f64(y)) { return f64_of(0x7ff8000000000000lu); }
  let a = abs(x); let b = abs(y);
  let whole = b >= 4503599627370496.0lf || truncated_f64(b) == b;
  let odd = b < 9007199254740992.0lf && whole && !(truncated_f64(0.5lf * b) == 0.5lf * b);
  if (x < 0.0lf && is_finite_f64(x) && !whole && is_finite_f64(y)) { return f64_of(0x7ff8000000000000lu); }
  var p: f64;
  if (a == 1.0lf) { p = 1.0lf; }
  else if (b > 1.0e20lf) { p = select(0.0lf, f64_of(0x7ff0000000000000lu), (a > 1.0lf) == (y > 0.0lf)); }
  else if (a == 0.0lf || !is_finite_f64(a)) { p = select(0.0lf, f64_of(0x7ff0000000000000lu), (a == 0.0lf) == (y < 0.0lf)); }
  else { p = pow_magnitude(a, y); }
  return select(p, -p, odd && (bitcast<u64>(x) >> 63u) == 1lu);
}
"
}
