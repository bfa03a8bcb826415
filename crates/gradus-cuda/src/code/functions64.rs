//! The f64 functions of the library, accurate to within two units in the last place (three for `erfc`). The algorithms
//! and coefficients are those of FreeBSD's msun (Sun Microsystems, freely usable if its notice is kept), taken from the
//! crate `libm`.
//!
//! Copyright (C) 1993, 2004 by Sun Microsystems, Inc. All rights reserved. Permission to use, copy, modify, and
//! distribute this software is freely granted, provided that this notice is preserved.

library! {
high_f64: "f64 high_f64(f64 x) { return bitcast<f64>(bitcast<u64>(x) & 0xffffffff00000000ull); }
"
power_of_two: "f64 power_of_two(i32 k) { return bitcast<f64>(u64(k + 1023) << 52u); }
"
scaled_f64: "f64 scaled_f64(f64 y, i32 k) { auto h = k >> 1u; return y * power_of_two(h) * power_of_two(k - h); }
"
exp_reduced: "f64 exp_reduced(f64 hi, f64 lo, i32 k) {
  auto x = (hi - lo); auto t = (x * x);
  auto p = 6.61375632143793436117e-05 + (t * (-1.65339022054652515390e-06 + (t * 4.13813679705723846039e-08)));
  auto c = x - (t * (1.66666666666666019037e-01 + (t * (-2.77777777770155933842e-03 + (t * p)))));
  return scaled_f64(1.0 + (((x * c) / (2.0 - c) - lo) + hi), k);
}
"
exp_f64: "f64 exp_f64(f64 x0) {
  auto v = (x0);
  if (is_nan_f64(v)) { return v; }
  if (v > 709.782712893383973096) { return f64_of(0x7ff0000000000000ull); }
  if (v < -745.2) { return 0.0; }
  auto n = rint(v * 1.44269504088896338700);
  return exp_reduced((v - n * 6.93147180369123816490e-01), (n * 1.90821492927058770002e-10), i32(n));
}
"
exp2_f64: "f64 exp2_f64(f64 x0) {
  auto v = (x0);
  if (is_nan_f64(v)) { return v; }
  if (v >= 1024.0) { return f64_of(0x7ff0000000000000ull); }
  if (v < -1076.0) { return 0.0; }
  auto n = rint(v); auto r = v - n; auto h = high_f64(r);
  auto hi = r * 6.93147180559945286227e-01;
  auto lo = (hi - h * 6.93147182464599609375e-01) - (h * -1.90465429995776804525e-09 + (r - h) * 6.93147180559945286227e-01);
  return exp_reduced(hi, lo, i32(n));
}
"
expm1_f64: "f64 expm1_f64(f64 x0) {
  auto v = (x0);
  if (is_nan_f64(v) || fabs(v) < 5.551115123125783e-17) { return v; }
  if (v < -38.9) { return -1.0; }
  if (v > 709.782712893383973096) { return f64_of(0x7ff0000000000000ull); }
  auto k = 0; auto x = v; auto c = 0.0;
  if (fabs(v) > 0.34657359027997264) {
    auto n = rint(v * 1.44269504088896338700); k = i32(n);
    auto hi = (v - n * 6.93147180369123816490e-01); auto lo = n * 1.90821492927058770002e-10;
    x = (hi - lo); c = (hi - x) - lo;
  }
  auto hfx = 0.5 * x; auto hxs = x * hfx;
  auto r1 = 1.0 + hxs * (-3.33333333333331316428e-02 + hxs * (1.58730158725481460165e-03 + hxs * (-7.93650757867487942473e-05 + hxs * (4.00821782732936239552e-06 + hxs * -2.01099218183624371326e-07))));
  auto t = 3.0 - r1 * hfx;
  auto e = hxs * ((r1 - t) / (6.0 - x * t));
  if (k == 0) { return x - (x * e - hxs); }
  e = x * (e - c) - c; e = e - hxs;
  if (k == -1) { return 0.5 * (x - e) - 0.5; }
  if (k == 1) { if (x < -0.25) { return -2.0 * (e - (x + 0.5)); } return 1.0 + 2.0 * (x - e); }
  if (k < 0 || k > 56) { return scaled_f64(x - e + 1.0, k) - 1.0; }
  auto uf = power_of_two(-k);
  if (k < 20) { return (x - e + (1.0 - uf)) * power_of_two(k); }
  return (x - (e + uf) + 1.0) * power_of_two(k);
}
"
log_split_f64: "LogSplit log_split_f64(f64 v) {
  auto tiny = v < 2.2250738585072014e-308;
  auto bits = bitcast<u64>(pick(v, v * 18014398509481984.0, tiny));
  auto hx = u32(bits >> 32u) + 0x3ff00000u - 0x3fe6a09eu;
  auto k = i32(hx >> 20u) - 0x3ff - pick(0, 54, tiny);
  auto m = bitcast<f64>((u64((hx & 0xfffffu) + 0x3fe6a09eu) << 32u) | (bits & 0xffffffffull));
  return LogSplit{f64(k), m - 1.0};
}
"
log_rest_f64: "f64 log_rest_f64(f64 f) {
  auto s = f / (2.0 + f); auto z = s * s; auto w = z * z; auto hfsq = 0.5 * f * f;
  auto t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  auto t2 = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  return s * (hfsq + (t2 + t1));
}
"
special_log_f64: "f64 special_log_f64(f64 x, f64 y) {
  if (is_nan_f64(x) || x < 0.0) { return f64_of(0x7ff8000000000000ull); }
  if (x == 0.0) { return f64_of(0xfff0000000000000ull); }
  return pick(x, y, is_finite_f64(x));
}
"
log_f64: "f64 log_f64(f64 x) {
  auto p = log_split_f64(x); auto hfsq = 0.5 * p.f * p.f;
  auto low = (log_rest_f64(p.f) + p.k * 1.90821492927058770002e-10 - hfsq + p.f);
  return special_log_f64(x, low + p.k * 6.93147180369123816490e-01);
}
"
log1p_f64: "f64 log1p_f64(f64 x) {
  if (is_nan_f64(x) || fabs(x) < 1.1102230246251565e-16) { return x; }
  if (x > -0.29289 && x < 0.41421) {
    auto hfsq = 0.5 * x * x;
    return x - (hfsq - log_rest_f64(x));
  }
  auto u = (1.0 + x); auto p = log_split_f64(u); auto hfsq = 0.5 * p.f * p.f;
  auto c = 0.0;
  if (p.k < 54.0) { c = pick(x - (u - 1.0), 1.0 - (u - x), p.k >= 2.0) / u; }
  auto low = (log_rest_f64(p.f) + (p.k * 1.90821492927058770002e-10 + c) - hfsq + p.f);
  return special_log_f64(u, low + p.k * 6.93147180369123816490e-01);
}
"
log2_f64: "f64 log2_f64(f64 x) {
  auto p = log_split_f64(x); auto hfsq = 0.5 * p.f * p.f;
  auto hi = high_f64(p.f - hfsq); auto lo = (p.f - hi) - hfsq + log_rest_f64(p.f);
  auto vh = hi * 1.44269504072144627571e+00; auto vl = (lo + hi) * 1.67517131648865118353e-10 + lo * 1.44269504072144627571e+00;
  auto w = (p.k + vh); vl = vl + ((p.k - w) + vh);
  return special_log_f64(x, vl + w);
}
"
log10_f64: "f64 log10_f64(f64 x) {
  auto p = log_split_f64(x); auto hfsq = 0.5 * p.f * p.f;
  auto hi = high_f64(p.f - hfsq); auto lo = (p.f - hi) - hfsq + log_rest_f64(p.f);
  auto vh = hi * 4.34294481878168880939e-01; auto y = p.k * 3.01029995663611771306e-01;
  auto vl = p.k * 3.69423907715893078616e-13 + (lo + hi) * 2.50829467116452752298e-11 + lo * 4.34294481878168880939e-01;
  auto w = (y + vh); vl = vl + ((y - w) + vh);
  return special_log_f64(x, vl + w);
}
"
rsqrt_f64: "f64 rsqrt_f64(f64 x) { return divided_f64(1.0, sqrt(x)); }
"
sigmoid_f64: "f64 sigmoid_f64(f64 x) { auto e = exp_f64(-fabs(x)); return pick(e, 1.0, x >= 0.0) / (1.0 + e); }
"
sigmoid_neg_f64: "f64 sigmoid_neg_f64(f64 x) { return sigmoid_f64(-x); }
"
softplus_f64: "f64 softplus_f64(f64 x) {
  if (is_nan_f64(x)) { return x; }
  auto tail = log1p_f64(exp_f64(-fabs(x))); return pick(tail, x + tail, x > 0.0);
}
"
expo2_f64: "f64 expo2_f64(f64 x) { return exp_f64(x - 1416.0996898839683) * 2.247116418577895e+307 * 2.247116418577895e+307; }
"
sinh_f64: "f64 sinh_f64(f64 x) {
  if (!is_finite_f64(x)) { return x; }
  auto a = fabs(x); auto h = pick(0.5, -0.5, x < 0.0);
  if (a >= 709.782712893383973096) { return 2.0 * h * expo2_f64(a); }
  if (a < 1.0e-8) { return x; }
  auto t = expm1_f64(a);
  if (a < 1.0) { return h * (2.0 * t - t * t / (t + 1.0)); }
  return h * (t + t / (t + 1.0));
}
"
cosh_f64: "f64 cosh_f64(f64 x) {
  if (is_nan_f64(x)) { return x; }
  auto a = fabs(x);
  if (a < 0.6931471805599453) { auto t = expm1_f64(a); return 1.0 + t * t / (2.0 * (1.0 + t)); }
  if (a < 709.782712893383973096) { auto t = exp_f64(a); return 0.5 * (t + 1.0 / t); }
  if (a > 711.0) { return f64_of(0x7ff0000000000000ull); }
  return expo2_f64(a);
}
"
tanh_f64: "f64 tanh_f64(f64 x) {
  if (is_nan_f64(x) || fabs(x) < 1.0e-300) { return x; }
  auto a = fabs(x); f64 y;
  if (a > 20.0) { y = 1.0; }
  else if (a > 0.5493061443340549) { y = 1.0 - 2.0 / (expm1_f64(2.0 * a) + 2.0); }
  else if (a > 0.2554128118829954) { auto t = expm1_f64(2.0 * a); y = t / (t + 2.0); }
  else { auto t = expm1_f64(-2.0 * a); y = -t / (t + 2.0); }
  return pick(y, -y, x < 0.0);
}
"
asinh_f64: "f64 asinh_f64(f64 x) {
  if (!is_finite_f64(x)) { return x; }
  auto a = fabs(x); f64 y;
  if (a < 1.4901161193847656e-08) { return x; }
  if (a >= 67108864.0) { y = log_f64(a) + 0.6931471805599453; }
  else if (a >= 2.0) { y = log_f64(2.0 * a + 1.0 / (sqrt(a * a + 1.0) + a)); }
  else { y = log1p_f64(a + a * a / (sqrt(a * a + 1.0) + 1.0)); }
  return pick(y, -y, x < 0.0);
}
"
acosh_f64: "f64 acosh_f64(f64 x) {
  if (is_nan_f64(x) || x < 1.0) { return f64_of(0x7ff8000000000000ull); }
  if (!is_finite_f64(x)) { return x; }
  if (x < 2.0) { auto t = x - 1.0; return log1p_f64(t + sqrt(t * t + 2.0 * t)); }
  if (x < 67108864.0) { return log_f64(2.0 * x - 1.0 / (x + sqrt(x * x - 1.0))); }
  return log_f64(x) + 0.6931471805599453;
}
"
atanh_f64: "f64 atanh_f64(f64 x) {
  auto a = fabs(x);
  if (is_nan_f64(x) || a > 1.0) { return f64_of(0x7ff8000000000000ull); }
  if (a < 2.3283064365386963e-10) { return x; }
  f64 y;
  if (a == 1.0) { y = f64_of(0x7ff0000000000000ull); }
  else if (a < 0.5) { y = 0.5 * log1p_f64(2.0 * a + 2.0 * a * a / (1.0 - a)); }
  else { y = 0.5 * log1p_f64(2.0 * (a / (1.0 - a))); }
  return pick(y, -y, x < 0.0);
}
"
TWO_OVER_PI: "f64 TWO_OVER_PI(i32 i) {
  const u32 t[48] = {42722829u, 48555073u, 21659401u, 56087029u, 13858563u, 28715353u, 38736100u, 4324945u, 26128250u, 62674459u, 29957006u, 37899730u, 58726692u, 49193117u, 6588223u, 35515164u, 46442140u, 65964067u, 24988590u, 54822121u, 41009306u, 54917092u, 5137525u, 37323603u, 15192690u, 4585659u, 58608142u, 52426903u, 67074070u, 25231090u, 63202006u, 34237727u, 28629499u, 15891632u, 40752081u, 37709470u, 25143477u, 55737260u, 33225084u, 24853767u, 15195689u, 19476134u, 50255852u, 18845021u, 2185228u, 50622407u, 47901436u, 13614112u};
  return f64(t[i]);
}
"
reduced_f64: "Reduced reduced_f64(f64 x) {
  if (fabs(x) < 1647099.0) {
    auto n = rint(x * 6.36619772367581382433e-01);
    auto a = (x - n * 1.57079632673412561417e+00);
    auto w1 = n * 6.07710050630396597660e-11; auto b = (a - w1); auto e1 = (a - b) - w1;
    auto w2 = n * 2.02226624871116645580e-21; auto c = (b - w2); auto e2 = (b - c) - w2;
    auto e = e1 + e2 - n * 8.47842766036889956997e-32;
    auto r = (c + e);
    return Reduced{r, (c - r) + e, i32(n)};
  }
  auto bits = bitcast<u64>(x) & 0x7fffffffffffffffull;
  auto e = i32(bits >> 52u) - 1075;
  auto m = (bits & 0xfffffffffffffull) | 0x10000000000000ull;
  auto mh = f64(m >> 26u); auto ml = f64(m & 0x3ffffffull);
  auto i0 = max((e - 2) / 26, 0);
  auto hi = 0.0; auto lo = 0.0;
  for (auto i = i0; i < i0 + 9; i = i + 1) {
    auto c = TWO_OVER_PI(i); auto s = e - 26 * (i + 1);
    for (auto half = 0; half < 2; half = half + 1) {
      auto p = pick(ml * c, mh * c, half == 0) * power_of_two(pick(s, s + 26, half == 0));
      auto q = p - 4.0 * rint(p * 0.25);
      auto sum = (hi + q); auto t = (sum - hi);
      lo = lo + ((hi - (sum - t)) + (q - t)); hi = sum;
    }
  }
  hi = hi - 4.0 * rint(hi * 0.25);
  auto n = rint(hi); auto f = hi - n;
  auto g = (f + lo); auto gl = lo - (g - f);
  auto gh = high_f64(g); auto rest = (g - gh) + gl;
  auto ph = gh * 1.57079632673412561417e+00;
  auto pl = gh * 6.07710050650619224932e-11 + rest * 1.57079632679489655800e+00;
  auto r = (ph + pl); auto rl = pl - (r - ph);
  auto negative = x < 0.0;
  return Reduced{pick(r, -r, negative), pick(rl, -rl, negative), pick(i32(n), -i32(n), negative)};
}
"
k_sin: "f64 k_sin(f64 x, f64 y) {
  auto z = x * x; auto w = z * z; auto v = z * x;
  auto r = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06) + z * w * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
  return x - ((z * (0.5 * y - v * r) - y) - v * -1.66666666666666324348e-01);
}
"
k_cos: "f64 k_cos(f64 x, f64 y) {
  auto z = x * x; auto w = z * z;
  auto r = z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)) + w * w * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
  auto hz = 0.5 * z; auto u = (1.0 - hz);
  return u + (((1.0 - u) - hz) + (z * r - x * y));
}
"
k_tan: "f64 k_tan(f64 x0, f64 y0, bool odd) {
  auto big = fabs(x0) >= 0.67434; auto negative = x0 < 0.0;
  auto x = x0; auto y = y0;
  if (big) {
    if (negative) { x = -x; y = -y; }
    x = (7.85398163397448278999e-01 - x) + (3.06161699786838301793e-17 - y); y = 0.0;
  }
  auto z = x * x; auto w2 = z * z;
  auto ra = 1.33333333333201242699e-01 + w2 * (2.18694882948595424599e-02 + w2 * (3.59207910759131235356e-03 + w2 * (5.88041240820264096874e-04 + w2 * (7.81794442939557092300e-05 + w2 * -1.85586374855275456654e-05))));
  auto va = z * (5.39682539762260521377e-02 + w2 * (8.86323982359930005737e-03 + w2 * (1.45620945432529025516e-03 + w2 * (2.46463134818469906812e-04 + w2 * (7.14072491382608190305e-05 + w2 * 2.59073051863633712884e-05)))));
  auto s = z * x;
  auto r = y + z * (s * (ra + va) + y) + s * 3.33333333333334091986e-01;
  auto w = (x + r);
  if (big) {
    auto t = pick(1.0, -1.0, odd);
    auto v = t - 2.0 * (x + (r - w * w / (w + t)));
    return pick(v, -v, negative);
  }
  if (!odd) { return w; }
  auto w0 = high_f64(w); auto v = r - (w0 - x);
  auto a = -1.0 / w; auto a0 = high_f64(a);
  return a0 + a * ((1.0 + a0 * w0) + a0 * v);
}
"
sin_f64: "f64 sin_f64(f64 x) {
  if (!is_finite_f64(x)) { return f64_of(0x7ff8000000000000ull); }
  if (fabs(x) < 1.0e-8) { return x; }
  auto p = reduced_f64(x);
  auto y = pick(k_cos(p.r, p.lo), k_sin(p.r, p.lo), (p.n & 1) == 0);
  return pick(y, -y, (p.n & 2) != 0);
}
"
cos_f64: "f64 cos_f64(f64 x) {
  if (!is_finite_f64(x)) { return f64_of(0x7ff8000000000000ull); }
  auto p = reduced_f64(x);
  auto y = pick(k_sin(p.r, p.lo), k_cos(p.r, p.lo), (p.n & 1) == 0);
  return pick(y, -y, ((p.n + 1) & 2) != 0);
}
"
tan_f64: "f64 tan_f64(f64 x) {
  if (!is_finite_f64(x)) { return f64_of(0x7ff8000000000000ull); }
  if (fabs(x) < 1.0e-8) { return x; }
  auto p = reduced_f64(x);
  return k_tan(p.r, p.lo, (p.n & 1) == 1);
}
"
asin_rational: "f64 asin_rational(f64 z) {
  auto p = z * (1.66666666666666657415e-01 + z * (-3.25565818622400915405e-01 + z * (2.01212532134862925881e-01 + z * (-4.00555345006794114027e-02 + z * (7.91534994289814532176e-04 + z * 3.47933107596021167570e-05)))));
  auto q = 1.0 + z * (-2.40339491173441421878e+00 + z * (2.02094576023350569471e+00 + z * (-6.88283971605453293030e-01 + z * 7.70381505559019352791e-02)));
  return p / q;
}
"
asin_f64: "f64 asin_f64(f64 x) {
  auto a = fabs(x);
  if (is_nan_f64(x) || a > 1.0) { return f64_of(0x7ff8000000000000ull); }
  if (a < 1.4901161193847656e-08) { return x; }
  if (a < 0.5) { return x + x * asin_rational(x * x); }
  auto z = (1.0 - a) * 0.5; auto s = sqrt(z); auto r = asin_rational(z); f64 y;
  if (a == 1.0) { y = 1.57079632679489655800e+00; }
  else if (a >= 0.975) { y = 1.57079632679489655800e+00 - (2.0 * (s + s * r) - 6.12323399573676603587e-17); }
  else {
    auto f = high_f64(s); auto c = (z - f * f) / (s + f);
    y = (2.0 * s * r - (6.12323399573676603587e-17 - 2.0 * c)) - (7.85398163397448278999e-01 - 2.0 * f);
    y = 7.85398163397448278999e-01 - y;
  }
  return pick(y, -y, x < 0.0);
}
"
acos_f64: "f64 acos_f64(f64 x) {
  if (is_nan_f64(x) || fabs(x) > 1.0) { return f64_of(0x7ff8000000000000ull); }
  if (x == 1.0) { return 0.0; }
  if (x == -1.0) { return 3.141592653589793; }
  if (fabs(x) < 0.5) { return 1.57079632679489655800e+00 - (x - (6.12323399573676603587e-17 - x * asin_rational(x * x))); }
  if (x < 0.0) {
    auto z = (1.0 + x) * 0.5; auto s = sqrt(z); auto w = asin_rational(z) * s - 6.12323399573676603587e-17;
    return 2.0 * (1.57079632679489655800e+00 - (s + w));
  }
  auto z = (1.0 - x) * 0.5; auto s = sqrt(z); auto df = high_f64(s); auto c = (z - df * df) / (s + df);
  return 2.0 * (df + (asin_rational(z) * s + c));
}
"
atan_f64: "f64 atan_f64(f64 x) {
  if (is_nan_f64(x) || fabs(x) < 7.450580596923828e-09) { return x; }
  auto a = fabs(x); auto t = a; auto hi = 0.0; auto lo = 0.0;
  if (a >= 2.4375) { t = pick(-1.0 / a, 0.0, !is_finite_f64(a)); hi = 1.57079632679489655800e+00; lo = 6.12323399573676603587e-17; }
  else if (a >= 1.1875) { t = (a - 1.5) / (1.0 + 1.5 * a); hi = 9.82793723247329054082e-01; lo = 1.39033110312309984516e-17; }
  else if (a >= 0.6875) { t = (a - 1.0) / (a + 1.0); hi = 7.85398163397448278999e-01; lo = 3.06161699786838301793e-17; }
  else if (a >= 0.4375) { t = (2.0 * a - 1.0) / (2.0 + a); hi = 4.63647609000806093515e-01; lo = 2.26987774529616870924e-17; }
  auto z = t * t; auto w = z * z;
  auto s1 = z * (3.33333333333329318027e-01 + w * (1.42857142725034663711e-01 + w * (9.09088713343650656196e-02 + w * (6.66107313738753120669e-02 + w * (4.97687799461593236017e-02 + w * 1.62858201153657823623e-02)))));
  auto s2 = w * (-1.99999999998764832476e-01 + w * (-1.11111104054623557880e-01 + w * (-7.69187620504482999495e-02 + w * (-5.83357013379057348645e-02 + w * -3.65315727442169155270e-02))));
  auto y = hi - (t * (s1 + s2) - lo - t);
  return pick(y, -y, x < 0.0);
}
"
erf_near: "f64 erf_near(f64 z) {
  auto r = 1.28379167095512558561e-01 + z * (-3.25042107247001499370e-01 + z * (-2.84817495755985104766e-02 + z * (-5.77027029648944159157e-03 + z * -2.37630166566501626084e-05)));
  auto s = 1.0 + z * (3.97917223959155352819e-01 + z * (6.50222499887672944485e-02 + z * (5.08130628187576562776e-03 + z * (1.32494738004321644526e-04 + z * -3.96022827877536812320e-06))));
  return r / s;
}
"
erfc_far: "f64 erfc_far(f64 a) {
  if (a < 1.25) {
    auto s = a - 1.0;
    auto p = -2.36211856075265944077e-03 + s * (4.14856118683748331666e-01 + s * (-3.72207876035701323847e-01 + s * (3.18346619901161753674e-01 + s * (-1.10894694282396677476e-01 + s * (3.54783043256182359371e-02 + s * -2.16637559486879084300e-03)))));
    auto q = 1.0 + s * (1.06420880400844228286e-01 + s * (5.40397917702171048937e-01 + s * (7.18286544141962662868e-02 + s * (1.26171219808761642112e-01 + s * (1.36370839120290507362e-02 + s * 1.19844998467991074170e-02)))));
    return 1.0 - 8.45062911510467529297e-01 - p / q;
  }
  auto s = 1.0 / (a * a); f64 r; f64 t;
  if (a < 2.857142857142857) {
    r = -9.86494403484714822705e-03 + s * (-6.93858572707181764372e-01 + s * (-1.05586262253232909814e+01 + s * (-6.23753324503260060396e+01 + s * (-1.62396669462573470355e+02 + s * (-1.84605092906711035994e+02 + s * (-8.12874355063065934246e+01 + s * -9.81432934416914548592e+00))))));
    t = 1.0 + s * (1.96512716674392571292e+01 + s * (1.37657754143519042600e+02 + s * (4.34565877475229228821e+02 + s * (6.45387271733267880336e+02 + s * (4.29008140027567833386e+02 + s * (1.08635005541779435134e+02 + s * (6.57024977031928170135e+00 + s * -6.04244152148580987438e-02)))))));
  } else {
    r = -9.86494292470009928597e-03 + s * (-7.99283237680523006574e-01 + s * (-1.77579549177547519889e+01 + s * (-1.60636384855821916062e+02 + s * (-6.37566443368389627722e+02 + s * (-1.02509513161107724954e+03 + s * -4.83519191608651397019e+02)))));
    t = 1.0 + s * (3.03380607434824582924e+01 + s * (3.25792512996573918826e+02 + s * (1.53672958608443695994e+03 + s * (3.19985821950859553908e+03 + s * (2.55305040643316442583e+03 + s * (4.74528541206955367215e+02 + s * -2.24409524465858183362e+01))))));
  }
  auto z = high_f64(a);
  return exp_f64(-z * z - 0.5625) * exp_f64((z - a) * (z + a) + r / t) / a;
}
"
erf_f64: "f64 erf_f64(f64 x) {
  if (is_nan_f64(x)) { return x; }
  auto a = fabs(x);
  if (a < 3.725290298461914e-09) { return x + 1.28379167095512586316e-01 * x; }
  if (a < 0.84375) { return x + x * erf_near(x * x); }
  auto y = pick(1.0, 1.0 - erfc_far(min(a, 6.0)), a < 6.0);
  return pick(y, -y, x < 0.0);
}
"
erfc_f64: "f64 erfc_f64(f64 x) {
  if (is_nan_f64(x)) { return x; }
  auto a = fabs(x);
  if (a < 0.84375) {
    auto y = erf_near(x * x);
    if (x < 0.25) { return 1.0 - (x + x * y); }
    return 0.5 - (x - 0.5 + x * y);
  }
  if (a >= 28.0) { return pick(0.0, 2.0, x < 0.0); }
  auto y = erfc_far(a);
  return pick(y, 2.0 - y, x < 0.0);
}
"
pow_magnitude: "f64 pow_magnitude(f64 a, f64 y) {
  auto tiny = a < 2.2250738585072014e-308;
  auto bits = bitcast<u64>(pick(a, a * 9007199254740992.0, tiny));
  auto n = i32(bits >> 52u) - 0x3ff - pick(0, 53, tiny);
  auto j = u32(bits >> 32u) & 0xfffffu; auto ix = j | 0x3ff00000u; auto k = 0u;
  if (j > 0x3988eu) { if (j < 0xbb67au) { k = 1u; } else { n = n + 1; ix = ix - 0x100000u; } }
  auto ax = bitcast<f64>((u64(ix) << 32u) | (bits & 0xffffffffull));
  auto bp = pick(1.0, 1.5, k == 1u);
  auto u = ax - bp; auto v = 1.0 / (ax + bp); auto ss = u * v; auto s_h = high_f64(ss);
  auto t_h = bitcast<f64>(u64(((ix >> 1u) | 0x20000000u) + 0x80000u + (k << 18u)) << 32u);
  auto t_l = ax - (t_h - bp);
  auto s_l = v * ((u - s_h * t_h) - s_h * t_l);
  auto s2 = ss * ss;
  auto r0 = s2 * s2 * (5.99999999999994648725e-01 + s2 * (4.28571428578550184252e-01 + s2 * (3.33333329818377432918e-01 + s2 * (2.72728123808534006489e-01 + s2 * (2.30660745775561754067e-01 + s2 * 2.06975017800338417784e-01)))));
  auto r = r0 + s_l * (s_h + ss); auto q2 = s_h * s_h;
  auto th2 = high_f64(3.0 + q2 + r); auto tl2 = r - ((th2 - 3.0) - q2);
  auto u2 = s_h * th2; auto v2 = s_l * th2 + tl2 * ss;
  auto p_h = high_f64(u2 + v2); auto p_l = v2 - (p_h - u2);
  auto dp_h = pick(0.0, 5.84962487220764160156e-01, k == 1u);
  auto z_h = 9.61796700954437255859e-01 * p_h;
  auto z_l = -7.02846165095275826516e-09 * p_h + p_l * 9.61796693925975554329e-01 + pick(0.0, 1.35003920212974897128e-08, k == 1u);
  auto t = f64(n);
  auto t1 = high_f64(((z_h + z_l) + dp_h) + t); auto t2 = z_l - (((t1 - t) - dp_h) - z_h);
  auto y1 = high_f64(y); auto pl = (y - y1) * t1 + y * t2; auto ph = y1 * t1;
  auto z = (pl + ph);
  if (z >= 1024.0) { if (z > 1024.0 || pl + 8.0085662595372944372e-017 > z - ph) { return f64_of(0x7ff0000000000000ull); } }
  if (z < -1080.0) { return 0.0; }
  auto m = rint(z); auto f_h = ph - m;
  auto f = high_f64(pl + f_h); auto a1 = f * 6.93147182464599609375e-01;
  auto b1 = (pl - (f - f_h)) * 6.93147180559945286227e-01 + f * -1.90465429995776804525e-09;
  auto g = (a1 + b1); auto w = b1 - (g - a1); auto g2 = g * g;
  auto h = g - g2 * (1.66666666666666019037e-01 + g2 * (-2.77777777770155933842e-03 + g2 * (6.61375632143793436117e-05 + g2 * (-1.65339022054652515390e-06 + g2 * 4.13813679705723846039e-08))));
  auto e = (g * h) / (h - 2.0) - (w + g * w);
  return scaled_f64(1.0 - (e - g), i32(m));
}
"
pow_f64: "f64 pow_f64(f64 x, f64 y) {
  if (x == 1.0 || y == 0.0) { return 1.0; }
  if (is_nan_f64(x) || is_nan_f64(y)) { return f64_of(0x7ff8000000000000ull); }
  auto a = fabs(x); auto b = fabs(y);
  auto whole = b >= 4503599627370496.0 || trunc(b) == b;
  auto odd = b < 9007199254740992.0 && whole && !(trunc(0.5 * b) == 0.5 * b);
  if (x < 0.0 && is_finite_f64(x) && !whole && is_finite_f64(y)) { return f64_of(0x7ff8000000000000ull); }
  f64 p;
  if (a == 1.0) { p = 1.0; }
  else if (b > 1.0e20) { p = pick(0.0, f64_of(0x7ff0000000000000ull), (a > 1.0) == (y > 0.0)); }
  else if (a == 0.0 || !is_finite_f64(a)) { p = pick(0.0, f64_of(0x7ff0000000000000ull), (a == 0.0) == (y < 0.0)); }
  else { p = pow_magnitude(a, y); }
  return pick(p, -p, odd && (bitcast<u64>(x) >> 63u) == 1ull);
}
"
}
