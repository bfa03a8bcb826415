//! Attention without the matrix of scores: one work-group per query goes through the keys in pieces, keeps the largest
//! score and the sum so far, and rescales its sums when a larger score comes. More keys than a loop may go through are
//! halved, and the results of both halves weighted.

use gradus_backend::composite::attention::{Sizes, forward};
use gradus_backend::{
    AttentionParams, DType, Kernel, KernelBuilder, Layout, MapArg, ReduceOp, Result, Scalar, Shape, View, ViewMut,
};

use crate::WgpuBackend;
use crate::key::key;
use crate::lines::across;
use crate::map::{scalar_param, scalar_words};
use crate::operand::{Bound, LOOP};
use crate::queue::{Bind, Launch};
use crate::reduce::identity;
use crate::scan::log_of_sum;
use crate::temp::Temp;
use crate::wgsl::{Text, cast, param, ty};

const OP: &str = "attention";
/// Invocations in a work-group, and keys in a piece.
const LANES: u32 = 64;
/// Most elements of a value vector that an invocation sums.
const MOST: usize = 8;
/// Parameters before the layouts: rows, heads, queries, keys, sizes of a key and of a value, query heads per key head,
/// the scale in two words, and how many keys the causal rule counts; then, for each operand, its position and four strides.
const FIXED: usize = 10;

/// Everything that the text depends on.
#[derive(Debug, Hash)]
struct Plan {
    dtype: DType,
    out: DType,
    mask: Option<DType>,
    causal: bool,
    /// Elements of a value vector that each invocation sums.
    share: usize,
}

/// See [`Backend::attention`](gradus_backend::Backend::attention); operands that are empty or too large to bind go to
/// the default body.
pub(crate) fn attention(
    b: &WgpuBackend,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    let s = Sizes::new(b, OP, params, [q, k, v, out.as_view(), lse.as_view()], mask)?;
    let share = s.dv.div_ceil(LANES as usize);
    let mut views = vec![(q.layout, q.dtype), (k.layout, k.dtype), (v.layout, v.dtype), (out.layout, out.dtype)];
    views.extend(mask.map(|m| (m.layout, m.dtype)));
    if share > MOST || views.iter().any(|(l, d)| l.numel() == 0 || !b.fits(l, *d)) {
        return forward(b, params, q, k, v, mask, out, lse);
    }
    part(b, params, &s, s.lk as isize, q, k, v, mask, out, lse)
}

/// Attention to some of the keys, or to all: `s` has their number. By the causal rule the last query sees `causal` of them.
fn part(
    b: &WgpuBackend,
    params: &AttentionParams,
    s: &Sizes,
    causal: isize,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    let share = s.dv.div_ceil(LANES as usize);
    // For each piece of keys, an invocation loops over a key's elements, and over the piece for each of its sums.
    let turns = s.lk.div_ceil(LANES as usize) * (1 + s.d + LANES as usize * share);
    if turns > LOOP && s.lk > LANES as usize {
        return by_halves(b, params, s, causal, q, k, v, mask, out, lse);
    }
    let column = lse.layout.unsqueeze(3)?;
    let mut inputs = vec![b.input(OP, "q", q)?, b.input(OP, "k", k)?, b.input(OP, "v", v)?];
    if let Some(m) = mask {
        // A broadcast mask takes less memory than the scores, so its own elements are counted.
        let own = b.input(OP, "mask", m)?;
        inputs.push(Bound { layout: own.layout.expand(Shape::new(&[s.b, s.h, s.lq, s.lk])?)?, ..own });
    }
    let outputs = [b.output(OP, "out", out)?, b.operand(OP, "lse", lse.buffer, lse.dtype, &column, true)?];
    let plan = Plan { dtype: q.dtype, out: out.dtype, mask: mask.map(|m| m.dtype), causal: params.causal, share };
    let rows = s.b * s.h * s.lq;
    let mut words: Vec<u32> = [rows, s.h, s.lq, s.lk, s.d, s.dv, s.h / s.hk].map(|v| v as u32).to_vec();
    let mut scale = scalar_words(Scalar::Float(params.scale), q.dtype.compute());
    scale.resize(2, 0);
    words.extend(scale);
    words.push(causal as u32);
    let each = |words: &mut Vec<u32>, l: &Layout| {
        words.push(l.offset() as u32);
        words.extend(l.strides().iter().map(|&s| s as u32));
    };
    inputs.iter().chain(&outputs).for_each(|o| each(&mut words, &o.layout));
    let binds: Vec<Bind<'_>> = inputs.iter().chain(&outputs).map(|o| o.bind).collect();
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key((OP, &plan)),
        source: &|| plan.source(),
        binds: &binds,
        params: &words,
        groups: rows as u64,
    })
}

