//! The functions that kernels call, except those of `pairs` (f32) and `functions64` (f64).
//!
//! The coefficients of `exp`, `exp2`, the logarithms, `sigmoid` and `erf` are those of the CPU backend. Programs are
//! compiled without contraction of multiplications and additions, so a rounding error can be computed by subtraction;
//! where a product and a sum are rounded once, the text says `fma`. `pick(a, b, c)` is `b` if `c`, otherwise `a`.

library! {
f32_of: "f32 f32_of(u32 b) { return bitcast<f32>(b); }
"
f64_of: "f64 f64_of(u64 b) { return bitcast<f64>(b); }
"
f32_to_odd: "f32 f32_to_odd(f64 v) {
  auto n = f32(v);
  if (is_nan_f64(v) || f64(n) == v) { return n; }
  auto beyond = pick(0u, 1u, fabs(f64(n)) > fabs(v));
  return bitcast<f32>((bitcast<u32>(n) - beyond) | 1u);
}
"
is_nan_f32: "bool is_nan_f32(f32 x) { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
"
is_nan_f64: "bool is_nan_f64(f64 x) { return (bitcast<u64>(x) & 0x7fffffffffffffffull) > 0x7ff0000000000000ull; }
"
is_finite_f32: "bool is_finite_f32(f32 x) { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
"
is_finite_f64: "bool is_finite_f64(f64 x) { return (bitcast<u64>(x) & 0x7fffffffffffffffull) < 0x7ff0000000000000ull; }
"
with_sign_f32: "f32 with_sign_f32(f32 y, f32 x) { return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u)); }
"
with_sign_f64: "f64 with_sign_f64(f64 y, f64 x) { return bitcast<f64>(bitcast<u64>(y) | (bitcast<u64>(x) & 0x8000000000000000ull)); }
"
sign_f32: "f32 sign_f32(f32 x) { if (x == 0.0f || is_nan_f32(x)) { return x; } return with_sign_f32(1.0f, x); }
"
sign_f64: "f64 sign_f64(f64 x) { if (x == 0.0 || is_nan_f64(x)) { return x; } return with_sign_f64(1.0, x); }
"
round_f16_f32: "f32 round_f16_f32(f32 x) { return wide(To<f16>::of(x)); }
"
round_bf16_f32: "f32 round_bf16_f32(f32 x) { return wide(To<bf16>::of(x)); }
"
round_f16_f64: "f64 round_f16_f64(f64 x) { return round_f16_f32(f32_to_odd(x)); }
"
round_bf16_f64: "f64 round_bf16_f64(f64 x) { return round_bf16_f32(f32_to_odd(x)); }
"
floored_f32: "f32 floored_f32(f32 x) { return floor(x); }
"
ceiled_f32: "f32 ceiled_f32(f32 x) { return ceil(x); }
"
rounded_f32: "f32 rounded_f32(f32 x) { return rint(x); }
"
truncated_f32: "f32 truncated_f32(f32 x) { return trunc(x); }
"
floored_f64: "f64 floored_f64(f64 x) { return floor(x); }
"
ceiled_f64: "f64 ceiled_f64(f64 x) { return ceil(x); }
"
rounded_f64: "f64 rounded_f64(f64 x) { return rint(x); }
"
truncated_f64: "f64 truncated_f64(f64 x) { return trunc(x); }
"
divided_f32: "f32 divided_f32(f32 a, f32 b) { return a / b; }
"
divided_f64: "f64 divided_f64(f64 a, f64 b) { return a / b; }
"
recip_f32: "f32 recip_f32(f32 x) { return divided_f32(1.0f, x); }
"
recip_f64: "f64 recip_f64(f64 x) { return divided_f64(1.0, x); }
"
sqrt_f32: "f32 sqrt_f32(f32 x) { return sqrt(x); }
"
sqrt_f64: "f64 sqrt_f64(f64 x) { return sqrt(x); }
"
larger_f32: "f32 larger_f32(f32 a, f32 b) {
  if (is_nan_f32(a)) { return a; }
  return pick(b, a, a > b || (a == b && (bitcast<u32>(b) >> 31u) == 1u));
}
"
smaller_f32: "f32 smaller_f32(f32 a, f32 b) {
  if (is_nan_f32(a)) { return a; }
  return pick(b, a, a < b || (a == b && (bitcast<u32>(a) >> 31u) == 1u));
}
"
larger_f64: "f64 larger_f64(f64 a, f64 b) {
  if (is_nan_f64(a)) { return a; }
  return pick(b, a, a > b || (a == b && (bitcast<u64>(b) >> 63u) == 1ull));
}
"
smaller_f64: "f64 smaller_f64(f64 a, f64 b) {
  if (is_nan_f64(a)) { return a; }
  return pick(b, a, a < b || (a == b && (bitcast<u64>(a) >> 63u) == 1ull));
}
"
fmod_f32: "f32 fmod_f32(f32 x, f32 y) {
  auto s = bitcast<u32>(x) & 0x80000000u; auto ax = bitcast<u32>(x) & 0x7fffffffu; auto ay = bitcast<u32>(y) & 0x7fffffffu;
  if (ay == 0u || ax >= 0x7f800000u || ay > 0x7f800000u) { return f32_of(0x7fc00000u); }
  if (ax < ay) { return x; }
  auto ex = i32(ax >> 23u); auto ey = i32(ay >> 23u);
  auto mx = ax & 0x7fffffu; auto my = ay & 0x7fffffu;
  if (ex == 0) { ex = 1; } else { mx = mx | 0x800000u; }
  if (ey == 0) { ey = 1; } else { my = my | 0x800000u; }
  while (ex > ey) { mx = mx % my; auto k = min(ex - ey, 8); mx = mx << u32(k); ex = ex - k; }
  mx = mx % my;
  if (mx == 0u) { return bitcast<f32>(s); }
  while (mx < 0x800000u && ex > 1) { mx = mx << 1u; ex = ex - 1; }
  auto e = pick(0u, u32(ex), mx >= 0x800000u);
  return bitcast<f32>(s | (e << 23u) | (mx & 0x7fffffu));
}
"
fmod_f64: "f64 fmod_f64(f64 x, f64 y) {
  auto s = bitcast<u64>(x) & 0x8000000000000000ull; auto ax = bitcast<u64>(x) & 0x7fffffffffffffffull; auto ay = bitcast<u64>(y) & 0x7fffffffffffffffull;
  if (ay == 0ull || ax >= 0x7ff0000000000000ull || ay > 0x7ff0000000000000ull) { return f64_of(0x7ff8000000000000ull); }
  if (ax < ay) { return x; }
  auto ex = i32(ax >> 52u); auto ey = i32(ay >> 52u);
  auto mx = ax & 0xfffffffffffffull; auto my = ay & 0xfffffffffffffull;
  if (ex == 0) { ex = 1; } else { mx = mx | 0x10000000000000ull; }
  if (ey == 0) { ey = 1; } else { my = my | 0x10000000000000ull; }
  while (ex > ey) { mx = mx % my; auto k = min(ex - ey, 11); mx = mx << u32(k); ex = ex - k; }
  mx = mx % my;
  if (mx == 0ull) { return bitcast<f64>(s); }
  while (mx < 0x10000000000000ull && ex > 1) { mx = mx << 1u; ex = ex - 1; }
  auto e = pick(0ull, u64(ex), mx >= 0x10000000000000ull);
  return bitcast<f64>(s | (e << 52u) | (mx & 0xfffffffffffffull));
}
"
remainder_f32: "f32 remainder_f32(f32 a, f32 b) { auto r = fmod_f32(a, b); return pick(r, r + b, r != 0.0f && (r < 0.0f) != (b < 0.0f)); }
"
remainder_f64: "f64 remainder_f64(f64 a, f64 b) { auto r = fmod_f64(a, b); return pick(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0)); }
"
floor_div_f32: "f32 floor_div_f32(f32 a, f32 b) {
  if (!is_finite_f32(a) || is_nan_f32(b) || b == 0.0f) { if (b == 0.0f || is_nan_f32(a)) { return divided_f32(a, b); } return f32_of(0x7fc00000u); }
  if (!is_finite_f32(b)) { if ((a < 0.0f && b > 0.0f) || (a > 0.0f && b < 0.0f)) { return -1.0f; } return divided_f32(a, b); }
  auto q = floor(divided_f32(a, b));
  auto r = fmod_f32(a, b); auto m = pick(r, r + b, r != 0.0f && (r < 0.0f) != (b < 0.0f));
  if (fabs(q) > 16777216.0f) { return q; }
  auto whole = rint(divided_f32(a - m, b));
  return pick(whole, q, whole == 0.0f && q == 0.0f);
}
"
floor_div_f64: "f64 floor_div_f64(f64 a, f64 b) {
  if (!is_finite_f64(a) || is_nan_f64(b) || b == 0.0) { if (b == 0.0 || is_nan_f64(a)) { return divided_f64(a, b); } return f64_of(0x7ff8000000000000ull); }
  if (!is_finite_f64(b)) { if ((a < 0.0 && b > 0.0) || (a > 0.0 && b < 0.0)) { return -1.0; } return divided_f64(a, b); }
  auto q = floor(divided_f64(a, b));
  auto r = fmod_f64(a, b); auto m = pick(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
  if (fabs(q) > 9007199254740992.0) { return q; }
  auto whole = rint(divided_f64(a - m, b));
  return pick(whole, q, whole == 0.0 && q == 0.0);
}
"
scaled_f32: "f32 scaled_f32(f32 p, f32 n) {
  auto k = i32(n); auto h = k >> 1u;
  return p * bitcast<f32>(u32(h + 127) << 23u) * bitcast<f32>(u32(k - h + 127) << 23u);
}
"
poly_exp_f32: "f32 poly_exp_f32(f32 r) {
  return fma(fma(fma(fma(fma(0.0013820466f, r, 0.008368685f), r, 0.04166827f), r, 0.16666521f), r, 0.49999994f), r, 1.0f);
}
"
// `t` is rounded to a whole number, because its last place is 1. Its last 9 bits are those of `n + 254` here and of `n + 191`
// in `sigmoid_parts_f32`, the exponent of a power of two.
exp_f32: "f32 exp_f32(f32 x0) {
  auto x = max_or_nan(min_or_nan(x0, 89.0f), -104.0f);
  auto t = fma(x, 1.442695f, 12583166.0f); auto n = t - 12583166.0f;
  auto r = fma(n, -1.4286068203094173e-06f, (fma(n, -0.69314575f, x)));
  auto half = (bitcast<u32>(t) << 22u) & 0xff800000u;
  return fma(r, poly_exp_f32(r), 1.0f) * bitcast<f32>(half) * bitcast<f32>((bitcast<u32>(t) << 23u) - half);
}
"
exp2_f32: "f32 exp2_f32(f32 x0) {
  auto v = (x0);
  if (is_nan_f32(v)) { return v; }
  auto x = max(min(v, 129.0f), -151.0f);
  auto n = rint(x); auto r = x - n;
  auto p = fma(fma(fma(fma(fma(fma(0.00015328925f, r, 0.0013390972f), r, 0.0096185f), r, 0.055503596f), r, 0.24022648f), r, 0.6931472f), r, 1.0f);
  return scaled_f32(p, n);
}
"
// `exp(-|x|)` times 2^64, so that it is not subnormal, `1 + exp(-|x|)`, the rounding errors of both, and an approximation of the
// reciprocal of the latter.
sigmoid_parts_f32: "SigmoidParts sigmoid_parts_f32(f32 x) {
  auto v = max_or_nan(-fabs(x), -104.0f);
  auto t = fma(v, 1.442695f, 12583103.0f); auto n = t - 12583103.0f;
  auto r = fma(n, -1.4286068203094173e-06f, (fma(n, -0.69314575f, v)));
  auto q = r * poly_exp_f32(r); auto s = bitcast<f32>(bitcast<u32>(t) << 23u);
  auto e = fma(s, q, s); auto low = fma(s, q, s - e);
  auto p = e * 5.421010862427522e-20f; auto d = 1.0f + p; auto d_low = fma(low, 5.421010862427522e-20f, (1.0f - d) + p);
  return SigmoidParts{e, low, d, d_low, near_recip(d)};
}
"
// `sigmoid(|x|)` if `up`, otherwise `sigmoid(-|x|)`.
sigmoid_of_f32: "f32 sigmoid_of_f32(SigmoidParts p, bool up) {
  auto a = pick(p.e, 18446744073709551616.0f, up); auto y = a * p.recip;
  auto left = fma(-p.d_low, y, fma(-p.d, y, a) + pick(p.low, 0.0f, up));
  return fma(left, p.recip, y) * 5.421010862427522e-20f;
}
"
sigmoid_f32: "f32 sigmoid_f32(f32 x) { return sigmoid_of_f32(sigmoid_parts_f32(x), x >= 0.0f); }
"
sigmoid_neg_f32: "f32 sigmoid_neg_f32(f32 x) { return sigmoid_of_f32(sigmoid_parts_f32(x), x <= 0.0f); }
"
split_f32: "vec2<f32> split_f32(f32 x) {
  auto tiny = x < 1.17549435e-38f;
  auto bits = pick(bitcast<u32>(x), bitcast<u32>(x * 8388608.0f), tiny);
  auto offset = bits - 0x3f3504f3u;
  auto e = f32(bitcast<i32>(offset) >> 23u) - pick(0.0f, 23.0f, tiny);
  return vec2<f32>(e, bitcast<f32>(bits - (offset & 0xff800000u)) - 1.0f);
}
"
special_log_f32: "f32 special_log_f32(f32 x, f32 y) {
  if (is_nan_f32(x) || x < 0.0f) { return f32_of(0x7fc00000u); }
  if (x == 0.0f) { return f32_of(0xff800000u); }
  return pick(x, y, is_finite_f32(x));
}
"
// ln(2^e * (1 + f + d)) as a pair, where `d` is far below the last place of `f`.
ln_parts_f32: "vec2<f32> ln_parts_f32(f32 e, f32 f, f32 d) {
  auto a = e * 0.69314575f; auto hi = (a + f); auto lo = ((a - hi) + f) + d;
  auto q = fma(fma(fma(fma(fma(fma(fma(fma(-0.07772832f, f, 0.12989086f), f, -0.13223101f), f, 0.14166996f), f, -0.16609633f), f, 0.20002769f), f, -0.2500159f), f, 0.33333313f), f, -0.49999988f);
  return vec2<f32>(hi, fma(f * f, q, fma(e, 1.4286068203094173e-06f, lo)));
}
"
log_f32: "f32 log_f32(f32 x) {
  auto p = split_f32(x); auto l = ln_parts_f32(p.x, p.y, 0.0f);
  return special_log_f32(x, l.x + l.y);
}
"
product_error_f32: "f32 product_error_f32(f32 a, f32 b, f32 p) { return fma(a, b, -p); }
"
log2_f32: "f32 log2_f32(f32 x) {
  auto s = split_f32(x); auto e = s.x; auto f = s.y;
  auto p = f * 1.442695f; auto p_lo = product_error_f32(f, 1.442695f, p);
  auto hi = (e + p); auto lo = ((e - hi) + p) + p_lo;
  auto q = fma(fma(fma(fma(fma(fma(fma(fma(-0.110624894f, f, 0.18663162f), f, -0.19105905f), f, 0.20453905f), f, -0.23960464f), f, 0.2885691f), f, -0.3606976f), f, 0.48089826f), f, -0.72134733f);
  return special_log_f32(x, hi + fma(f * f, q, fma(f, 1.9259629911266175e-08f, lo)));
}
"
log10_f32: "f32 log10_f32(f32 x) {
  auto s = split_f32(x); auto e = s.x; auto f = s.y;
  auto p = f * 0.4342945f; auto p_lo = product_error_f32(f, 0.4342945f, p);
  auto a = e * bitcast<f32>(0x3e9a2000u); auto hi = (a + p); auto lo = ((a - hi) + p) + p_lo;
  auto q = fma(fma(fma(fma(fma(fma(fma(fma(-0.033578843f, f, 0.056303255f), f, -0.057457343f), f, 0.06154939f), f, -0.07213281f), f, 0.08686928f), f, -0.10858062f), f, 0.14476478f), f, -0.21714719f);
  return special_log_f32(x, hi + fma(f * f, q, fma(f, -1.0103050052231683e-08f, fma(e, 4.605038981195214e-06f, lo))));
}
"
log1p_f32: "f32 log1p_f32(f32 x) {
  if (fabs(x) < 2.98023224e-08f) { return x; }
  auto l = log1p_pair_f32(vec2<f32>(x, 0.0f));
  return special_log_f32(1.0f + x, l.x + l.y);
}
"
rsqrt_f32: "f32 rsqrt_f32(f32 x) {
  auto y = divided_f32(1.0f, sqrt(x));
  if (!(x > 0.0f) || !is_finite_f32(x) || is_nan_f32(x)) { return y; }
  auto h = x * y; auto h_lo = product_error_f32(x, y, h);
  auto p = h * y; auto p_lo = product_error_f32(h, y, p);
  auto residual = ((1.0f - p) - p_lo) - h_lo * y;
  auto refined = fma(0.5f * y, residual, y);
  return pick(y, refined, is_finite_f32(refined));
}
"
erf_f32: "f32 erf_f32(f32 x) {
  if (is_nan_f32(x)) { return x; }
  auto a = fabs(x); auto z = a * a;
  auto p = fma(fma(fma(fma(fma(fma(7.920368e-5f, z, -0.00080307614f), z, 0.005190734f), z, -0.026855126f), z, 0.11283618f), z, -0.3761263f), z, 0.12837917f);
  auto b = min(a, 4.0f);
  auto g = fma(fma(fma(fma(fma(fma(1.4151954e-5f, b, -0.00035250993f), b, 0.0037653684f), b, -0.024026975f), b, 0.10655077f), b, 0.6349573f), b, 1.1286974f);
  return with_sign_f32(pick(1.0f - exp_f32(-b * g), fma(a, p, a), a < 1.0f), x);
}
"
cos_turn_f32: "f32 cos_turn_f32(u32 w) {
  auto n = ((w >> 29u) + 1u) >> 1u;
  auto r = f32(bitcast<i32>(w - (n << 30u))) * 1.4629180792671596e-09f; auto z = r * r;
  auto s = r * fma(fma(fma(fma(2.718311493989822e-06f, z, -0.00019839334836096632f), z, 0.008333329385889463f), z, -0.16666666641626524f), z, 1.0f);
  auto c = fma(fma(fma(fma(2.443315711809948e-05f, z, -0.001388731625493765f), z, 0.041666623323739063f), z, -0.499999997251031f), z, 1.0f);
  auto y = pick(c, s, (n & 1u) == 1u);
  return pick(y, -y, ((n + 1u) & 2u) != 0u);
}
"
}
