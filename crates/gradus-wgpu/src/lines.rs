//! Kernels over lines. The elements of a line are shared by `lanes` invocations, which loop over them as often as the
//! formula requires and combine their results in shared memory.

use gradus_backend::{DType, Result, View, ViewMut};

use crate::WgpuBackend;
use crate::operand::Bound;
use crate::queue::{Bind, Call, Launch};
use crate::wgsl::{self, GROUP, Text, param};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

/// The largest number of groups of four elements that an invocation keeps in registers.
const HELD: usize = 4;

/// How an invocation reaches its elements of a line. It decides which elements an invocation adds up, and so the last digits
/// of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reach {
    /// One by one, along any axes.
    Single,
    /// In groups of four neighbours.
    Fours,
    /// In at most this many groups of four neighbours. Operands that are read more than once stay in registers.
    Held(u32),
}

/// An operand, as far as the text depends on it.
#[derive(Debug, Hash)]
struct Operand {
    name: &'static str,
    dtype: DType,
    write: bool,
    /// Whether the formula reads it more than once.
    again: bool,
    /// Whether it is read or written in groups of four. Other operands of such a kernel have one element for each line.
    fours: bool,
}

/// Everything that the text of a kernel over lines depends on. The order of the parameters is: the number of lines and
/// of elements per line, the positions of the operands, the sizes and strides of the axes between lines, those of the
/// axes within lines, and finally the operation's own parameters. For operands that are
/// read or written in groups of four, positions and strides count groups.
#[derive(Debug, Hash)]
pub(crate) struct Lines {
    operands: Vec<Operand>,
    kept: usize,
    along: usize,
    lanes: u32,
    reach: Reach,
    subgroups: bool,
}

impl Lines {
    fn steps_between(&self, operand: usize) -> usize {
        2 + self.operands.len() + self.kept + operand * self.kept
    }

    fn sizes_within(&self) -> usize {
        self.steps_between(self.operands.len())
    }

    fn steps_within(&self, operand: usize) -> usize {
        self.sizes_within() + self.along + operand * self.along
    }

    /// The index of the first of the operation's own parameters.
    pub(crate) fn numbers(&self) -> usize {
        self.steps_within(self.operands.len())
    }