/// Attends to each half of the keys. With the results `a` and `b`, the logarithms of their sums of weights `p` and `q`, and
/// `r = ln(e^p + e^q)`, the result is `a e^(p - r) + b e^(q - r)`.
fn by_halves(
    b: &WgpuBackend,
    params: &AttentionParams,
    s: &Sizes,
    causal: isize,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    let d = q.dtype.compute();
    let half = (s.lk / 2).next_multiple_of(LANES as usize);
    let of_half = |start: usize, len: usize| -> Result<(Temp, Temp)> {
        let (k_part, v_part) = (k.layout.narrow(2, start, len)?, v.layout.narrow(2, start, len)?);
        // A mask may be broadcast along the keys.
        let keys = |l: &Layout| match l.dims().last() {
            Some(&n) if n == s.lk => l.narrow(l.rank() - 1, start, len),
            _ => Ok(*l),
        };
        let seen = mask.map(|m| keys(m.layout)).transpose()?;
        let mask = mask.zip(seen.as_ref()).map(|(m, l)| m.with(l));
        let (k, v) = (k.with(&k_part), v.with(&v_part));
        let (mut y, mut sums) = (Temp::new(b, d, *out.layout.shape())?, Temp::new(b, d, *lse.layout.shape())?);
        let mut sizes = *s;
        sizes.lk = len;
        let causal = causal - start as isize;
        part(b, params, &sizes, causal, q, k, v, mask, &mut y.view_mut(), &mut sums.view_mut())?;
        Ok((y, sums))
    };
    let (first, second) = (of_half(0, half)?, of_half(half, s.lk - half)?);
    let builder = KernelBuilder::new(&[d; 4]);
    let [x, y, p, q] = [0, 1, 2, 3].map(|i| builder.args()[i]);
    let r = log_of_sum(p, q);
    // Without any key in both, the differences are NaN.
    let [x, y] = [(x, p), (y, q)].map(|(x, p)| x * r.eq(f64::NEG_INFINITY).select(p.constant(0), (p - r).exp()));
    let kernel = builder.finish(OP, &[(x + y, out.dtype)])?;
    let wide = |sums: &Temp| sums.layout.unsqueeze(3)?.expand(*out.layout.shape());
    let (p, q) = (wide(&first.1)?, wide(&second.1)?);
    let args = [first.0.view(), second.0.view(), first.1.view().with(&p), second.1.view().with(&q)].map(MapArg::View);
    let layout = out.layout;
    crate::map::map(b, &kernel, &args, &mut [out.with(layout)])?;
    let kernel = Kernel::build(OP, &[d; 2], |v| vec![log_of_sum(v[0], v[1])])?;
    let layout = lse.layout;
    crate::map::map(b, &kernel, &[&first.1, &second.1].map(|t| MapArg::View(t.view())), &mut [lse.with(layout)])
}

