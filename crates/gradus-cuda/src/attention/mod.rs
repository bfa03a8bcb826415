//! Scaled dot-product attention and its gradient, without a matrix of scores in memory: on tensor cores for half
//! precision (`mma.cu`, and `mma_backward.cu` for heads of at most 128 elements), otherwise in registers (`simt.cu`). The gradient
//! of the queries and that of keys and values are kernels of their own, so that each sum has a fixed order. Operands that are
//! invalid or empty, and heads that are too large for shared memory, are passed to the default implementation, which also
//! reports the errors.

use gradus_backend::key::key;
use gradus_backend::{AttentionParams, DType, Layout, Result, Scalar, Shape, View, ViewMut, composite};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::element;
use crate::operand::Operand;
use crate::product::BLOCKS;
use crate::queue::Launch;
use crate::temp::Temp;
use crate::template::{Record, float_functions, source, sum_type};
use composite::attention::Sizes;

const HEAD: &str = include_str!("head.cu");
const WEIGHT: &str = include_str!("weight.cu");
const MMA: &str = include_str!("../mma.cu");
/// The largest size of a query or value that the kernels hold in registers.
const LARGEST: usize = 256;
/// The largest number of queries or keys: positions along them are 32-bit numbers.
const LONGEST: usize = 1 << 30;

/// What a kernel on tensor cores computes: the result, or the gradients of queries or of keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Queries,
    Keys,
}

/// Everything that the text of a kernel depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Plan {
    dtype: DType,
    mask: Option<DType>,
    causal: bool,
    /// Sizes of a key and of a value, rounded up.
    d: usize,
    dv: usize,
    /// The tile: queries and keys.
    queries: usize,
    keys: usize,
    /// Whether tensor cores are used, and whether the elements of the heads of q, k, v and g lie in aligned groups.
    mma: Option<[bool; 4]>,
}

impl Plan {
    fn source(&self, pass: Pass) -> String {
        let t = element(self.dtype);
        let types = [("T", t), ("A", sum_type(self.dtype)), ("M", self.mask.map_or(t, element))];
        let mask = match self.mask {
            None => 0,
            Some(DType::Bool) => 1,
            Some(_) => 2,
        };
        let flag = usize::from;
        let mut constants = vec![("D", self.d), ("DV", self.dv), ("MASK", mask), ("CAUSAL", flag(self.causal))];
        let functions = float_functions(self.dtype.compute());
        if let Some([q, k, v, g]) = self.mma {
            constants.extend([
                ("BF16", flag(self.dtype == DType::BF16)),
                ("Q_GROUPS", flag(q)),
                ("K_GROUPS", flag(k)),
                ("V_GROUPS", flag(v)),
                ("G_GROUPS", flag(g)),
            ]);
            let (file, tiles) = match pass {
                Pass::Forward => (include_str!("mma.cu"), [("STRIPS", self.queries / 64), ("BK", self.keys)]),
                Pass::Queries => {
                    (include_str!("mma_backward.cu"), [("STRIPS", self.queries / 64), ("INNER", self.keys)])
                }
                Pass::Keys => (include_str!("mma_backward.cu"), [("STRIPS", self.keys / 64), ("INNER", self.queries)]),
            };
            constants.extend(tiles);
            constants.push(("QUERIES", flag(pass == Pass::Queries)));
            return source(&types, &constants, &[&functions, MMA, HEAD, WEIGHT, include_str!("tile.cu"), file]);
        }
        constants.extend([("BQ", self.queries), ("BK", self.keys)]);
        constants.push((if pass == Pass::Forward { "FORWARD" } else { "BACKWARD" }, 1));
        let text = include_str!("simt.cu");
        if is_half(self.dtype) {
            constants.extend([("HALF", 1), ("BF16", flag(self.dtype == DType::BF16))]);
            return source(&types, &constants, &[&functions, MMA, HEAD, WEIGHT, text]);
        }
        source(&types, &constants, &[&functions, HEAD, text])
    }

