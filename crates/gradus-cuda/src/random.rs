//! Random draws. Each thread computes one element, as [`gradus_backend::philox`] defines it.

use gradus_backend::key::key;
use gradus_backend::philox::words_per_element;
use gradus_backend::{DType, Distribution, MergedAxes, Result, ViewMut};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, cast, element};
use crate::map::{blocks, stored};
use crate::queue::Launch;

const OP: &str = "random";

/// The generator: word `w` of the stream of `seed`.
pub(crate) const PHILOX: &str = "u32 philox_word(u64 seed, u64 w) {
  u32 a = u32(w >> 2), b = u32(w >> 34), c = 0, d = 0, k = u32(seed), l = u32(seed >> 32);
  for (int i = 0; i < 10; ++i) {
    const u64 p = u64(0xd2511f53u) * a, q = u64(0xcd9e8d57u) * c;
    a = u32(q >> 32) ^ b ^ k; b = u32(q); c = u32(p >> 32) ^ d ^ l; d = u32(p);
    k += 0x9e3779b9u; l += 0xbb67ae85u;
  }
  const u32 lane = u32(w) & 3;
  return lane == 0 ? a : lane == 1 ? b : lane == 2 ? c : d;
}";

/// The kind of draw, without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Uniform,
    Normal,
    Bernoulli,
    Int,
}

/// See [`Backend::random`](gradus_backend::Backend::random).
pub(crate) fn random(b: &CudaBackend, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
    gradus_backend::check::random(dist, out)?;
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    let (kind, numbers) = match dist {
        Distribution::Uniform { lo, hi } => (Kind::Uniform, [lo.to_bits(), hi.to_bits()]),
        Distribution::Normal { mean, std } => (Kind::Normal, [mean.to_bits(), std.to_bits()]),
        // A word is below p * 2^32 if it is below the next integer, which is 2^32 for p = 1.
        Distribution::Bernoulli { p } => (Kind::Bernoulli, [(p * 4_294_967_296.0).ceil() as u64, 0]),
        Distribution::Int { lo, hi } => (Kind::Int, [lo as u64, (hi as u64).wrapping_sub(lo as u64)]),
    };
    let to = b.output(OP, "out", out)?;
    let axes = MergedAxes::merged(&[to.layout], 0..to.layout.rank());
    let (dtype, rank, words) = (out.dtype, axes.rank(), words_per_element(dist, out.dtype));
    let mut arguments = Arguments::new();
    arguments.ptr(to.ptr).u64(n as u64).u64(seed).u64(offset).u64(numbers[0]).u64(numbers[1]);
    if rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("random", kind, dtype, words, rank)),
        entry: "gradus_random",
        source: &|| source(kind, dtype, words, rank),
        uses: &[to.used],
        arguments: &arguments,
        grid: blocks(OP, n as u64)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

fn source(kind: Kind, dtype: DType, words: u64, rank: usize) -> String {
    let mut text = Text::new();
    text.declare(PHILOX);
    text.parameter(format_args!("{} *__restrict__ y", element(dtype)));
    text.parameter("const u64 n, const u64 seed, const u64 offset, const u64 p, const u64 q");
    if rank > 0 {
        text.longs("axes", rank * 2);
    }
    text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
    text.line("if (id >= n) return;");
    code::coordinates(&mut text, "u64", "c", "id", rank, "axes");
    text.line(format_args!("const u64 w = offset + id * {words};"));
    text.line("const u32 first = philox_word(seed, w);");
    if words == 2 {
        text.line("const u32 second = philox_word(seed, w + 1);");
    }
    let value = match kind {
        Kind::Bernoulli => stored(&cast("(first < p)", DType::Bool, dtype), dtype.compute(), dtype),
        Kind::Int => {
            text.line("const u64 drawn = p + __umul64hi(u64(first) << 32 | second, q);");
            stored(&format!("({})drawn", code::compute(dtype)), dtype.compute(), dtype)
        }
        Kind::Uniform => {
            let unit = if dtype == DType::F64 {
                "f64((u64(first) << 32 | second) >> 11) * 1.1102230246251565e-16"
            } else {
                "f64(first >> 8) * 5.9604644775390625e-08"
            };
            text.line("const f64 lo = __longlong_as_double(p), hi = __longlong_as_double(q);");
            text.line(format_args!("const f64 v = lo + {unit} * (hi - lo);"));
            text.line(format_args!("const f64 rounded = wide({});", stored_f64("v", dtype)));
            text.line("const f64 kept = rounded >= hi && hi > lo ? lo : rounded;");
            stored_f64("kept", dtype)
        }
        Kind::Normal => {
            text.line("const f64 mean = __longlong_as_double(p), std = __longlong_as_double(q);");
            text.line("const f64 u1 = first * 2.3283064365386963e-10, u2 = second * 2.3283064365386963e-10;");
            text.line("const f64 r = sqrt(-2.0 * log1p_f64(-u1));");
            text.line("const f64 v = mean + std * r * cos_f64(6.283185307179586 * u2);");
            stored_f64("v", dtype)
        }
    };
    text.line(format_args!("y[{}] = {value};", code::position(false, "c", rank, "axes", 0)));
    text.finish("gradus_random", THREADS)
}

/// A number in f64 as an element of a float dtype, rounded once.
fn stored_f64(value: &str, dtype: DType) -> String {
    stored(value, DType::F64, dtype)
}
