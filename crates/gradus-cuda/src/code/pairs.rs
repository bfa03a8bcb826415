//! The f32 functions whose intermediate results need more precision than f32. They compute with pairs of f32,
//! `vec2<f32>`. The value of a pair is the unevaluated sum of its parts, of which the second is the smaller.
//!
//! The exact error of a sum is computed by Knuth's method (`two_sum_f32`), and that of a product by a fused
//! multiply-add. These errors are used to correct quotients and roots in one step. The polynomials are minimax fits. Over
//! all orders of magnitude, the results are within 1 unit in the last place.

library! {
two_sum_f32: "vec2<f32> two_sum_f32(f32 a, f32 b) {
  auto s = (a + b); auto t = (s - a);
  return vec2<f32>(s, (a - (s - t)) + (b - t));
}
"
// The exact sum if `a` is 0 or not smaller than `b` in magnitude.
fast_sum_f32: "vec2<f32> fast_sum_f32(f32 a, f32 b) {
  auto s = (a + b);
  return vec2<f32>(s, b - (s - a));
}
"
two_product_f32: "vec2<f32> two_product_f32(f32 a, f32 b) {
  auto p = (a * b);
  return vec2<f32>(p, product_error_f32(a, b, p));
}
"
quotient_f32: "vec2<f32> quotient_f32(vec2<f32> a, vec2<f32> b) {
  auto q = a.x / b.x; auto p = two_product_f32(q, b.x);
  return vec2<f32>(q, (((a.x - p.x) - p.y) + (a.y - q * b.y)) / b.x);
}
"
root_f32: "vec2<f32> root_f32(vec2<f32> a) {
  if (a.x == 0.0f) { return a; }
  auto s = sqrt(a.x); auto p = two_product_f32(s, s);
  return vec2<f32>(s, (((a.x - p.x) - p.y) + a.y) / (s + s));
}
"
// `(r, low, n)` with exp(x) = 2^n * (1 + r + low), where `low` may be as large as 0.2 * r.
exp_parts_f32: "vec3<f32> exp_parts_f32(vec2<f32> x) {
  auto n = rint(x.x * 1.442695f);
  auto t = two_sum_f32((fma(n, -0.69314575f, x.x)), fma(n, -1.4286068e-6f, x.y)); auto r = t.x;
  auto q = fma(fma(fma(fma(0.0013941118f, r, 0.00836318f), r, 0.041666374f), r, 0.16666576f), r, 0.5f);
  return vec3<f32>(r, fma(r * r, q, t.y), n);
}
"
// `(y, low, n)` with exp(x) = 2^n * (y + low).
exp_pair_f32: "vec3<f32> exp_pair_f32(vec2<f32> x) {
  auto p = exp_parts_f32(x); auto s = fast_sum_f32(1.0f, p.x); auto y = fast_sum_f32(s.x, s.y + p.y);
  return vec3<f32>(y.x, y.y, p.z);
}
"
// 2^k * exp(x), for `x` from -159 ln 2 to 131 ln 2.
exp_scaled_f32: "f32 exp_scaled_f32(vec2<f32> x, f32 k) {
  auto p = exp_pair_f32(x);
  return scaled_f32(p.x + p.y, p.z + k);
}
"
// e^x - 1 as a pair, for `x` from -18 to 21.
expm1_pair_f32: "vec2<f32> expm1_pair_f32(f32 x) {
  auto p = exp_parts_f32(vec2<f32>(x, 0.0f)); auto power = bitcast<f32>(u32(i32(p.z) + 127) << 23u);
  auto t = two_sum_f32(power - 1.0f, power * p.x);
  return fast_sum_f32(t.x, fma(power, p.y, t.y));
}
"
expm1_f32: "f32 expm1_f32(f32 x) {
  if (is_nan_f32(x) || x == 0.0f) { return x; }
  if (x > 20.0f) { return exp_f32(x); }
  return expm1_pair_f32(max(x, -18.0f)).x;
}
"
softplus_f32: "f32 softplus_f32(f32 x) {
  if (is_nan_f32(x) || x > 104.0f) { return x; }
  auto p = exp_pair_f32(vec2<f32>(max(-fabs(x), -104.0f), 0.0f));
  auto l = log1p_pair_f32(vec2<f32>(scaled_f32(p.x, p.z), scaled_f32(p.y, p.z)));
  auto s = two_sum_f32(max(x, 0.0f), l.x);
  return s.x + (s.y + l.y);
}
"
tanh_f32: "f32 tanh_f32(f32 x) {
  if (is_nan_f32(x)) { return x; }
  auto e = expm1_pair_f32(2.0f * min(fabs(x), 10.0f)); auto d = two_sum_f32(2.0f, e.x);
  auto q = quotient_f32(e, vec2<f32>(d.x, d.y + e.y));
  return with_sign_f32(q.x + q.y, x);
}
"
sinh_f32: "f32 sinh_f32(f32 x) {
  if (is_nan_f32(x)) { return x; }
  auto a = fabs(x);
  if (a > 20.0f) { return with_sign_f32(exp_scaled_f32(vec2<f32>(min(a, 90.0f), 0.0f), -1.0f), x); }
  auto e = expm1_pair_f32(a); auto d = two_sum_f32(1.0f, e.x);
  auto q = quotient_f32(e, vec2<f32>(d.x, d.y + e.y)); auto s = two_sum_f32(e.x, q.x);
  return with_sign_f32(0.5f * (s.x + (s.y + (e.y + q.y))), x);
}
"
cosh_f32: "f32 cosh_f32(f32 x) {
  if (is_nan_f32(x)) { return x; }
  auto a = fabs(x);
  if (a > 20.0f) { return exp_scaled_f32(vec2<f32>(min(a, 90.0f), 0.0f), -1.0f); }
  auto p = exp_pair_f32(vec2<f32>(a, 0.0f)); auto power = bitcast<f32>(u32(i32(p.z) + 127) << 23u); auto e = vec2<f32>(power * p.x, power * p.y);
  auto q = quotient_f32(vec2<f32>(1.0f, 0.0f), e); auto s = two_sum_f32(e.x, q.x);
  return 0.5f * (s.x + (s.y + (e.y + q.y)));
}
"
log1p_pair_f32: "vec2<f32> log1p_pair_f32(vec2<f32> x) {
  if (fabs(x.x) < 2.98023224e-08f) { return x; }
  auto offset = bitcast<u32>(1.0f + x.x) - 0x3f3504f3u;
  auto e = f32(bitcast<i32>(offset) >> 23u);
  auto s = bitcast<f32>(0x5f800000u - (offset & 0xff800000u));
  auto b = s * 5.421010862427522e-20f - 1.0f;
  auto p = x * 5.421010862427522e-20f * s;
  auto f = (b + p.x); auto d = (p.x - (f - b)) + p.y;
  return ln_parts_f32(e, f, d - d * f);
}
"
// ln(2 a), for `a` so large that asinh and acosh equal it.
ln_double_f32: "f32 ln_double_f32(f32 a) {
  auto s = split_f32(a); auto l = ln_parts_f32(s.x + 1.0f, s.y, 0.0f);
  return l.x + l.y;
}
"
asinh_f32: "f32 asinh_f32(f32 x) {
  if (!is_finite_f32(x)) { return x; }
  auto a = fabs(x);
  if (a > 4096.0f) { return with_sign_f32(ln_double_f32(a), x); }
  auto z = two_product_f32(a, a); auto w = two_sum_f32(1.0f, z.x);
  auto h = root_f32(vec2<f32>(w.x, w.y + z.y)); auto d = two_sum_f32(1.0f, h.x);
  auto q = quotient_f32(z, vec2<f32>(d.x, d.y + h.y)); auto s = two_sum_f32(a, q.x);
  auto l = log1p_pair_f32(vec2<f32>(s.x, s.y + q.y));
  return with_sign_f32(l.x + l.y, x);
}
"
acosh_f32: "f32 acosh_f32(f32 x) {
  if (!(x >= 1.0f) || is_nan_f32(x)) { return f32_of(0x7fc00000u); }
  if (!is_finite_f32(x)) { return x; }
  if (x > 4096.0f) { return ln_double_f32(x); }
  auto t = two_sum_f32(x, -1.0f); auto u = two_sum_f32(x, 1.0f); auto p = two_product_f32(t.x, u.x);
  auto h = root_f32(vec2<f32>(p.x, p.y + fma(t.x, u.y, t.y * u.x))); auto s = two_sum_f32(h.x, t.x);
  auto l = log1p_pair_f32(vec2<f32>(s.x, s.y + (h.y + t.y)));
  return l.x + l.y;
}
"
atanh_f32: "f32 atanh_f32(f32 x) {
  auto b = fabs(x);
  if (is_nan_f32(x) || b > 1.0f) { return f32_of(0x7fc00000u); }
  if (b == 1.0f) { return with_sign_f32(f32_of(0x7f800000u), x); }
  auto l = log1p_pair_f32(quotient_f32(vec2<f32>(b + b, 0.0f), two_sum_f32(1.0f, -b)));
  return with_sign_f32(0.5f * (l.x + l.y), x);
}
"
// `(r, low, n)` with x = n * pi/2 + r + low, where `r` is at most pi/4 in magnitude and `n` is modulo 4. The product
// with 2/pi is computed in integers (Payne and Hanek). It uses 96 bits of 2/pi, from the first bit that does not
// contribute a multiple of 4.
quarters_f32: "vec3<f32> quarters_f32(f32 x) {
  auto a = fabs(x);
  if (a < 0.785f) { return vec3<f32>(x, 0.0f, 0.0f); }
  const u32 t[8] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  auto m = (bitcast<u32>(a) & 0x7fffffu) | 0x800000u;
  auto at = (bitcast<u32>(a) >> 23u) - 120u; auto i = at >> 5u; auto left = at & 31u; auto right = 31u - left;
  auto low = u64(m) * ((t[i + 2u] << left) | ((t[i + 3u] >> 1u) >> right));
  auto middle = u64(m) * ((t[i + 1u] << left) | ((t[i + 2u] >> 1u) >> right)) + (low >> 32u);
  auto top = m * ((t[i] << left) | ((t[i + 1u] >> 1u) >> right)) + u32(middle >> 32u);
  auto n = (top + 0x20000000u) >> 30u;
  auto f = (u64((top << 2u) | (u32(middle) >> 30u)) << 32u) | ((u32(middle) << 2u) | (u32(low) >> 30u));
  auto below = (f >> 63u) == 1ull;
  if (below) { f = 0ull - f; }
  auto g = two_sum_f32(f32(u32(f >> 40u)) * 5.9604645e-8f, f32(u32(f >> 16u) & 0xffffffu) * 3.5527137e-15f);
  auto p = two_product_f32(g.x, 1.5707964f);
  auto rest = g.y + f32(u32(f) & 0xffffu) * 5.421010862427522e-20f;
  auto r = fast_sum_f32(p.x, p.y + fma(g.x, -4.371139e-8f, rest * 1.5707964f));
  auto negative = x < 0.0f;
  return vec3<f32>(pick(r.x, -r.x, below != negative), pick(r.y, -r.y, below != negative), f32(pick(n, 4u - n, negative) & 3u));
}
"
// The sine as a pair, then the cosine as a pair. The second parts may be as large as 0.2 times the first ones.
sin_cos_f32: "vec4<f32> sin_cos_f32(f32 x) {
  auto p = quarters_f32(x); auto r = p.x; auto z = r * r; auto h = 0.5f * z; auto w = (1.0f - h);
  auto s = fma(r * z, fma(fma(-0.00019587757f, z, 0.008332748f), z, -0.16666664f), p.y);
  auto c = fma(z * z, fma(fma(2.4547748e-5f, z, -0.0013888302f), z, 0.041666664f), -r * p.y);
  auto y = vec4<f32>(r, s, w, ((1.0f - w) - h) + c);
  auto n = u32(p.z);
  if ((n & 1u) == 1u) { y = vec4<f32>(y.z, y.w, -y.x, -y.y); }
  return pick(y, -y, (n & 2u) == 2u);
}
"
sin_f32: "f32 sin_f32(f32 x) {
  if (!is_finite_f32(x)) { return f32_of(0x7fc00000u); }
  if (x == 0.0f) { return x; }
  auto y = sin_cos_f32(x);
  return y.x + y.y;
}
"
cos_f32: "f32 cos_f32(f32 x) {
  if (!is_finite_f32(x)) { return f32_of(0x7fc00000u); }
  auto y = sin_cos_f32(x);
  return y.z + y.w;
}
"
tan_f32: "f32 tan_f32(f32 x) {
  if (!is_finite_f32(x)) { return f32_of(0x7fc00000u); }
  if (x == 0.0f) { return x; }
  auto y = sin_cos_f32(x); auto q = quotient_f32(fast_sum_f32(y.x, y.y), fast_sum_f32(y.z, y.w));
  return q.x + q.y;
}
"
atan_f32: "f32 atan_f32(f32 x) {
  if (is_nan_f32(x)) { return x; }
  auto a = min(fabs(x), 1e10f); auto outer = a > 1.0f;
  auto t = vec2<f32>(a, 0.0f);
  if (outer) { t = quotient_f32(vec2<f32>(1.0f, 0.0f), t); }
  auto z = t.x * t.x;
  auto r = fma(t.x * z, fma(fma(fma(fma(fma(fma(fma(fma(-0.0025085679f, z, 0.013996447f), z, -0.036670223f), z, 0.063182145f), z, -0.086890414f), z, 0.110420346f), z, -0.14279616f), z, 0.1999979f), z, -0.3333333f), t.y);
  auto s = two_sum_f32(1.5707964f, -t.x);
  return with_sign_f32(pick(t.x + r, s.x + (s.y + (-4.371139e-8f - r)), outer), x);
}
"
// The arcsine of `a` if `a` is at most 0.5, otherwise half the arccosine of `a`.
asin_pair_f32: "vec2<f32> asin_pair_f32(f32 a) {
  auto t = vec2<f32>(a, 0.0f); auto z = a * a;
  if (a > 0.5f) { z = 0.5f - 0.5f * a; t = root_f32(vec2<f32>(z, 0.0f)); }
  auto q = fma(fma(fma(fma(0.03832832f, z, 0.026433352f), z, 0.04502022f), z, 0.07498761f), z, 0.16666673f);
  return vec2<f32>(t.x, fma(t.x * z, q, t.y));
}
"
asin_f32: "f32 asin_f32(f32 x) {
  auto a = fabs(x);
  if (!(a <= 1.0f) || is_nan_f32(x)) { return f32_of(0x7fc00000u); }
  auto p = asin_pair_f32(a); auto s = two_sum_f32(1.5707964f, -2.0f * p.x);
  return with_sign_f32(pick(p.x + p.y, s.x + (s.y + (-4.371139e-8f - 2.0f * p.y)), a > 0.5f), x);
}
"
acos_f32: "f32 acos_f32(f32 x) {
  auto a = fabs(x);
  if (!(a <= 1.0f) || is_nan_f32(x)) { return f32_of(0x7fc00000u); }
  auto p = asin_pair_f32(a); auto g = pick(-p, p, x < 0.0f);
  if (a <= 0.5f) { auto s = two_sum_f32(1.5707964f, g.x); return s.x + (s.y + (-4.371139e-8f + g.y)); }
  if (x > 0.0f) { return 2.0f * (p.x + p.y); }
  auto s = two_sum_f32(3.1415927f, -2.0f * p.x);
  return s.x + (s.y + (-8.742278e-8f - 2.0f * p.y));
}
"
// exp(a^2) * erfc(a) * (a + 3) is a polynomial in t = (a - 3) / (a + 3).
erfc_f32: "f32 erfc_f32(f32 x) {
  if (is_nan_f32(x)) { return x; }
  auto a = min(fabs(x), 10.1f); auto d = two_sum_f32(a, 3.0f);
  auto t = quotient_f32(two_sum_f32(a, -3.0f), d); auto u = quotient_f32(vec2<f32>(1.0f, 0.0f), d);
  auto r = fma(fma(fma(fma(fma(fma(fma(fma(7.011684e-6f, t.x, -0.00031402957f), t.x, -0.00048512872f), t.x, 0.0030712471f), t.x, -0.0012272131f), t.x, -0.026837263f), t.x, 0.11952933f), t.x, -0.3104663f), t.x, 0.59022826f);
  auto o = two_product_f32(t.x, r); auto q = two_sum_f32(-0.8833945f, o.x); auto q_low = q.y + (o.y + 1.929298e-9f);
  auto p = two_product_f32(t.x, q.x); auto g = two_sum_f32(1.0740069f, p.x);
  auto g_low = g.y + (p.y - 7.265621e-9f) + fma(t.x, q_low, t.y * (2.0f * q.x + 0.8833945f));
  auto h = two_product_f32(g.x, u.x); auto h_low = h.y + fma(g.x, u.y, g_low * u.x);
  auto z = two_product_f32(a, a); auto e = exp_pair_f32(-z); auto y = two_product_f32(h.x, e.x);
  auto small = scaled_f32(y.x + (y.y + fma(h.x, e.y, h_low * e.x)), e.z);
  return pick(small, 2.0f - small, x < 0.0f);
}
"
// ln(a) with a relative error of some 2^-33: 2 s + s^3 (2/3 + ...), with s = (m - 1) / (m + 1) for the mantissa m.
ln_pair_f32: "vec2<f32> ln_pair_f32(f32 a) {
  auto m = split_f32(a); auto e = m.x; auto q = quotient_f32(vec2<f32>(m.y, 0.0f), two_sum_f32(2.0f, m.y));
  auto s = fast_sum_f32(q.x, q.y); auto z = two_product_f32(s.x, s.x); auto z_low = fma(2.0f * s.x, s.y, z.y);
  auto c = two_sum_f32(0.6666667f, z.x * fma(fma(0.23050584f, z.x, 0.28562167f), z.x, 0.40000015f));
  auto p = two_product_f32(s.x, z.x); auto p_low = p.y + fma(s.x, z_low, s.y * z.x);
  auto t = two_product_f32(p.x, c.x); auto t_low = t.y + fma(p.x, c.y - 1.9868216e-8f, p_low * c.x);
  auto k = two_product_f32(e, 1.4286068e-6f);
  auto u = two_sum_f32(e * 0.69314575f, 2.0f * s.x); auto v = two_sum_f32(k.x, t.x); auto w = two_sum_f32(u.x, v.x);
  return fast_sum_f32(w.x, w.y + (u.y + v.y + (2.0f * s.y + t_low + k.y)));
}
"
pow_f32: "f32 pow_f32(f32 x, f32 y) {
  if (x == 1.0f || y == 0.0f) { return 1.0f; }
  if (is_nan_f32(x) || is_nan_f32(y)) { return f32_of(0x7fc00000u); }
  auto a = fabs(x); auto b = fabs(y);
  auto whole = b >= 8388608.0f || trunc(b) == b;
  auto odd = b < 16777216.0f && whole && !(trunc(0.5f * b) == 0.5f * b);
  if (x < 0.0f && is_finite_f32(x) && !whole) {
    if (is_finite_f32(y)) { return f32_of(0x7fc00000u); }
  }
  f32 p;
  if (a == 1.0f) { p = 1.0f; }
  else if (!is_finite_f32(y)) { p = pick(0.0f, f32_of(0x7f800000u), (a > 1.0f) == (y > 0.0f)); }
  else if (a == 0.0f || !is_finite_f32(a)) { p = pick(0.0f, f32_of(0x7f800000u), (a == 0.0f) == (y < 0.0f)); }
  else {
    auto l = ln_pair_f32(a); auto first = y * l.x;
    if (first > 90.0f) { p = f32_of(0x7f800000u); }
    else if (first < -110.0f) { p = 0.0f; }
    else { auto t = two_product_f32(y, l.x); p = exp_scaled_f32(vec2<f32>(t.x, fma(y, l.y, t.y)), 0.0f); }
  }
  return pick(p, bitcast<f32>(bitcast<u32>(p) | (bitcast<u32>(x) & 0x80000000u)), odd);
}
"
}
