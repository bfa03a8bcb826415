//! The f32 functions whose intermediate results need more precision than f32. They compute with pairs of f32,
//! `vec2<f32>`. The value of a pair is the unevaluated sum of its parts, of which the second is the smaller.
//!
//! WGSL has no f64, allows a division to be wrong by 2.5 units in the last place, and does not promise fused
//! multiply-adds. The exact error of a sum is computed by Knuth's method (`two_sum_f32`), and that of a product by
//! Dekker's (`product_error_f32`). These errors are used to correct quotients and roots in one step. The polynomials
//! are minimax fits. Over all orders of magnitude, the results are within 1 unit in the last place
//! (tests/functions.rs).

library! {
two_sum_f32: "fn two_sum_f32(a: f32, b: f32) -> vec2<f32> {
  let s = opaque_f32(a + b); let t = opaque_f32(s - a);
  return vec2<f32>(s, (a - opaque_f32(s - t)) + (b - t));
}
"
// The exact sum if `a` is 0 or not smaller than `b` in magnitude.
fast_sum_f32: "fn fast_sum_f32(a: f32, b: f32) -> vec2<f32> {
  let s = opaque_f32(a + b);
  return vec2<f32>(s, b - opaque_f32(s - a));
}
"
two_product_f32: "fn two_product_f32(a: f32, b: f32) -> vec2<f32> {
  let p = opaque_f32(a * b);
  return vec2<f32>(p, product_error_f32(a, b, p));
}
"
quotient_f32: "fn quotient_f32(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  let q = a.x / b.x; let p = two_product_f32(q, b.x);
  return vec2<f32>(q, (((a.x - p.x) - p.y) + (a.y - q * b.y)) / b.x);
}
"
root_f32: "fn root_f32(a: vec2<f32>) -> vec2<f32> {
  if (a.x == 0.0f) { return a; }
  let s = sqrt(a.x); let p = two_product_f32(s, s);
  return vec2<f32>(s, (((a.x - p.x) - p.y) + a.y) / (s + s));
}
"
// The f32 nearest to a / b. The driver's quotient of the significands is corrected by the exact remainder, and then compared with
// the midpoints to its neighbours. Where an operand is not a normal number, or the quotient is next to the smallest or the largest one
// (by a factor of 2), the driver's division counts.
nearest_quotient_f32: "fn nearest_quotient_f32(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a); let y = bitcast<u32>(b);
  let ex = i32((x >> 23u) & 255u); let ey = i32((y >> 23u) & 255u); let k = ex - ey;
  if (ex == 0 || ex == 255 || ey == 0 || ey == 255 || k < -125 || k > 127) { return a / b; }
  let m = bitcast<f32>((x & 0x7fffffu) | 0x3f800000u); let n = bitcast<f32>((y & 0x7fffffu) | 0x3f800000u);
  let first = m / n; let q = opaque_f32(first + remainder_of_f32(m, n, first) / n);
  let bits = bitcast<u32>(q); let r = remainder_of_f32(m, n, q);
  let above = 2.0f * r > (bitcast<f32>(bits + 1u) - q) * n; let below = -2.0f * r > (q - bitcast<f32>(bits - 1u)) * n;
  let nearest = select(select(bits, bits - 1u, below), bits + 1u, above);
  return bitcast<f32>((nearest + (bitcast<u32>(k) << 23u)) | ((x ^ y) & 0x80000000u));
}
"
// m - n * q, which is exact if q is next to the quotient.
remainder_of_f32: "fn remainder_of_f32(m: f32, n: f32, q: f32) -> f32 {
  let p = two_product_f32(q, n);
  return opaque_f32(m - p.x) - p.y;
}
"
// The f32 nearest to the root of x, in the same way.
nearest_root_f32: "fn nearest_root_f32(x: f32) -> f32 {
  let all = bitcast<u32>(x); let e = i32(all >> 23u);
  if (e == 0 || e >= 255) { return sqrt(x); }
  let odd = (e + 1) & 1;
  let m = bitcast<f32>((all & 0x7fffffu) | u32(127 + odd) << 23u);
  let first = sqrt(m); let s = opaque_f32(first + remainder_of_f32(m, first, first) / (first + first));
  let bits = bitcast<u32>(s); let r = remainder_of_f32(m, s, s);
  let above = r > (bitcast<f32>(bits + 1u) - s) * s; let below = -r >= (s - bitcast<f32>(bits - 1u)) * s;
  let nearest = select(select(bits, bits - 1u, below), bits + 1u, above);
  return bitcast<f32>(nearest + (bitcast<u32>((e - 127 - odd) / 2) << 23u));
}
"
// `(r, low, n)` with exp(x) = 2^n * (1 + r + low), where `low` may be as large as 0.2 * r.
exp_parts_f32: "fn exp_parts_f32(x: vec2<f32>) -> vec3<f32> {
  let n = round(x.x * 1.442695f);
  let t = two_sum_f32(opaque_f32(fma(n, -0.69314575f, x.x)), fma(n, -1.4286068e-6f, x.y)); let r = t.x;
  let q = fma(fma(fma(fma(0.0013941118f, r, 0.00836318f), r, 0.041666374f), r, 0.16666576f), r, 0.5f);
  return vec3<f32>(r, fma(r * r, q, t.y), n);
}
"
// `(y, low, n)` with exp(x) = 2^n * (y + low).
exp_pair_f32: "fn exp_pair_f32(x: vec2<f32>) -> vec3<f32> {
  let p = exp_parts_f32(x); let s = fast_sum_f32(1.0f, p.x); let y = fast_sum_f32(s.x, s.y + p.y);
  return vec3<f32>(y, p.z);
}
"
// 2^k * exp(x), for `x` from -159 ln 2 to 131 ln 2.
exp_scaled_f32: "fn exp_scaled_f32(x: vec2<f32>, k: f32) -> f32 {
  let p = exp_pair_f32(x);
  return scaled_f32(p.x + p.y, p.z + k);
}
"
// e^x - 1 as a pair, for `x` from -18 to 21.
expm1_pair_f32: "fn expm1_pair_f32(x: f32) -> vec2<f32> {
  let p = exp_parts_f32(vec2<f32>(x, 0.0f)); let power = bitcast<f32>(u32(i32(p.z) + 127) << 23u);
  let t = two_sum_f32(power - 1.0f, power * p.x);
  return fast_sum_f32(t.x, fma(power, p.y, t.y));
}
"
expm1_f32: "fn expm1_f32(x: f32) -> f32 {
  if (is_nan_f32(x) || x == 0.0f) { return x; }
  if (x > 20.0f) { return exp_f32(x); }
  return expm1_pair_f32(max(x, -18.0f)).x;
}
"
softplus_f32: "fn softplus_f32(x: f32) -> f32 {
  if (is_nan_f32(x) || x > 104.0f) { return x; }
  let p = exp_pair_f32(vec2<f32>(max(-abs(x), -104.0f), 0.0f));
  let l = log1p_pair_f32(vec2<f32>(scaled_f32(p.x, p.z), scaled_f32(p.y, p.z)));
  let s = two_sum_f32(max(x, 0.0f), l.x);
  return s.x + (s.y + l.y);
}
"
tanh_f32: "fn tanh_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let e = expm1_pair_f32(2.0f * min(abs(x), 10.0f)); let d = two_sum_f32(2.0f, e.x);
  let q = quotient_f32(e, vec2<f32>(d.x, d.y + e.y));
  return with_sign_f32(q.x + q.y, x);
}
"
sinh_f32: "fn sinh_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let a = abs(x);
  if (a > 20.0f) { return with_sign_f32(exp_scaled_f32(vec2<f32>(min(a, 90.0f), 0.0f), -1.0f), x); }
  let e = expm1_pair_f32(a); let d = two_sum_f32(1.0f, e.x);
  let q = quotient_f32(e, vec2<f32>(d.x, d.y + e.y)); let s = two_sum_f32(e.x, q.x);
  return with_sign_f32(0.5f * (s.x + (s.y + (e.y + q.y))), x);
}
"
cosh_f32: "fn cosh_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let a = abs(x);
  if (a > 20.0f) { return exp_scaled_f32(vec2<f32>(min(a, 90.0f), 0.0f), -1.0f); }
  let p = exp_pair_f32(vec2<f32>(a, 0.0f)); let power = bitcast<f32>(u32(i32(p.z) + 127) << 23u); let e = power * p.xy;
  let q = quotient_f32(vec2<f32>(1.0f, 0.0f), e); let s = two_sum_f32(e.x, q.x);
  return 0.5f * (s.x + (s.y + (e.y + q.y)));
}
"
log1p_pair_f32: "fn log1p_pair_f32(x: vec2<f32>) -> vec2<f32> {
  if (abs(x.x) < 2.98023224e-08f) { return x; }
  let offset = bitcast<u32>(1.0f + x.x) - 0x3f3504f3u;
  let e = f32(bitcast<i32>(offset) >> 23u);
  let s = bitcast<f32>(0x5f800000u - (offset & 0xff800000u));
  let b = s * 5.421010862427522e-20f - 1.0f;
  let p = x * 5.421010862427522e-20f * s;
  let f = opaque_f32(b + p.x); let d = (p.x - (f - b)) + p.y;
  return ln_parts_f32(e, f, d - d * f);
}
"
// ln(2 a), for `a` so large that asinh and acosh equal it.
ln_double_f32: "fn ln_double_f32(a: f32) -> f32 {
  let s = split_f32(a); let l = ln_parts_f32(s.x + 1.0f, s.y, 0.0f);
  return l.x + l.y;
}
"
asinh_f32: "fn asinh_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return x; }
  let a = abs(x);
  if (a > 4096.0f) { return with_sign_f32(ln_double_f32(a), x); }
  let z = two_product_f32(a, a); let w = two_sum_f32(1.0f, z.x);
  let h = root_f32(vec2<f32>(w.x, w.y + z.y)); let d = two_sum_f32(1.0f, h.x);
  let q = quotient_f32(z, vec2<f32>(d.x, d.y + h.y)); let s = two_sum_f32(a, q.x);
  let l = log1p_pair_f32(vec2<f32>(s.x, s.y + q.y));
  return with_sign_f32(l.x + l.y, x);
}
"
acosh_f32: "fn acosh_f32(x: f32) -> f32 {
  if (!(x >= 1.0f) || is_nan_f32(x)) { return f32_of(0x7fc00000u); }
  if (!is_finite_f32(x)) { return x; }
  if (x > 4096.0f) { return ln_double_f32(x); }
  let t = two_sum_f32(x, -1.0f); let u = two_sum_f32(x, 1.0f); let p = two_product_f32(t.x, u.x);
  let h = root_f32(vec2<f32>(p.x, p.y + fma(t.x, u.y, t.y * u.x))); let s = two_sum_f32(h.x, t.x);
  let l = log1p_pair_f32(vec2<f32>(s.x, s.y + (h.y + t.y)));
  return l.x + l.y;
}
"
atanh_f32: "fn atanh_f32(x: f32) -> f32 {
  let b = abs(x);
  if (is_nan_f32(x) || b > 1.0f) { return f32_of(0x7fc00000u); }
  if (b == 1.0f) { return with_sign_f32(f32_of(0x7f800000u), x); }
  let l = log1p_pair_f32(quotient_f32(vec2<f32>(b + b, 0.0f), two_sum_f32(1.0f, -b)));
  return with_sign_f32(0.5f * (l.x + l.y), x);
}
"
// `(r, low, n)` with x = n * pi/2 + r + low, where `r` is at most pi/4 in magnitude and `n` is modulo 4. The product
// with 2/pi is computed in integers (Payne and Hanek). It uses 96 bits of 2/pi, from the first bit that does not
// contribute a multiple of 4.
quarters_f32: "fn quarters_f32(x: f32) -> vec3<f32> {
  let a = abs(x);
  if (a < 0.785f) { return vec3<f32>(x, 0.0f, 0.0f); }
  var t = array<u32, 8>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
  let m = (bitcast<u32>(a) & 0x7fffffu) | 0x800000u;
  let at = (bitcast<u32>(a) >> 23u) - 120u; let i = at >> 5u; let left = at & 31u; let right = 31u - left;
  let low = mul32(m, (t[i + 2u] << left) | ((t[i + 3u] >> 1u) >> right));
  let middle = mul32(m, (t[i + 1u] << left) | ((t[i + 2u] >> 1u) >> right));
  let c = middle.x + low.y;
  let top = m * ((t[i] << left) | ((t[i + 1u] >> 1u) >> right)) + middle.y + select(0u, 1u, c < low.y);
  let n = (top + 0x20000000u) >> 30u;
  var f = vec2<u32>((c << 2u) | (low.x >> 30u), (top << 2u) | (c >> 30u));
  let below = (f.y >> 31u) == 1u;
  if (below) { f = neg_64(f); }
  let g = two_sum_f32(f32(f.y >> 8u) * 5.9604645e-8f, f32(((f.y & 0xffu) << 16u) | (f.x >> 16u)) * 3.5527137e-15f);
  let p = two_product_f32(g.x, 1.5707964f);
  let rest = g.y + f32(f.x & 0xffffu) * 5.421010862427522e-20f;
  let r = fast_sum_f32(p.x, p.y + fma(g.x, -4.371139e-8f, rest * 1.5707964f));
  let negative = x < 0.0f;
  return vec3<f32>(select(r, -r, below != negative), f32(select(n, 4u - n, negative) & 3u));
}
"
// The sine as a pair, then the cosine as a pair. The second parts may be as large as 0.2 times the first ones.
sin_cos_f32: "fn sin_cos_f32(x: f32) -> vec4<f32> {
  let p = quarters_f32(x); let r = p.x; let z = r * r; let h = 0.5f * z; let w = opaque_f32(1.0f - h);
  let s = fma(r * z, fma(fma(-0.00019587757f, z, 0.008332748f), z, -0.16666664f), p.y);
  let c = fma(z * z, fma(fma(2.4547748e-5f, z, -0.0013888302f), z, 0.041666664f), -r * p.y);
  var y = vec4<f32>(r, s, w, ((1.0f - w) - h) + c);
  let n = u32(p.z);
  if ((n & 1u) == 1u) { y = vec4<f32>(y.zw, -y.xy); }
  return select(y, -y, (n & 2u) == 2u);
}
"
sin_f32: "fn sin_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return f32_of(0x7fc00000u); }
  if (x == 0.0f) { return x; }
  let y = sin_cos_f32(x);
  return y.x + y.y;
}
"
cos_f32: "fn cos_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return f32_of(0x7fc00000u); }
  let y = sin_cos_f32(x);
  return y.z + y.w;
}
"
tan_f32: "fn tan_f32(x: f32) -> f32 {
  if (!is_finite_f32(x)) { return f32_of(0x7fc00000u); }
  if (x == 0.0f) { return x; }
  let y = sin_cos_f32(x); let q = quotient_f32(fast_sum_f32(y.x, y.y), fast_sum_f32(y.z, y.w));
  return q.x + q.y;
}
"
atan_f32: "fn atan_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let a = min(abs(x), 1e10f); let outer = a > 1.0f;
  var t = vec2<f32>(a, 0.0f);
  if (outer) { t = quotient_f32(vec2<f32>(1.0f, 0.0f), t); }
  let z = t.x * t.x;
  let r = fma(t.x * z, fma(fma(fma(fma(fma(fma(fma(fma(-0.0025085679f, z, 0.013996447f), z, -0.036670223f), z, 0.063182145f), z, -0.086890414f), z, 0.110420346f), z, -0.14279616f), z, 0.1999979f), z, -0.3333333f), t.y);
  let s = two_sum_f32(1.5707964f, -t.x);
  return with_sign_f32(select(t.x + r, s.x + (s.y + (-4.371139e-8f - r)), outer), x);
}
"
// The arcsine of `a` if `a` is at most 0.5, otherwise half the arccosine of `a`.
asin_pair_f32: "fn asin_pair_f32(a: f32) -> vec2<f32> {
  var t = vec2<f32>(a, 0.0f); var z = a * a;
  if (a > 0.5f) { z = 0.5f - 0.5f * a; t = root_f32(vec2<f32>(z, 0.0f)); }
  let q = fma(fma(fma(fma(0.03832832f, z, 0.026433352f), z, 0.04502022f), z, 0.07498761f), z, 0.16666673f);
  return vec2<f32>(t.x, fma(t.x * z, q, t.y));
}
"
asin_f32: "fn asin_f32(x: f32) -> f32 {
  let a = abs(x);
  if (!(a <= 1.0f) || is_nan_f32(x)) { return f32_of(0x7fc00000u); }
  let p = asin_pair_f32(a); let s = two_sum_f32(1.5707964f, -2.0f * p.x);
  return with_sign_f32(select(p.x + p.y, s.x + (s.y + (-4.371139e-8f - 2.0f * p.y)), a > 0.5f), x);
}
"
acos_f32: "fn acos_f32(x: f32) -> f32 {
  let a = abs(x);
  if (!(a <= 1.0f) || is_nan_f32(x)) { return f32_of(0x7fc00000u); }
  let p = asin_pair_f32(a); let g = select(-p, p, x < 0.0f);
  if (a <= 0.5f) { let s = two_sum_f32(1.5707964f, g.x); return s.x + (s.y + (-4.371139e-8f + g.y)); }
  if (x > 0.0f) { return 2.0f * (p.x + p.y); }
  let s = two_sum_f32(3.1415927f, -2.0f * p.x);
  return s.x + (s.y + (-8.742278e-8f - 2.0f * p.y));
}
"
// exp(a^2) * erfc(a) * (a + 3) is a polynomial in t = (a - 3) / (a + 3).
erfc_f32: "fn erfc_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let a = min(abs(x), 10.1f); let d = two_sum_f32(a, 3.0f);
  let t = quotient_f32(two_sum_f32(a, -3.0f), d); let u = quotient_f32(vec2<f32>(1.0f, 0.0f), d);
  let r = fma(fma(fma(fma(fma(fma(fma(fma(7.011684e-6f, t.x, -0.00031402957f), t.x, -0.00048512872f), t.x, 0.0030712471f), t.x, -0.0012272131f), t.x, -0.026837263f), t.x, 0.11952933f), t.x, -0.3104663f), t.x, 0.59022826f);
  let o = two_product_f32(t.x, r); let q = two_sum_f32(-0.8833945f, o.x); let q_low = q.y + (o.y + 1.929298e-9f);
  let p = two_product_f32(t.x, q.x); let g = two_sum_f32(1.0740069f, p.x);
  let g_low = g.y + (p.y - 7.265621e-9f) + fma(t.x, q_low, t.y * (2.0f * q.x + 0.8833945f));
  let h = two_product_f32(g.x, u.x); let h_low = h.y + fma(g.x, u.y, g_low * u.x);
  let z = two_product_f32(a, a); let e = exp_pair_f32(-z); let y = two_product_f32(h.x, e.x);
  let small = scaled_f32(y.x + (y.y + fma(h.x, e.y, h_low * e.x)), e.z);
  return select(small, 2.0f - small, x < 0.0f);
}
"
// ln(a) with a relative error of some 2^-33: 2 s + s^3 (2/3 + ...), with s = (m - 1) / (m + 1) for the mantissa m.
ln_pair_f32: "fn ln_pair_f32(a: f32) -> vec2<f32> {
  let m = split_f32(a); let e = m.x; let q = quotient_f32(vec2<f32>(m.y, 0.0f), two_sum_f32(2.0f, m.y));
  let s = fast_sum_f32(q.x, q.y); let z = two_product_f32(s.x, s.x); let z_low = fma(2.0f * s.x, s.y, z.y);
  let c = two_sum_f32(0.6666667f, z.x * fma(fma(0.23050584f, z.x, 0.28562167f), z.x, 0.40000015f));
  let p = two_product_f32(s.x, z.x); let p_low = p.y + fma(s.x, z_low, s.y * z.x);
  let t = two_product_f32(p.x, c.x); let t_low = t.y + fma(p.x, c.y - 1.9868216e-8f, p_low * c.x);
  let k = two_product_f32(e, 1.4286068e-6f);
  let u = two_sum_f32(e * 0.69314575f, 2.0f * s.x); let v = two_sum_f32(k.x, t.x); let w = two_sum_f32(u.x, v.x);
  return fast_sum_f32(w.x, w.y + (u.y + v.y + (2.0f * s.y + t_low + k.y)));
}
"
pow_f32: "fn pow_f32(x: f32, y: f32) -> f32 {
  if (x == 1.0f || y == 0.0f) { return 1.0f; }
  if (is_nan_f32(x) || is_nan_f32(y)) { return f32_of(0x7fc00000u); }
  let a = abs(x); let b = abs(y);
  let whole = b >= 8388608.0f || trunc(b) == b;
  let odd = b < 16777216.0f && whole && !(trunc(0.5f * b) == 0.5f * b);
  if (x < 0.0f && is_finite_f32(x) && !whole) {
    if (is_finite_f32(y)) { return f32_of(0x7fc00000u); }
  }
  var p: f32;
  if (a == 1.0f) { p = 1.0f; }
  else if (!is_finite_f32(y)) { p = select(0.0f, f32_of(0x7f800000u), (a > 1.0f) == (y > 0.0f)); }
  else if (a == 0.0f || !is_finite_f32(a)) { p = select(0.0f, f32_of(0x7f800000u), (a == 0.0f) == (y < 0.0f)); }
  else {
    let l = ln_pair_f32(a); let first = y * l.x;
    if (first > 90.0f) { p = f32_of(0x7f800000u); }
    else if (first < -110.0f) { p = 0.0f; }
    else { let t = two_product_f32(y, l.x); p = exp_scaled_f32(vec2<f32>(t.x, fma(y, l.y, t.y)), 0.0f); }
  }
  return select(p, bitcast<f32>(bitcast<u32>(p) | (bitcast<u32>(x) & 0x80000000u)), odd);
}
"
}