    /// Begins the text of a kernel, up to the work on a line. It declares the length `n`, and `sum_of` and `largest_of`,
    /// which combine the values of all lanes. `numbers` is the number of parameters that the operation adds.
    pub(crate) fn open(&self, numbers: usize, dtype: DType) -> Text {
        let mut text = Text::new(self.numbers() + numbers);
        for &Operand { name, dtype, write, fours, .. } in &self.operands {
            match (fours, write) {
                (true, _) => text.quads(name, dtype, write),
                (false, true) => text.output(name, dtype),
                (false, false) => text.input(name, dtype),
            }
        }
        across(&mut text, self.lanes, dtype, self.subgroups);
        let lanes = self.lanes;
        text.line(format_args!("let line = id / {lanes}u; let lane = id % {lanes}u; let n = {};", param(1)));
        text.line(format_args!("if (line >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "line", self.kept, 2 + self.operands.len());
        for (k, Operand { name, .. }) in self.operands.iter().enumerate() {
            let at = wgsl::position("c", self.kept, 2 + k, self.steps_between(k));
            text.line(format_args!("let {name}_line = {at};"));
        }
        let Reach::Held(count) = self.reach else { return text };
        for Operand { name, dtype, .. } in self.operands.iter().filter(|o| o.fours && o.again) {
            let t = wgsl::ty(*dtype);
            for group in 0..count {
                let (q, guard) = self.held(group);
                text.line(format_args!(
                    "var {name}_{group}: array<{t}, 4>; {guard} {{ {name}_{group} = load4_{name}({name}_line + {q}); }}"
                ));
            }
        }
        text
    }

    /// The expression for the first element of operand `name` in this line.
    pub(crate) fn first(&self, name: &str) -> String {
        let fours = self.operands.iter().any(|o| o.name == name && o.fours);
        if fours { format!("load4_{name}({name}_line)[0]") } else { format!("load_{name}({name}_line)") }
    }

    /// The number of an invocation's group, and the condition for it to exist. Only the last one may not.
    fn held(&self, group: u32) -> (String, String) {
        let q = format!("lane + {}u", group * self.lanes);
        let last = matches!(self.reach, Reach::Held(count) if group + 1 == count);
        let guard = if last { format!("if ({q} < n / 4u)") } else { String::new() };
        (q, guard)
    }

    /// Adds lines of code that every lane runs for each of its elements. `j` is the number of the element. The operands in
    /// `reads` have its values under their names; the lines declare the value of the operand `write` under its name.
    pub(crate) fn each(&self, text: &mut Text, reads: &[&str], write: Option<&str>, lines: &[&str]) {
        match self.reach {
            Reach::Single => self.each_single(text, reads, write, lines),
            Reach::Fours => {
                text.line(format_args!("for (var q = lane; q < n / 4u; q = q + {}u) {{", self.lanes));
                self.each_of_four(text, None, reads, write, lines);
                text.line("}");
            }
            Reach::Held(count) => {
                for group in 0..count {
                    let (q, guard) = self.held(group);
                    text.line(format_args!("{guard} {{ let q = {q};"));
                    self.each_of_four(text, Some(group), reads, write, lines);
                    text.line("}");
                }
            }
        }
    }

    fn each_single(&self, text: &mut Text, reads: &[&str], write: Option<&str>, lines: &[&str]) {
        text.line(format_args!("for (var j = lane; j < n; j = j + {}u) {{", self.lanes));
        wgsl::coordinates(text, "r", "j", self.along, self.sizes_within());
        for (k, Operand { name, .. }) in self.operands.iter().enumerate() {
            let steps = self.steps_within(k);
            // There are at most 8 axes.
            let terms: String = (0..self.along).map(|a| format!(" + r{a} * {}", param(steps + a))).collect();
            if reads.contains(name) {
                text.line(format_args!("let {name} = load_{name}({name}_line{terms});"));
            } else if write == Some(name) {
                text.line(format_args!("let {name}_at = {name}_line{terms};"));
            }
        }
        lines.iter().for_each(|l| text.line(l));
        write.iter().for_each(|name| text.line(format_args!("store_{name}({name}_at, {name});")));
        text.line("}");
    }

    /// Adds the lines for the four elements of group `q`, which is number `group` of those that the invocation holds.
    fn each_of_four(&self, text: &mut Text, group: Option<u32>, reads: &[&str], write: Option<&str>, lines: &[&str]) {
        let mut values = Vec::new();
        for Operand { name, fours, again, .. } in self.operands.iter().filter(|o| reads.contains(&o.name)) {
            if !fours {
                text.line(format_args!("let {name} = load_{name}({name}_line);"));
                continue;
            }
            values.push(match group.filter(|_| *again) {
                Some(group) => (name, format!("{name}_{group}")),
                None => {
                    text.line(format_args!("let {name}_four = load4_{name}({name}_line + q);"));
                    (name, format!("{name}_four"))
                }
            });
        }
        let written = self.operands.iter().find(|o| write == Some(o.name));
        if let Some(Operand { name, dtype, .. }) = written {
            text.line(format_args!("var {name}_four: array<{}, 4>;", wgsl::ty(*dtype)));
        }
        for k in 0..4 {
            text.line(format_args!("{{ let j = q * 4u + {k}u;"));
            values.iter().for_each(|(name, four)| text.line(format_args!("let {name} = {four}[{k}];")));
            lines.iter().for_each(|l| text.line(l));
            write.iter().for_each(|name| text.line(format_args!("{name}_four[{k}] = {name};")));
            text.line("}");
        }
        write.iter().for_each(|name| text.line(format_args!("store4_{name}({name}_line + q, {name}_four);")));
    }

    /// Adds a line of code that only the first lane runs.
    pub(crate) fn once(&self, text: &mut Text, line: &str) {
        text.line(format_args!("if (lane == 0u) {{ {line} }}"));
    }

    /// Ends the text and returns it.
    pub(crate) fn close(&self, text: Text) -> String {
        text.finish(if self.lanes == 1 { GROUP } else { self.lanes })
    }
}

/// Declares `sum_of` and `largest_of`, which combine a value from each of `lanes` invocations and return the result to
/// all of them. With `subgroups`, values of f32 are exchanged within subgroups before they go through shared memory,
/// which takes two barriers instead of one for each halving. The order of the additions then depends on the device's
/// subgroup size.
fn across(text: &mut Text, lanes: u32, dtype: DType, subgroups: bool) {
    let t = wgsl::ty(dtype);
    let subgroups = subgroups && t == "f32" && lanes > 1;
    if subgroups {
        text.use_subgroups();
    }
    for (name, join) in [("sum_of", "a + b".to_owned()), ("largest_of", format!("larger_{t}(a, b)"))] {
        if lanes == 1 {
            text.declare(format_args!("fn {name}(v: {t}, local: u32) -> {t} {{ return v; }}"));
            continue;
        }
        text.declare(format_args!("fn {name}_two(a: {t}, b: {t}) -> {t} {{ return {join}; }}"));
        let combine = if subgroups {
            format!(
                "var all = v;\n  for (var d = 1u; d < subgroup_width; d = d * 2u) {{ all = {name}_two(all, \
                 subgroupShuffleXor(all, d)); }}\n  if (subgroup_lane == 0u) {{ lane_values[subgroup] = all; }}\n  \
                 workgroupBarrier();\n  all = lane_values[0];\n  for (var s = 1u; s < subgroups; s = s + 1u) {{ all = \
                 {name}_two(all, lane_values[s]); }}\n"
            )
        } else {
            format!(
                "lane_values[local] = v; workgroupBarrier();\n  for (var half = {}u; half > 0u; half = half / 2u) {{\n    \
                 if (local < half) {{ lane_values[local] = {name}_two(lane_values[local], lane_values[local + half]); \
                 }}\n    workgroupBarrier();\n  }}\n  let all = lane_values[0];\n",
                lanes / 2
            )
        };
        text.declare(format_args!(
            "fn {name}(v: {t}, local: u32) -> {t} {{\n  {combine}  workgroupBarrier();\n  return all;\n}}"
        ));
    }
    if lanes > 1 {
        text.declare(format_args!("var<workgroup> lane_values: array<{t}, {}>;", lanes));
    }
}

/// An operand of a kernel over lines.
pub(crate) enum Line<'a, 'v> {
    Read(&'static str, View<'a>),
    /// An operand that the formula reads more than once.
    Again(&'static str, View<'a>),
    Write(&'static str, &'a ViewMut<'v>),
}

/// Runs a kernel over the lines along `axes`. The operands have the same shape, and some of them may be broadcast.
/// `source` returns the kernel's text, which may depend only on the operation, `variant` and the [`Lines`].
pub(crate) fn run(
    b: &WgpuBackend,
    call: Call<'_>,
    variant: u32,
    axes: gradus_backend::Axes,
    lines: &[Line<'_, '_>],
    numbers: &[u32],
    source: impl Fn(&Lines) -> String,
) -> Result<()> {
    let op = call.op;
    let shape = lines.iter().find_map(|l| match l {
        Line::Read(_, v) | Line::Again(_, v) => Some(*v.layout.shape()),
        Line::Write(..) => None,
    });
    let mut bound: Vec<Bound<'_>> = Vec::with_capacity(lines.len());
    let mut operands = Vec::with_capacity(lines.len());
    for line in lines {
        let (name, dtype) = match line {
            Line::Read(name, v) | Line::Again(name, v) => {
                bound.push(b.input(op, name, *v)?);
                (*name, v.dtype)
            }
            Line::Write(name, v) => {
                let mut operand = b.output(op, name, v)?;
                // A statistic has size 1 along the line. It gets a stride of 0 within the line, and is written once.
                if let Some(shape) = shape {
                    operand.layout = operand.layout.expand(shape)?;
                }
                bound.push(operand);
                (*name, v.dtype)
            }
        };
        let (write, again) = (matches!(line, Line::Write(..)), matches!(line, Line::Again(..)));
        operands.push(Operand { name, dtype, write, again, fours: false });
    }
    let layouts: Vec<_> = bound.iter().map(|o| &o.layout).collect();
    let rank = layouts[0].rank();
    let mut kept = Axes::merged(&layouts, (0..rank).filter(|&a| !axes.contains(a)));
    let along = Axes::merged(&layouts, (0..rank).filter(|&a| axes.contains(a)));
    let (count, n) = (kept.numel(), along.numel());
    let lanes = match n {
        0..=32 => 1,
        33..=256 if count >= 4096 => 1,
        33..=512 => 64,
        513..=4096 if count >= 64 => 64,
        _ => GROUP,
    };
    let mut starts: Vec<isize> = layouts.iter().map(|l| l.offset() as isize).collect();
    let in_fours = |k: usize| {
        let aligned = || kept.steps[k].iter().chain([&starts[k]]).all(|s| s % 4 == 0);
        along.steps[k] == [1] && operands[k].dtype.size() <= 4 && aligned()
    };
    let fours: Vec<bool> = (0..operands.len()).map(in_fours).collect();
    let one_each = |k: usize| fours[k] || along.steps[k] == [0];
    let reach = if n.is_multiple_of(4) && (0..operands.len()).all(one_each) { reach(n, lanes) } else { Reach::Single };
    if reach != Reach::Single {
        for k in (0..operands.len()).filter(|&k| fours[k]) {
            operands[k].fours = true;
            kept.steps[k].iter_mut().chain([&mut starts[k]]).for_each(|s| *s /= 4);
        }
    }
    let subgroups = b.features.contains(wgpu::Features::SUBGROUP);
    let plan = Lines { operands, kept: kept.rank(), along: along.rank(), lanes, reach, subgroups };
    let mut params = vec![count as u32, n as u32];
    params.extend(starts.iter().map(|&s| s as u32));
    for axes in [&kept, &along] {
        params.extend(axes.dims.iter().map(|&d| d as u32));
        axes.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    }
    params.extend(numbers);
    let binds: Vec<Bind<'_>> = bound.iter().map(|o| o.bind).collect();
    let groups = if lanes == 1 { (count as u64).div_ceil(u64::from(GROUP)) } else { count as u64 };
    b.queue().launch(&Launch {
        call,
        key: key(("lines", op, variant, &plan)),
        source: &|| source(&plan),
        binds: &binds,
        params: &params,
        groups,
    })
}

/// How an invocation reaches its elements of a line of `n` elements, if they can be read in groups of four.
fn reach(n: usize, lanes: u32) -> Reach {
    match (n / 4).div_ceil(lanes as usize) {
        count @ 1..=HELD => Reach::Held(count as u32),
        _ => Reach::Fours,
    }
}
