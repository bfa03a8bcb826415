//! The functions that kernels call, except those of `pairs` (f32), `words` (64-bit integers) and `functions64` (f64).
//!
//! The coefficients of `exp`, `exp2`, the logarithms, `sigmoid` and `erf` are those of the CPU backend. If the driver
//! does not fuse multiply-adds, these functions lose up to half a unit in the last place. No function relies on the
//! driver's own elementary functions, or on its treatment of NaN.
//!
//! The roundings of f64 are written out: on processors without AVX-512, Mesa's driver loses the sign of zero and rounds no
//! large numbers.
//!
//! Drivers may reassociate: Mesa turns `(a + b) - a` into `b`, and `a * b + a * c` into `a * (b + c)`. Where a rounding
//! error is computed, the sum therefore goes through `opaque`, which combines it with a zero that no compiler can
//! predict.

library! {
opaque_f32: "fn opaque_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ ZERO()); }
"
opaque_f64: "fn opaque_f64(x: f64) -> f64 { return bitcast<f64>(bitcast<u64>(x) ^ u64(ZERO())); }
"
f32_of: "fn f32_of(b: u32) -> f32 { var v = b; return bitcast<f32>(v); }
"
f64_of: "fn f64_of(b: u64) -> f64 { var v = b; return bitcast<f64>(v); }
"
f32_from_f16: "fn f32_from_f16(h: u32) -> f32 {
  let s = (h & 0x8000u) << 16u; let e = (h >> 10u) & 31u; let m = h & 0x3ffu;
  if (e == 0u) { return bitcast<f32>(s | bitcast<u32>(f32(m) * 5.9604645e-8f)); }
  return bitcast<f32>(s | (select(e + 112u, 255u, e == 31u) << 23u) | (m << 13u));
}
"
f16_from_f32: "fn f16_from_f32(x: f32) -> u32 {
  let b = bitcast<u32>(x); let s = (b >> 16u) & 0x8000u; let a = b & 0x7fffffffu;
  if (a > 0x7f800000u) { return s | 0x7e00u; }
  if (a >= 0x477ff000u) { return s | 0x7c00u; }
  if (a >= 0x38800000u) { let r = a - 0x38000000u; return s | ((r + 0xfffu + ((r >> 13u) & 1u)) >> 13u); }
  if (a < 0x33000000u) { return s; }
  let m = (a & 0x7fffffu) | 0x800000u; let sh = 126u - (a >> 23u);
  let q = m >> sh; let rest = m & ((1u << sh) - 1u); let half = 1u << (sh - 1u);
  return s | (q + select(0u, 1u, rest > half || (rest == half && (q & 1u) == 1u)));
}
"
bf16_from_f32: "fn bf16_from_f32(x: f32) -> u32 {
  let b = bitcast<u32>(x); let h = b >> 16u;
  return select((b + 0x7fffu + (h & 1u)) >> 16u, h | 0x40u, is_nan_f32(x));
}
"
round_f16_f32: "fn round_f16_f32(x: f32) -> f32 { return f32_from_f16(f16_from_f32(x)); }
"
round_bf16_f32: "fn round_bf16_f32(x: f32) -> f32 { return f32_of(bf16_from_f32(x) << 16u); }
"
round_f16_f64: "fn round_f16_f64(x: f64) -> f64 { return f64(round_f16_f32(f32_to_odd(x))); }
"
round_bf16_f64: "fn round_bf16_f64(x: f64) -> f64 { return f64(round_bf16_f32(f32_to_odd(x))); }
"
f32_to_odd: "fn f32_to_odd(v: f64) -> f32 {
  let n = f32(v);
  if (is_nan_f64(v) || f64(n) == v) { return n; }
  let beyond = select(0u, 1u, abs(f64(n)) > abs(v));
  return bitcast<f32>((bitcast<u32>(n) - beyond) | 1u);
}
"
is_nan_f32: "fn is_nan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
"
is_nan_f64: "fn is_nan_f64(x: f64) -> bool { return (bitcast<u64>(x) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu; }
"
is_finite_f32: "fn is_finite_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
"
is_finite_f64: "fn is_finite_f64(x: f64) -> bool { return (bitcast<u64>(x) & 0x7ffffffffffffffflu) < 0x7ff0000000000000lu; }
"
with_sign_f32: "fn with_sign_f32(y: f32, x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u)); }
"
with_sign_f64: "fn with_sign_f64(y: f64, x: f64) -> f64 { return bitcast<f64>(bitcast<u64>(y) | (bitcast<u64>(x) & 0x8000000000000000lu)); }
"
sign_f32: "fn sign_f32(x: f32) -> f32 { if (x == 0.0f || is_nan_f32(x)) { return x; } return with_sign_f32(1.0f, x); }
"
sign_f64: "fn sign_f64(x: f64) -> f64 { if (x == 0.0lf || is_nan_f64(x)) { return x; } return with_sign_f64(1.0lf, x); }
"
floored_f32: "fn floored_f32(x: f32) -> f32 { return floor(x); }
"
ceiled_f32: "fn ceiled_f32(x: f32) -> f32 { return ceil(x); }
"
rounded_f32: "fn rounded_f32(x: f32) -> f32 { return round(x); }
"
truncated_f32: "fn truncated_f32(x: f32) -> f32 { return trunc(x); }
"
floored_f64: "fn floored_f64(x: f64) -> f64 { let t = truncated_f64(x); return select(t, t - 1.0lf, t > x); }
"
ceiled_f64: "fn ceiled_f64(x: f64) -> f64 { let t = truncated_f64(x); return select(t, t + 1.0lf, t < x); }
"
rounded_f64: "fn rounded_f64(x: f64) -> f64 {
  let t = truncated_f64(x); let rest = abs(x - t);
  let odd = truncated_f64(0.5lf * t) != 0.5lf * t;
  return with_sign_f64(abs(t) + select(0.0lf, 1.0lf, rest > 0.5lf || (rest == 0.5lf && odd)), x);
}
"
truncated_f64: "fn truncated_f64(x: f64) -> f64 {
  let bits = bitcast<u64>(x); let e = i32(u32(bits >> 52u) & 2047u) - 1023;
  if (e >= 52) { return x; }
  if (e < 0) { return with_sign_f64(0.0lf, x); }
  let s = u32(52 - e); return bitcast<f64>((bits >> s) << s);
}
"
divided_f32: "fn divided_f32(a: f32, b: f32) -> f32 { return a / b; }
"
divided_f64: "fn divided_f64(a: f64, b: f64) -> f64 { return a / b; }
"
recip_f32: "fn recip_f32(x: f32) -> f32 { return nearest_quotient_f32(1.0f, x); }
"
recip_f64: "fn recip_f64(x: f64) -> f64 { return divided_f64(1.0lf, x); }
"
sqrt_f32: "fn sqrt_f32(x: f32) -> f32 { return nearest_root_f32(x); }
"
sqrt_f64: "fn sqrt_f64(x: f64) -> f64 { return sqrt(x); }
"
larger_f32: "fn larger_f32(a: f32, b: f32) -> f32 {
  if (is_nan_f32(a)) { return a; }
  return select(b, a, a > b || (a == b && (bitcast<u32>(b) >> 31u) == 1u));
}
"
smaller_f32: "fn smaller_f32(a: f32, b: f32) -> f32 {
  if (is_nan_f32(a)) { return a; }
  return select(b, a, a < b || (a == b && (bitcast<u32>(a) >> 31u) == 1u));
}
"
larger_f64: "fn larger_f64(a: f64, b: f64) -> f64 {
  if (is_nan_f64(a)) { return a; }
  return select(b, a, a > b || (a == b && (bitcast<u64>(b) >> 63u) == 1lu));
}
"
smaller_f64: "fn smaller_f64(a: f64, b: f64) -> f64 {
  if (is_nan_f64(a)) { return a; }
  return select(b, a, a < b || (a == b && (bitcast<u64>(a) >> 63u) == 1lu));
}
"
divided_i32: "fn divided_i32(a: i32, b: i32) -> i32 { if (b == 0) { fail(); return 0; } if (b == -1) { return -a; } return a / b; }
"
divided_u32: "fn divided_u32(a: u32, b: u32) -> u32 { if (b == 0u) { fail(); return 0u; } return a / b; }
"
fmod_i32: "fn fmod_i32(a: i32, b: i32) -> i32 { return a - divided_i32(a, b) * b; }
"
fmod_u32: "fn fmod_u32(a: u32, b: u32) -> u32 { return a - divided_u32(a, b) * b; }
"
remainder_i32: "fn remainder_i32(a: i32, b: i32) -> i32 { let r = fmod_i32(a, b); return select(r, r + b, r != 0 && (r < 0) != (b < 0)); }
"
remainder_u32: "fn remainder_u32(a: u32, b: u32) -> u32 { return fmod_u32(a, b); }
"
floor_div_i32: "fn floor_div_i32(a: i32, b: i32) -> i32 { let q = divided_i32(a, b); let r = a - q * b; return select(q, q - 1, r != 0 && (r < 0) != (b < 0)); }
"
floor_div_u32: "fn floor_div_u32(a: u32, b: u32) -> u32 { return divided_u32(a, b); }
"
pow_i32: "fn pow_i32(a: i32, e: i32) -> i32 {
  if (e < 0) { fail(); return 0; }
  var x = a; var n = e; var y = 1i;
  while (n > 0) { if ((n & 1) == 1) { y = y * x; } x = x * x; n = n >> 1u; }
  return y;
}
"
pow_u32: "fn pow_u32(a: u32, e: u32) -> u32 {
  var x = a; var n = e; var y = 1u;
  while (n > 0u) { if ((n & 1u) == 1u) { y = y * x; } x = x * x; n = n >> 1u; }
  return y;
}
"
fmod_f32: "fn fmod_f32(x: f32, y: f32) -> f32 {
  let s = bitcast<u32>(x) & 0x80000000u; let ax = bitcast<u32>(x) & 0x7fffffffu; let ay = bitcast<u32>(y) & 0x7fffffffu;
  if (ay == 0u || ax >= 0x7f800000u || ay > 0x7f800000u) { return f32_of(0x7fc00000u); }
  if (ax < ay) { return x; }
  var ex = i32(ax >> 23u); var ey = i32(ay >> 23u);
  var mx = ax & 0x7fffffu; var my = ay & 0x7fffffu;
  if (ex == 0) { ex = 1; } else { mx = mx | 0x800000u; }
  if (ey == 0) { ey = 1; } else { my = my | 0x800000u; }
  while (ex > ey) { mx = mx % my; let k = min(ex - ey, 8); mx = mx << u32(k); ex = ex - k; }
  mx = mx % my;
  if (mx == 0u) { return bitcast<f32>(s); }
  while (mx < 0x800000u && ex > 1) { mx = mx << 1u; ex = ex - 1; }
  let e = select(0u, u32(ex), mx >= 0x800000u);
  return bitcast<f32>(s | (e << 23u) | (mx & 0x7fffffu));
}
"
fmod_f64: "fn fmod_f64(x: f64, y: f64) -> f64 {
  let s = bitcast<u64>(x) & 0x8000000000000000lu; let ax = bitcast<u64>(x) & 0x7ffffffffffffffflu; let ay = bitcast<u64>(y) & 0x7ffffffffffffffflu;
  if (ay == 0lu || ax >= 0x7ff0000000000000lu || ay > 0x7ff0000000000000lu) { return f64_of(0x7ff8000000000000lu); }
  if (ax < ay) { return x; }
  var ex = i32(ax >> 52u); var ey = i32(ay >> 52u);
  var mx = ax & 0xffffffffffffflu; var my = ay & 0xffffffffffffflu;
  if (ex == 0) { ex = 1; } else { mx = mx | 0x10000000000000lu; }
  if (ey == 0) { ey = 1; } else { my = my | 0x10000000000000lu; }
  while (ex > ey) { mx = mx % my; let k = min(ex - ey, 11); mx = mx << u32(k); ex = ex - k; }
  mx = mx % my;
  if (mx == 0lu) { return bitcast<f64>(s); }
  while (mx < 0x10000000000000lu && ex > 1) { mx = mx << 1u; ex = ex - 1; }
  let e = select(0lu, u64(ex), mx >= 0x10000000000000lu);
  return bitcast<f64>(s | (e << 52u) | (mx & 0xffffffffffffflu));
}
"
remainder_f32: "fn remainder_f32(a: f32, b: f32) -> f32 { let r = fmod_f32(a, b); return select(r, r + b, r != 0.0f && (r < 0.0f) != (b < 0.0f)); }
"
remainder_f64: "fn remainder_f64(a: f64, b: f64) -> f64 { let r = fmod_f64(a, b); return select(r, r + b, r != 0.0lf && (r < 0.0lf) != (b < 0.0lf)); }
"
floor_div_f32: "fn floor_div_f32(a: f32, b: f32) -> f32 {
  if (!is_finite_f32(a) || is_nan_f32(b) || b == 0.0f) { if (b == 0.0f || is_nan_f32(a)) { return divided_f32(a, b); } return f32_of(0x7fc00000u); }
  if (!is_finite_f32(b)) { if ((a < 0.0f && b > 0.0f) || (a > 0.0f && b < 0.0f)) { return -1.0f; } return divided_f32(a, b); }
  let q = floor(divided_f32(a, b));
  let r = fmod_f32(a, b); let m = select(r, r + b, r != 0.0f && (r < 0.0f) != (b < 0.0f));
  if (abs(q) > 16777216.0f) { return q; }
  let whole = round(divided_f32(a - m, b));
  return select(whole, q, whole == 0.0f && q == 0.0f);
}
"
floor_div_f64: "fn floor_div_f64(a: f64, b: f64) -> f64 {
  if (!is_finite_f64(a) || is_nan_f64(b) || b == 0.0lf) { if (b == 0.0lf || is_nan_f64(a)) { return divided_f64(a, b); } return f64_of(0x7ff8000000000000lu); }
  if (!is_finite_f64(b)) { if ((a < 0.0lf && b > 0.0lf) || (a > 0.0lf && b < 0.0lf)) { return -1.0lf; } return divided_f64(a, b); }
  let q = floored_f64(divided_f64(a, b));
  let r = fmod_f64(a, b); let m = select(r, r + b, r != 0.0lf && (r < 0.0lf) != (b < 0.0lf));
  if (abs(q) > 9007199254740992.0lf) { return q; }
  let whole = rounded_f64(divided_f64(a - m, b));
  return select(whole, q, whole == 0.0lf && q == 0.0lf);
}
"
scaled_f32: "fn scaled_f32(p: f32, n: f32) -> f32 {
  let k = i32(n); let h = k >> 1u;
  return p * bitcast<f32>(u32(h + 127) << 23u) * bitcast<f32>(u32(k - h + 127) << 23u);
}
"
poly_exp_f32: "fn poly_exp_f32(r: f32) -> f32 {
  return fma(fma(fma(fma(fma(0.0013820466f, r, 0.008368685f), r, 0.04166827f), r, 0.16666521f), r, 0.49999994f), r, 1.0f);
}
"
exp_f32: "fn exp_f32(x0: f32) -> f32 {
  let v = opaque_f32(x0);
  let x = max(min(v, 89.0f), -104.0f);
  let n = round(x * 1.442695f);
  let r = fma(n, -1.4286068203094173e-06f, opaque_f32(fma(n, -0.69314575f, x)));
  return select(scaled_f32(fma(r, poly_exp_f32(r), 1.0f), n), v, is_nan_f32(v));
}
"
exp2_f32: "fn exp2_f32(x0: f32) -> f32 {
  let v = opaque_f32(x0);
  let x = max(min(v, 129.0f), -151.0f);
  let n = round(x); let r = x - n;
  let p = fma(fma(fma(fma(fma(fma(0.00015328925f, r, 0.0013390972f), r, 0.0096185f), r, 0.055503596f), r, 0.24022648f), r, 0.6931472f), r, 1.0f);
  return select(scaled_f32(p, n), v, is_nan_f32(v));
}
"
sigmoid_f32: "fn sigmoid_f32(x: f32) -> f32 {
  let v = max(-abs(x), -104.0f); let n = round(v * 1.442695f);
  let r = fma(n, -1.4286068203094173e-06f, opaque_f32(fma(n, -0.69314575f, v)));
  let q = r * poly_exp_f32(r); let p = opaque_f32(1.0f + q);
  let k = i32(n); let h = k >> 1u;
  let e = p * bitcast<f32>(u32(h + 127) << 23u) * bitcast<f32>(u32(k - h + 127) << 23u);
  let low = e * ((1.0f - p) + q);
  let d = opaque_f32(1.0f + e); let d_low = ((1.0f - d) + e) + low;
  let up = x >= 0.0f; let y = select(e, 1.0f, up) / d;
  let near = y + (select(low, 0.0f, up) - y * d_low) * select(1.0f - y, y, up);
  return select(near, x, is_nan_f32(x));
}
"
sigmoid_neg_f32: "fn sigmoid_neg_f32(x: f32) -> f32 { return sigmoid_f32(-x); }
"
split_f32: "fn split_f32(x: f32) -> vec2<f32> {
  let tiny = x < 1.17549435e-38f;
  let bits = select(bitcast<u32>(x), bitcast<u32>(x * 8388608.0f), tiny);
  let offset = bits - 0x3f3504f3u;
  let e = f32(bitcast<i32>(offset) >> 23u) - select(0.0f, 23.0f, tiny);
  return vec2<f32>(e, bitcast<f32>(bits - (offset & 0xff800000u)) - 1.0f);
}
"
special_log_f32: "fn special_log_f32(x: f32, y: f32) -> f32 {
  if (is_nan_f32(x) || x < 0.0f) { return f32_of(0x7fc00000u); }
  if (x == 0.0f) { return f32_of(0xff800000u); }
  return select(x, y, is_finite_f32(x));
}
"
// ln(2^e * (1 + f + d)) as a pair, where `d` is far below the last place of `f`.
ln_parts_f32: "fn ln_parts_f32(e: f32, f: f32, d: f32) -> vec2<f32> {
  let a = e * 0.69314575f; let hi = opaque_f32(a + f); let lo = ((a - hi) + f) + d;
  let q = fma(fma(fma(fma(fma(fma(fma(fma(-0.07772832f, f, 0.12989086f), f, -0.13223101f), f, 0.14166996f), f, -0.16609633f), f, 0.20002769f), f, -0.2500159f), f, 0.33333313f), f, -0.49999988f);
  return vec2<f32>(hi, fma(f * f, q, fma(e, 1.4286068203094173e-06f, lo)));
}
"
log_f32: "fn log_f32(x: f32) -> f32 {
  let p = split_f32(x); let l = ln_parts_f32(p.x, p.y, 0.0f);
  return special_log_f32(x, l.x + l.y);
}
"
product_error_f32: "fn product_error_f32(a: f32, b: f32, p: f32) -> f32 {
  let ah = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u); let al = a - ah;
  let bh = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u); let bl = b - bh;
  return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
}
"
log2_f32: "fn log2_f32(x: f32) -> f32 {
  let s = split_f32(x); let e = s.x; let f = s.y;
  let p = f * 1.442695f; let p_lo = product_error_f32(f, 1.442695f, p);
  let hi = opaque_f32(e + p); let lo = ((e - hi) + p) + p_lo;
  let q = fma(fma(fma(fma(fma(fma(fma(fma(-0.110624894f, f, 0.18663162f), f, -0.19105905f), f, 0.20453905f), f, -0.23960464f), f, 0.2885691f), f, -0.3606976f), f, 0.48089826f), f, -0.72134733f);
  return special_log_f32(x, hi + fma(f * f, q, fma(f, 1.9259629911266175e-08f, lo)));
}
"
log10_f32: "fn log10_f32(x: f32) -> f32 {
  let s = split_f32(x); let e = s.x; let f = s.y;
  let p = f * 0.4342945f; let p_lo = product_error_f32(f, 0.4342945f, p);
  let a = e * bitcast<f32>(0x3e9a2000u); let hi = opaque_f32(a + p); let lo = ((a - hi) + p) + p_lo;
  let q = fma(fma(fma(fma(fma(fma(fma(fma(-0.033578843f, f, 0.056303255f), f, -0.057457343f), f, 0.06154939f), f, -0.07213281f), f, 0.08686928f), f, -0.10858062f), f, 0.14476478f), f, -0.21714719f);
  return special_log_f32(x, hi + fma(f * f, q, fma(f, LOG10_E_LO, fma(e, LOG10_2_LO, lo))));
}
const LOG10_E_LO: f32 = -1.0103050052231683e-08f;
const LOG10_2_LO: f32 = 4.605038981195214e-06f;
"
log1p_f32: "fn log1p_f32(x: f32) -> f32 {
  if (abs(x) < 2.98023224e-08f) { return x; }
  let l = log1p_pair_f32(vec2<f32>(x, 0.0f));
  return special_log_f32(1.0f + x, l.x + l.y);
}
"
rsqrt_f32: "fn rsqrt_f32(x: f32) -> f32 {
  let y = divided_f32(1.0f, sqrt(x));
  if (!(x > 0.0f) || !is_finite_f32(x) || is_nan_f32(x)) { return y; }
  let h = x * y; let h_lo = product_error_f32(x, y, h);
  let p = h * y; let p_lo = product_error_f32(h, y, p);
  let residual = ((1.0f - p) - p_lo) - h_lo * y;
  let refined = fma(0.5f * y, residual, y);
  return select(y, refined, is_finite_f32(refined));
}
"
erf_f32: "fn erf_f32(x: f32) -> f32 {
  if (is_nan_f32(x)) { return x; }
  let a = abs(x); let z = a * a;
  let p = fma(fma(fma(fma(fma(fma(7.920368e-5f, z, -0.00080307614f), z, 0.005190734f), z, -0.026855126f), z, 0.11283618f), z, -0.3761263f), z, 0.12837917f);
  let b = min(a, 4.0f);
  let g = fma(fma(fma(fma(fma(fma(1.4151954e-5f, b, -0.00035250993f), b, 0.0037653684f), b, -0.024026975f), b, 0.10655077f), b, 0.6349573f), b, 1.1286974f);
  return with_sign_f32(select(1.0f - exp_f32(-b * g), fma(a, p, a), a < 1.0f), x);
}
"
mul32: "fn mul32(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu; let a1 = a >> 16u; let b0 = b & 0xffffu; let b1 = b >> 16u;
  let p00 = a0 * b0; let p01 = a0 * b1; let p10 = a1 * b0;
  let mid = (p00 >> 16u) + (p01 & 0xffffu) + (p10 & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (p01 >> 16u) + (p10 >> 16u) + (mid >> 16u));
}
"
mul64_high: "fn mul64_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p00 = mul32(a.x, b.x); let p01 = mul32(a.x, b.y); let p10 = mul32(a.y, b.x); let p11 = mul32(a.y, b.y);
  let s0 = p00.y + p01.x; let c0 = select(0u, 1u, s0 < p01.x);
  let s1 = s0 + p10.x; let c1 = select(0u, 1u, s1 < p10.x);
  let m0 = p01.y + p10.y; let d0 = select(0u, 1u, m0 < p10.y);
  let m1 = m0 + c0 + c1; let d1 = select(0u, 1u, m1 < m0);
  let lo = p11.x + m1; let e = select(0u, 1u, lo < m1);
  return vec2<u32>(lo, p11.y + d0 + d1 + e);
}
"
philox_word: "fn philox_word(seed: vec2<u32>, w0: u32, w1: u32) -> u32 {
  var c = vec4<u32>((w0 >> 2u) | (w1 << 30u), w1 >> 2u, 0u, 0u); var k = seed;
  for (var i = 0; i < 10; i = i + 1) {
    let p0 = mul32(0xd2511f53u, c.x); let p1 = mul32(0xcd9e8d57u, c.z);
    c = vec4<u32>(p1.y ^ c.y ^ k.x, p1.x, p0.y ^ c.w ^ k.y, p0.x);
    k = k + vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  let lane = w0 & 3u;
  return select(select(c.x, c.y, lane == 1u), select(c.z, c.w, lane == 3u), lane >= 2u);
}
"
cos_turn_f32: "fn cos_turn_f32(w: u32) -> f32 {
  let n = ((w >> 29u) + 1u) >> 1u;
  let r = f32(bitcast<i32>(w - (n << 30u))) * 1.4629180792671596e-09f; let z = r * r;
  let s = r * fma(fma(fma(fma(2.718311493989822e-06f, z, -0.00019839334836096632f), z, 0.008333329385889463f), z, -0.16666666641626524f), z, 1.0f);
  let c = fma(fma(fma(fma(2.443315711809948e-05f, z, -0.001388731625493765f), z, 0.041666623323739063f), z, -0.499999997251031f), z, 1.0f);
  let y = select(c, s, (n & 1u) == 1u);
  return select(y, -y, ((n + 1u) & 2u) != 0u);
}
"
}
