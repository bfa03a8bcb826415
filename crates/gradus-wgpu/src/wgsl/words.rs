//! 64-bit integers as two 32-bit words, the low one first, because WGSL has no 64-bit integers without an extension.
//!
//! Arithmetic wraps, as it does for the other integer types. Both i64 and u64 are `vec2<u32>`. A name ends in `64` if
//! the function is the same for both. Only conversions from and to f64 use the extension, which every adapter with f64
//! has.

library! {
neg_64: "fn neg_64(a: vec2<u32>) -> vec2<u32> { return sub_64(vec2<u32>(0u), a); }
"
add_64: "fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
"
sub_64: "fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
"
mul_64: "fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return mul32(a.x, b.x) + vec2<u32>(0u, a.x * b.y + a.y * b.x);
}
"
less_u64: "fn less_u64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
"
less_i64: "fn less_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}
"
negative_i64: "fn negative_i64(a: vec2<u32>) -> bool { return (a.y >> 31u) == 1u; }
"
abs_i64: "fn abs_i64(a: vec2<u32>) -> vec2<u32> { if (negative_i64(a)) { return neg_64(a); } return a; }
"
sign_u64: "fn sign_u64(a: vec2<u32>) -> vec2<u32> { return vec2<u32>(select(0u, 1u, any(a != vec2<u32>(0u))), 0u); }
"
sign_i64: "fn sign_i64(a: vec2<u32>) -> vec2<u32> {
  if (negative_i64(a)) { return vec2<u32>(0xffffffffu); }
  return sign_u64(a);
}
"
larger_u64: "fn larger_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { if (less_u64(a, b)) { return b; } return a; }
"
larger_i64: "fn larger_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { if (less_i64(a, b)) { return b; } return a; }
"
smaller_u64: "fn smaller_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { if (less_u64(b, a)) { return b; } return a; }
"
smaller_i64: "fn smaller_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { if (less_i64(b, a)) { return b; } return a; }
"
// Binary long division; `b` must not be 0. The remainder is always below `b`. `high` is the bit that a shift pushes out
// of it.
quotient_64: "fn quotient_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (a.y == 0u && b.y == 0u) { return vec2<u32>(a.x / b.x, 0u); }
  var q = vec2<u32>(0u); var r = vec2<u32>(0u);
  for (var i = 64u; i > 0u; i = i - 1u) {
    let word = select(a.x, a.y, i > 32u); let bit = (word >> ((i - 1u) & 31u)) & 1u;
    let high = r.y >> 31u;
    r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
    q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if (high == 1u || !less_u64(r, b)) { r = sub_64(r, b); q.x = q.x | 1u; }
  }
  return q;
}
"
divided_u64: "fn divided_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (all(b == vec2<u32>(0u))) { fail(); return b; }
  return quotient_64(a, b);
}
"
divided_i64: "fn divided_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (all(b == vec2<u32>(0u))) { fail(); return b; }
  let q = quotient_64(abs_i64(a), abs_i64(b));
  if (negative_i64(a) != negative_i64(b)) { return neg_64(q); }
  return q;
}
"
fmod_u64: "fn fmod_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return sub_64(a, mul_64(divided_u64(a, b), b)); }
"
fmod_i64: "fn fmod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return sub_64(a, mul_64(divided_i64(a, b), b)); }
"
remainder_u64: "fn remainder_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return fmod_u64(a, b); }
"
remainder_i64: "fn remainder_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = fmod_i64(a, b);
  if (any(r != vec2<u32>(0u)) && negative_i64(r) != negative_i64(b)) { return add_64(r, b); }
  return r;
}
"
floor_div_u64: "fn floor_div_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divided_u64(a, b); }
"
floor_div_i64: "fn floor_div_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = divided_i64(a, b); let r = sub_64(a, mul_64(q, b));
  if (any(r != vec2<u32>(0u)) && negative_i64(r) != negative_i64(b)) { return sub_64(q, vec2<u32>(1u, 0u)); }
  return q;
}
"
pow_u64: "fn pow_u64(a: vec2<u32>, e: vec2<u32>) -> vec2<u32> {
  var x = a; var n = e; var y = vec2<u32>(1u, 0u);
  while (any(n != vec2<u32>(0u))) {
    if ((n.x & 1u) == 1u) { y = mul_64(y, x); }
    x = mul_64(x, x); n = vec2<u32>((n.x >> 1u) | (n.y << 31u), n.y >> 1u);
  }
  return y;
}
"
pow_i64: "fn pow_i64(a: vec2<u32>, e: vec2<u32>) -> vec2<u32> {
  if (negative_i64(e)) { fail(); return vec2<u32>(0u); }
  return pow_u64(a, e);
}
"
i64_from_i32: "fn i64_from_i32(v: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(v), bitcast<u32>(v >> 31u)); }
"
// Rounds to nearest even: `top` is the upper 24 bits, and the remaining 40 bits decide whether to round up.
f32_from_u64: "fn f32_from_u64(v: vec2<u32>) -> f32 {
  if (v.y == 0u && v.x < 16777216u) { return f32(v.x); }
  let n = select(countLeadingZeros(v.y), 32u + countLeadingZeros(v.x), v.y == 0u);
  let m = shifted_64(v, n);
  let top = m.y >> 8u; let rest = m.y & 0xffu;
  let up = rest > 0x80u || (rest == 0x80u && (m.x != 0u || (top & 1u) == 1u));
  return bitcast<f32>(((190u - n) << 23u) + (top & 0x7fffffu) + select(0u, 1u, up));
}
"
f32_from_i64: "fn f32_from_i64(v: vec2<u32>) -> f32 {
  let y = f32_from_u64(abs_i64(v));
  return select(y, -y, negative_i64(v));
}
"
shifted_64: "fn shifted_64(v: vec2<u32>, n: u32) -> vec2<u32> {
  if (n >= 64u) { return vec2<u32>(0u); }
  if (n >= 32u) { return vec2<u32>(0u, v.x << (n - 32u)); }
  if (n == 0u) { return v; }
  return vec2<u32>(v.x << n, (v.y << n) | (v.x >> (32u - n)));
}
"
// The magnitude of a float below 2^64, without its fraction.
whole_f32: "fn whole_f32(x: f32) -> vec2<u32> {
  let b = bitcast<u32>(x) & 0x7fffffffu; let e = b >> 23u; let m = (b & 0x7fffffu) | 0x800000u;
  if (e < 127u) { return vec2<u32>(0u); }
  if (e <= 150u) { return vec2<u32>(m >> (150u - e), 0u); }
  return shifted_64(vec2<u32>(m, 0u), e - 150u);
}
"
// Saturates, and converts NaN to 0.
u64_from_f32: "fn u64_from_f32(x: f32) -> vec2<u32> {
  if (is_nan_f32(x) || x <= 0.0f) { return vec2<u32>(0u); }
  if (x >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu); }
  return whole_f32(x);
}
"
i64_from_f32: "fn i64_from_f32(x: f32) -> vec2<u32> {
  if (is_nan_f32(x)) { return vec2<u32>(0u); }
  if (x >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }
  let v = whole_f32(x);
  if (x < 0.0f) { return neg_64(v); }
  return v;
}
"
u64_of: "fn u64_of(v: vec2<u32>) -> u64 { return (u64(v.y) << 32u) | u64(v.x); }
"
words_of: "fn words_of(v: u64) -> vec2<u32> { return vec2<u32>(u32(v), u32(v >> 32u)); }
"
f64_from_u64: "fn f64_from_u64(v: vec2<u32>) -> f64 { return f64(u64_of(v)); }
"
f64_from_i64: "fn f64_from_i64(v: vec2<u32>) -> f64 { return f64(bitcast<i64>(u64_of(v))); }
"
u64_from_f64: "fn u64_from_f64(x: f64) -> vec2<u32> {
  if (is_nan_f64(x) || x <= 0.0lf) { return vec2<u32>(0u); }
  if (x >= 18446744073709551616.0lf) { return vec2<u32>(0xffffffffu); }
  return words_of(u64(x));
}
"
i64_from_f64: "fn i64_from_f64(x: f64) -> vec2<u32> {
  if (is_nan_f64(x)) { return vec2<u32>(0u); }
  if (x >= 9223372036854775808.0lf) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0lf) { return vec2<u32>(0u, 0x80000000u); }
  return words_of(bitcast<u64>(i64(x)));
}
"
}
