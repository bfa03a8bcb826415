// The types and functions that every kernel can use.
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct alignas(2) f16 { u16 bits; };
struct alignas(2) bf16 { u16 bits; };
struct alignas(1) b8 { u8 bits; };
template <class T> struct vec2 {
  T x, y;
  vec2(T a, T b) : x(a), y(b) {}
  vec2 operator-() const { return vec2(-x, -y); }
  vec2 operator*(T k) const { return vec2(x * k, y * k); }
};
template <class T> struct vec3 {
  T x, y, z;
  vec3(T a, T b, T c) : x(a), y(b), z(c) {}
};
template <class T> struct vec4 {
  T x, y, z, w;
  vec4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  vec4 operator-() const { return vec4(-x, -y, -z, -w); }
};
struct LogSplit { f64 k, f; };
struct SigmoidParts { f32 e, low, d, d_low, recip; };
struct Reduced { f64 r, lo; i32 n; };
template <class T, class S> T bitcast(S x) {
  union { S s; T t; } u;
  u.s = x;
  return u.t;
}
template <int N> struct Words { u32 v[N]; };
// N neighbouring elements, which are read or written at once. Halves are read from words, which takes fewer instructions.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
  T v[N];
  T get(int k) const {
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
      const u32 pair = bitcast<Words<N / 2>>(*this).v[k / 2];
      return bitcast<T>(u16(k % 2 == 0 ? pair : pair >> 16));
    } else {
      return v[k];
    }
  }
};
template <class T> T pick(T a, T b, bool c) { return c ? b : a; }
// The larger or smaller operand, or NaN if one is.
f32 max_or_nan(f32 a, f32 b) { f32 y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
f32 min_or_nan(f32 a, f32 b) { f32 y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
// 1 / x within 1 unit in the last place, for x from 2^-126 to 2^126.
f32 near_recip(f32 x) { f32 y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// An element as its compute type.
template <class T> T wide(T x) { return x; }
f32 wide(f16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
f32 wide(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
bool wide(b8 x) { return x.bits != 0; }
// A value of a compute type as an element, rounded once.
template <class T> struct To { template <class S> static T of(S x) { return T(x); } };
template <> struct To<f16> {
  static f16 of(f32 x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
};
template <> struct To<bf16> {
  static bf16 of(f32 x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
};
template <> struct To<b8> { static b8 of(bool x) { b8 y; y.bits = x ? 1 : 0; return y; } };
// Integer division and powers. `bad` is set if there is no result.
template <class T> T divided(T a, T b, bool &bad) {
  if (b == 0) { bad = true; return 0; }
  if (T(-1) < T(0) && b == T(-1)) return T(u64(0) - u64(a));
  return T(a / b);
}
template <class T> T fmod_int(T a, T b, bool &bad) { return T(u64(a) - u64(divided(a, b, bad)) * u64(b)); }
template <class T> T remainder_int(T a, T b, bool &bad) {
  T r = fmod_int(a, b, bad);
  return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
}
template <class T> T floor_div_int(T a, T b, bool &bad) {
  T q = divided(a, b, bad), r = T(u64(a) - u64(q) * u64(b));
  return r != 0 && (r < 0) != (b < 0) ? T(q - 1) : q;
}
template <class T> T pow_int(T a, T e, bool &bad) {
  if (e < 0) { bad = true; return 0; }
  u64 x = u64(a), n = u64(e), y = 1;
  while (n > 0) { if (n & 1) y *= x; x *= x; n >>= 1; }
  return T(y);
}
// Marks a call as failed. `fault` is the slot of the call.
void fail(u64 *fault) { atomicOr((u32 *)fault + 5, 1u); }
// Marks a call as failed because `index` at `position` is outside an axis of `size` elements. Of several such indices,
// the one at the first position is reported.
void bad_index(u64 *fault, u32 position, i64 index, u32 size) {
  u64 at = u64(~position) << 32;
  atomicMax(fault, at | u32(index));
  atomicMax(fault + 1, at | u32(u64(index) >> 32));
  atomicExch((u32 *)fault + 4, size);
  atomicOr((u32 *)fault + 5, 1u);
}
