// What kernels of products share. A is the type of sums: f32, f64, u32 or u64, because products and sums of integers
// wrap. The half types are added up in f32.
#define INLINE __device__ __forceinline__

INLINE f32 multiply_add(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
INLINE f64 multiply_add(f64 a, f64 b, f64 c) { return fma(a, b, c); }
INLINE u32 multiply_add(u32 a, u32 b, u32 c) { return a * b + c; }
INLINE u64 multiply_add(u64 a, u64 b, u64 c) { return a * b + c; }

INLINE T zero() { T v = {}; return v; }
template <class T> INLINE A widen(T x) { return (A)wide(x); }
template <class T> INLINE T narrow(A x) { return To<T>::of(x); }

INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies BYTES (4, 8 or 16) from global to shared memory without waiting. Only the first `valid` bytes are read; the
// others become 0.
template <int BYTES> INLINE void copy_async(void* to, const void* from, int valid) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(valid) : "memory");
    }
}
INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of this thread's copies are unfinished.
template <int PENDING> INLINE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