    /// Sets the tiles of a kernel on tensor cores. A block goes through the keys, or for their gradient the queries, with
    /// four warps that have one or two strips of 16 of the others each: as many as registers and shared memory hold.
    /// Returns the bytes of shared memory.
    fn tile(&mut self, pass: Pass, s: &Sizes, most_shared: usize) -> usize {
        let small = self.d.max(self.dv) <= 64;
        // Addresses of single elements take registers.
        let plain = self.mask.is_none() && self.mma.is_some_and(|groups| groups[..3].iter().all(|grouped| *grouped));
        let is_bf16 = self.dtype == DType::BF16;
        let (rows, two, inner) = match pass {
            Pass::Forward if self.d.max(self.dv) <= 128 => (s.lq, plain, if small { 64 } else { 32 }),
            Pass::Forward => (s.lq, false, 16),
            Pass::Queries if small => (s.lq, false, if is_bf16 { 64 } else { 32 }),
            Pass::Queries => (s.lq, false, if is_bf16 && plain { 32 } else { 16 }),
            Pass::Keys if small => (s.lk, is_bf16 && plain, 32),
            Pass::Keys => (s.lk, false, if is_bf16 && plain { 32 } else { 16 }),
        };
        let both = self.d + self.dv + 16;
        let bytes = |outer| {
            (outer * if pass == Pass::Forward { self.d + 8 } else { both } + 2 * inner * both) * self.dtype.size()
        };
        let outer = if two && rows > 64 && bytes(128) <= most_shared { 128 } else { 64 };
        (self.queries, self.keys) = if pass == Pass::Keys { (inner, outer) } else { (outer, inner) };
        bytes(outer)
    }

    /// The bytes of shared memory of a kernel in registers: tiles of queries and of keys, with the number of elements of
    /// a row of each, and more numbers.
    fn bytes(&self, query: usize, key: usize, more: usize) -> usize {
        (self.queries * query + self.keys * key + more) * self.dtype.compute().size()
    }
}

/// The operands of a call, as the kernels' parameters name them.
struct Call<'a> {
    op: &'static str,
    scale: f64,
    sizes: Sizes,
    q: Operand<'a>,
    k: Operand<'a>,
    v: Operand<'a>,
    mask: Option<(Operand<'a>, Layout)>,
}

/// The operands that only some kernels have.
#[derive(Default)]
struct Others<'a> {
    out: Option<Operand<'a>>,
    stats: Option<Operand<'a>>,
    g: Option<Operand<'a>>,
    dq: Option<Operand<'a>>,
    dk: Option<Operand<'a>>,
    dv: Option<Operand<'a>>,
}