impl Plan {
    fn source(&self) -> String {
        let d = self.dtype.compute();
        let t = ty(d);
        let mut names = vec![("q", self.dtype), ("k", self.dtype), ("v", self.dtype)];
        names.extend(self.mask.map(|m| ("mask", m)));
        let outputs = [("out", self.out), ("lse", d)];
        let count = names.len() + outputs.len();
        let mut text = Text::new(FIXED + 5 * count);
        names.iter().for_each(|&(name, dtype)| text.input(name, dtype));
        outputs.iter().for_each(|&(name, dtype)| text.output(name, dtype));
        across(&mut text, LANES, d, false);
        text.declare(format_args!("var<workgroup> weights: array<{t}, {LANES}>;"));
        text.line(format_args!("if (group >= {}) {{ return; }}", param(0)));
        let (heads, lq, lk, size, width, shared) = (param(1), param(2), param(3), param(4), param(5), param(6));
        text.line(format_args!(
            "let i = group % {lq}; let h = group / {lq} % {heads}; let n = group / ({lq} * {heads});"
        ));
        text.line(format_args!("let hk = h / {shared};"));
        names.extend(outputs);
        for (o, (name, _)) in names.iter().enumerate() {
            let at = |k: usize| param(FIXED + 5 * o + k);
            let head = if matches!(*name, "k" | "v") { "hk" } else { "h" };
            let row = if matches!(*name, "k" | "v") { String::new() } else { format!(" + i * {}", at(3)) };
            text.line(format_args!("let {name}_at = {} + n * {} + {head} * {}{row};", at(0), at(1), at(2)));
        }
        let step = |name: &str, k: usize| {
            let o = names.iter().position(|(n, _)| *n == name).unwrap_or_default();
            param(FIXED + 5 * o + 1 + k)
        };
        let none = identity(ReduceOp::Max, d);
        text.line(format_args!("let nothing = {none}; var top = nothing; var total = {t}(0);"));
        for r in 0..self.share {
            text.line(format_args!("var sum_{r} = {t}(0);"));
        }
        text.line(format_args!("for (var j0 = 0u; j0 < {lk}; j0 = j0 + {LANES}u) {{"));
        text.line("let j = j0 + local; var score = nothing;");
        // The number of keys may be negative: it wraps, as the other side does.
        let counted = format!("bitcast<i32>(j + {lq}) <= bitcast<i32>(i + {})", param(9));
        let seen = if self.causal { format!("j < {lk} && {counted}") } else { format!("j < {lk}") };
        text.line(format_args!("if ({seen}) {{ var dot = {t}(0);"));
        text.line(format_args!(
            "for (var e = 0u; e < {size}; e = e + 1u) {{ dot = dot + load_q(q_at + e * {}) * load_k(k_at + j * {} + e * {}); }}",
            step("q", 3),
            step("k", 2),
            step("k", 3)
        ));
        text.line(format_args!("score = dot * {};", scalar_param(7, d)));
        match self.mask {
            Some(DType::Bool) => {
                text.line(format_args!(
                    "score = select(nothing, score, load_mask(mask_at + j * {}));",
                    step("mask", 3)
                ));
            }
            Some(m) => {
                let value = cast(&format!("load_mask(mask_at + j * {})", step("mask", 3)), m.compute(), d);
                text.line(format_args!("score = score + {value};"));
            }
            None => {}
        }
        text.line("}");
        text.line(format_args!("let next = larger_{t}(top, largest_of(score, local));"));
        // Before any key has been seen, every weight is e^-inf.
        text.line(format_args!("let shift = select(next, {t}(0), next == nothing);"));
        text.line(format_args!(
            "let keep = exp_{t}(top - shift); let weight = exp_{t}(score - shift); weights[local] = weight;"
        ));
        text.line("total = total * keep + sum_of(weight, local); top = next;");
        text.line(format_args!("let end = min({lk} - j0, {LANES}u);"));
        for r in 0..self.share {
            text.line(format_args!("{{ let e = local + {}u; var s = sum_{r} * keep;", r * LANES as usize));
            text.line(format_args!(
                "if (e < {width}) {{ for (var jj = 0u; jj < end; jj = jj + 1u) {{ s = s + weights[jj] * load_v(v_at + (j0 + jj) \
                 * {} + e * {}); }} }}",
                step("v", 2),
                step("v", 3)
            ));
            text.line(format_args!("sum_{r} = s; }}"));
        }
        text.line("workgroupBarrier(); }");
        text.line("let blank = top == nothing;");
        for r in 0..self.share {
            text.line(format_args!("{{ let e = local + {}u;", r * LANES as usize));
            text.line(format_args!(
                "if (e < {width}) {{ store_out(out_at + e * {}, select(sum_{r} / total, {t}(0), blank)); }} }}",
                step("out", 3)
            ));
        }
        text.line(format_args!(
            "if (local == 0u) {{ store_lse(lse_at, select(top + log_{t}(total), nothing, blank)); }}"
        ));
        text.finish(LANES)
    }
}