impl<'a> Call<'a> {
    fn new(
        b: &CudaBackend,
        op: &'static str,
        params: &AttentionParams,
        sizes: Sizes,
        [q, k, v]: [View<'a>; 3],
        mask: Option<View<'a>>,
    ) -> Result<Self> {
        let mask = match mask {
            Some(m) => Some((b.input(op, "mask", m)?, m.layout.expand(sizes.scores()?)?)),
            None => None,
        };
        let [q, k, v] = [b.input(op, "q", q)?, b.input(op, "k", k)?, b.input(op, "v", v)?];
        Ok(Call { op, scale: params.scale, sizes, q, k, v, mask })
    }

    /// Queues a kernel with `pointers` in the order of its parameters.
    fn launch(
        &self,
        b: &CudaBackend,
        plan: &Plan,
        (pass, entry): (Pass, &'static str),
        pointers: &[Operand<'a>],
        others: &Others<'a>,
        (tasks, blocks, threads, shared): (u64, u64, u32, usize),
    ) -> Result<()> {
        let s = &self.sizes;
        let mut record = Record::new();
        record.i64(tasks as i64).i64((s.b * s.h * s.lq) as i64);
        let steps = |record: &mut Record, layout: Option<&Layout>, size: usize| {
            record.longs(layout.map_or(&[][..], |l| l.strides()).iter().copied(), size);
        };
        [&self.q, &self.k, &self.v].iter().for_each(|o| steps(&mut record, Some(o.layout), 4));
        steps(&mut record, self.mask.as_ref().map(|(_, layout)| layout), 4);
        steps(&mut record, others.out.as_ref().map(|o| o.layout), 4);
        steps(&mut record, others.stats.as_ref().map(|o| o.layout), 4);
        for o in [&others.g, &others.dq, &others.dk, &others.dv] {
            steps(&mut record, o.as_ref().map(|o| o.layout), 4);
        }
        record.number(Scalar::Float(self.scale), plan.dtype);
        let tiles = [s.lq.div_ceil(plan.queries), s.lk.div_ceil(plan.keys)];
        for size in [s.h, s.h / s.hk, s.lq, s.lk, s.d, s.dv].into_iter().chain(tiles) {
            record.i32(size);
        }
        let mut arguments = Arguments::new();
        pointers.iter().for_each(|o| {
            arguments.ptr(o.ptr);
        });
        arguments.bytes(record.finish());
        b.queue().launch(&Launch {
            call: self.op.into(),
            key: key(("attention", entry, plan)),
            entry,
            source: &|| plan.source(pass),
            uses: &pointers.iter().map(|o| o.used).collect::<Vec<_>>(),
            arguments: &arguments,
            grid: [blocks.min(BLOCKS) as u32, 1, 1],
            block: [threads, 1, 1],
            shared: shared as u32,
        })
    }

    /// The mask, or any other operand if there is none.
    fn mask_or(&self, other: Operand<'a>) -> Operand<'a> {
        self.mask.as_ref().map_or(other, |(mask, _)| *mask)
    }
}

/// The plan of the kernels in registers, from which that of kernels on tensor cores starts. With half precision only the gradient
/// is in registers, whose scores are products on tensor cores.
fn in_registers(dtype: DType, params: &AttentionParams, s: &Sizes, mask: Option<View<'_>>) -> Plan {
    // The columns of a block, or for half precision those of a factor on tensor cores.
    let step = if is_half(dtype) { 16 } else { 8 };
    let (d, dv) = (s.d.next_multiple_of(step).max(step), s.dv.next_multiple_of(step).max(step));
    let small = d.max(dv) * dtype.compute().size() <= 512;
    let side = if small { 32 } else { 16 };
    Plan { dtype, mask: mask.map(|m| m.dtype), causal: params.causal, d, dv, queries: side, keys: side, mma: None }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Whether the kernels can handle these sizes.
fn fits(s: &Sizes) -> bool {
    s.d.max(s.dv) <= LARGEST && s.lq.max(s.lk) <= LONGEST && s.h <= LONGEST
}

/// Whether the elements of a head are contiguous in aligned groups of 16 bytes.
fn grouped(o: &Operand<'_>) -> bool {
    let steps = o.layout.strides();
    let single = o.layout.dims()[3] == 1;
    (steps[3] == 1 || single) && o.ptr.is_multiple_of(16) && steps[..3].iter().all(|s| s % 8 == 0)
}

/// See [`Backend::attention`](gradus_backend::Backend::attention).
pub(crate) fn attention(
    b: &CudaBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let s = Sizes::new(b, OP, params, [q, k, v, out.as_view(), stats.as_view()], mask)?;
    let default = |out: &mut _, stats: &mut _| composite::attention::forward(b, params, q, k, v, mask, out, stats);
    if stats.layout.numel() * s.lk * s.d * s.dv == 0 || !fits(&s) {
        return default(out, stats);
    }
    let dtype = q.dtype;
    let mut plan = in_registers(dtype, params, &s, mask);
    let mut shared = plan.bytes(plan.d + 1, plan.d + plan.dv + 2, plan.queries * (plan.keys + 1));
    let most = b.device().most_shared as usize;
    if is_half(dtype) {
        let of = |v: View<'_>| b.input(OP, "an operand", v).map(|o| grouped(&o));
        plan.mma = Some([of(q)?, of(k)?, of(v)?, false]);
        shared = plan.tile(Pass::Forward, &s, most);
    }
    let tasks = (s.b * s.h) as u64 * s.lq.div_ceil(plan.queries) as u64;
    if shared > most || (plan.mma.is_some() && tasks > BLOCKS) {
        return default(out, stats);
    }
    let call = Call::new(b, OP, params, s, [q, k, v], mask)?;
    let [out, stats] = [b.output(OP, "out", out)?, b.output(OP, "stats", stats)?];
    let others = Others { out: Some(out), stats: Some(stats), ..Others::default() };
    let pointers = [call.q, call.k, call.v, call.mask_or(call.q), out, stats];
    call.launch(b, &plan, (Pass::Forward, "attention"), &pointers, &others, (tasks, tasks, 128, shared))
}

/// See [`Backend::attention_backward`](gradus_backend::Backend::attention_backward).
pub(crate) fn backward(
    b: &CudaBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: View<'_>,
    stats: View<'_>,
    g: View<'_>,
    dq: &mut ViewMut<'_>,
    dk: &mut ViewMut<'_>,
    dv: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention_backward";
    let gradients = [g, dq.as_view(), dk.as_view(), dv.as_view()];
    let s = Sizes::of_gradients(b, OP, params, [q, k, v, out, stats], mask, gradients)?;
    let empty = s.b * s.h * s.lq * s.lk * s.d * s.dv == 0;
    let plan = in_registers(q.dtype, params, &s, mask);
    let most = b.device().most_shared as usize;
    let of = |v: View<'_>| b.input(OP, "an operand", v).map(|o| grouped(&o));
    // Blocks of tensor cores have one task each.
    let few = (s.b * s.h) as u64 * s.lq.max(s.lk).div_ceil(64) as u64 <= BLOCKS;
    if is_half(q.dtype) && s.d.max(s.dv) <= LARGEST / 2 && !empty && few {
        let mma = Some([of(q)?, of(k)?, of(v)?, of(g)?]);
        let mut queries = Plan { mma, ..plan };
        let mut keys = queries;
        let shared = [queries.tile(Pass::Queries, &s, most), keys.tile(Pass::Keys, &s, most)];
        if shared[0].max(shared[1]) <= most {
            let call = Call::new(b, OP, params, s, [q, k, v], mask)?;
            let [out, stats, g] = [b.input(OP, "out", out)?, b.input(OP, "stats", stats)?, b.input(OP, "g", g)?];
            let [dq, dk, dv] = [b.output(OP, "dq", dq)?, b.output(OP, "dk", dk)?, b.output(OP, "dv", dv)?];
            let others =
                Others { out: Some(out), stats: Some(stats), g: Some(g), dq: Some(dq), dk: Some(dk), dv: Some(dv) };
            // The shift of each query's weights, their factor, and its delta.
            let mut rows = Temp::new(b, DType::F32, Shape::new(&[3, s.b, s.h, s.lq])?)?;
            let written = rows.view_mut();
            let rows = b.output(OP, "rows", &written)?;
            let tasks = (s.b * s.h) as u64 * s.lq.div_ceil(queries.queries) as u64;
            let pointers = [call.q, call.k, call.v, call.mask_or(call.q), out, stats, g, rows, dq];
            let launched = (tasks, tasks, 128, shared[0]);
            call.launch(b, &queries, (Pass::Queries, "attention_backward_q"), &pointers, &others, launched)?;
            let tasks = (s.b * s.hk) as u64 * s.lk.div_ceil(keys.keys) as u64;
            let pointers = [call.q, call.k, call.v, call.mask_or(call.q), g, read(rows), dk, dv];
            let launched = (tasks, tasks, 128, shared[1]);
            return call.launch(b, &keys, (Pass::Keys, "attention_backward_kv"), &pointers, &others, launched);
        }
    }
    let row = plan.d + plan.dv + 2;
    let shared = plan.bytes(row, row, 2 * plan.queries * (plan.keys + 1) + 3 * plan.queries);
    if empty || !fits(&s) || shared > most {
        return composite::attention::backward(b, params, q, k, v, mask, out, stats, g, dq, dk, dv);
    }
    let mut delta = Temp::new(b, q.dtype.compute(), Shape::new(&[s.b, s.h, s.lq])?)?;
    let written = delta.view_mut();
    let call = Call::new(b, OP, params, s, [q, k, v], mask)?;
    let to = b.output(OP, "delta", &written)?;
    let (stats, g) = (b.input(OP, "stats", stats)?, b.input(OP, "g", g)?);
    let others = Others { stats: Some(stats), g: Some(g), ..Others::default() };
    let tasks = (s.b * s.h) as u64 * s.lq.div_ceil(plan.queries) as u64;
    let pointers = [call.q, call.k, call.v, call.mask_or(call.q), g, stats, to];
    call.launch(b, &plan, (Pass::Queries, "attention_delta"), &pointers, &others, (tasks, tasks, 128, shared))?;
    let delta = read(to);
    let [dq, dk, dv] = [b.output(OP, "dq", dq)?, b.output(OP, "dk", dk)?, b.output(OP, "dv", dv)?];
    let others = Others { out: None, stats: Some(stats), g: Some(g), dq: Some(dq), dk: Some(dk), dv: Some(dv) };
    let inputs = [call.q, call.k, call.v, call.mask_or(call.q), g, stats, delta];
    let pointers = [&inputs[..], &[dq]].concat();
    call.launch(b, &plan, (Pass::Queries, "attention_backward_q"), &pointers, &others, (tasks, tasks, 128, shared))?;
    let tasks = (s.b * s.hk) as u64 * s.lk.div_ceil(plan.keys) as u64;
    let pointers = [&inputs[..], &[dk, dv]].concat();
    call.launch(b, &plan, (Pass::Keys, "attention_backward_kv"), &pointers, &others, (tasks, tasks, 128, shared))
}

/// An operand that an earlier kernel has written, for a kernel that reads it.
fn read(written: Operand<'_>) -> Operand<'_> {
    let used = crate::queue::Use { access: gradus_backend::late::Access::Read, ..written.used };
    Operand { used, ..written }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::check_text;

    #[test]
    fn the_texts_of_all_kernels_compile() {
        let plan = Plan { dtype: DType::F32, mask: None, causal: true, d: 24, dv: 8, queries: 32, keys: 32, mma: None };
        for mask in [None, Some(DType::Bool), Some(DType::F16)] {
            check_text("attention", &Plan { mask, ..plan }.source(Pass::Forward));
            check_text(
                "attention_backward_q",
                &Plan { mask, dtype: DType::F64, queries: 16, keys: 16, ..plan }.source(Pass::Queries),
            );
        }
        for dtype in [DType::F16, DType::BF16] {
            check_text("attention_delta", &Plan { dtype, d: 32, dv: 16, ..plan }.source(Pass::Queries));
        }
        for (dtype, d, keys, groups) in [(DType::F16, 64, 64, true), (DType::BF16, 256, 16, false)] {
            let tensor = Plan { dtype, d, dv: d, queries: 64, keys, mma: Some([groups; 4]), ..plan };
            check_text("attention", &tensor.source(Pass::Forward));
            let small = Plan { d: 64, dv: 32, ..tensor };
            check_text("attention_backward_q", &Plan { queries: 128, keys: 32, ..small }.source(Pass::Queries));
            check_text("attention_backward_kv", &Plan { queries: 32, keys: 64, ..small }.source(Pass::Keys));
        }
    }
}
