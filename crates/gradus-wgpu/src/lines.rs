//! Kernels over lines. The elements of a line are shared by `lanes` invocations, which loop over them as often as the
//! formula requires and combine their results in shared memory.

use gradus_backend::{DType, Result, View, ViewMut};

use crate::WgpuBackend;
use crate::operand::Bound;
use crate::queue::{Bind, Call, Launch};
use crate::wgsl::{self, GROUP, Text, param};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

/// Everything that the text of a kernel over lines depends on. The order of the parameters is: the number of lines and
/// of elements per line, the positions of the operands, the sizes and strides of the axes between lines, those of the
/// axes within lines, and finally the operation's own parameters.
#[derive(Debug, Hash)]
pub(crate) struct Lines {
    dtypes: Vec<(&'static str, DType, bool)>,
    kept: usize,
    along: usize,
    lanes: u32,
    subgroups: bool,
}

impl Lines {
    fn steps_between(&self, operand: usize) -> usize {
        2 + self.dtypes.len() + self.kept + operand * self.kept
    }

    fn sizes_within(&self) -> usize {
        self.steps_between(self.dtypes.len())
    }

    fn steps_within(&self, operand: usize) -> usize {
        self.sizes_within() + self.along + operand * self.along
    }

    /// The index of the first of the operation's own parameters.
    pub(crate) fn numbers(&self) -> usize {
        self.steps_within(self.dtypes.len())
    }

    /// Begins the text of a kernel, up to the work on a line. It declares `load_NAME`, `store_NAME` and the length `n`,
    /// and `sum_of` and `largest_of`, which combine the values of all lanes. `numbers` is the number of parameters that
    /// the operation adds.
    pub(crate) fn open(&self, numbers: usize, dtype: DType) -> Text {
        let mut text = Text::new(self.numbers() + numbers);
        for &(name, dtype, write) in &self.dtypes {
            if write { text.output(name, dtype) } else { text.input(name, dtype) }
        }
        across(&mut text, self.lanes, dtype, self.subgroups);
        let lanes = self.lanes;
        text.line(format_args!("let line = id / {lanes}u; let lane = id % {lanes}u; let n = {};", param(1)));
        text.line(format_args!("if (line >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "line", self.kept, 2 + self.dtypes.len());
        for (k, (name, ..)) in self.dtypes.iter().enumerate() {
            let at = wgsl::position("c", self.kept, 2 + k, self.steps_between(k));
            text.line(format_args!("let {name}_line = {at};"));
        }
        text
    }

    /// Adds lines of code that every lane runs for each of its elements. `j` is the number of the element.
    pub(crate) fn each(&self, text: &mut Text, lines: &[&str]) {
        text.line(format_args!("for (var j = lane; j < n; j = j + {}u) {{", self.lanes));
        wgsl::coordinates(text, "r", "j", self.along, self.sizes_within());
        for (k, (name, ..)) in self.dtypes.iter().enumerate() {
            let steps = self.steps_within(k);
            // There are at most 8 axes.
            let terms: String = (0..self.along).map(|a| format!(" + r{a} * {}", param(steps + a))).collect();
            text.line(format_args!("let {name}_at = {name}_line{terms};"));
        }
        lines.iter().for_each(|l| text.line(l));
        text.line("}");
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
    let shape = lines.iter().find_map(|l| if let Line::Read(_, v) = l { Some(*v.layout.shape()) } else { None });
    let mut operands: Vec<Bound<'_>> = Vec::with_capacity(lines.len());
    let mut dtypes = Vec::with_capacity(lines.len());
    for line in lines {
        match line {
            Line::Read(name, v) => {
                operands.push(b.input(op, name, *v)?);
                dtypes.push((*name, v.dtype, false));
            }
            Line::Write(name, v) => {
                let mut operand = b.output(op, name, v)?;
                // A statistic has size 1 along the line. It gets a stride of 0 within the line, and is written once.
                if let Some(shape) = shape {
                    operand.layout = operand.layout.expand(shape)?;
                }
                operands.push(operand);
                dtypes.push((*name, v.dtype, true));
            }
        }
    }
    let layouts: Vec<_> = operands.iter().map(|o| &o.layout).collect();
    let rank = layouts[0].rank();
    let kept = Axes::merged(&layouts, (0..rank).filter(|&a| !axes.contains(a)));
    let along = Axes::merged(&layouts, (0..rank).filter(|&a| axes.contains(a)));
    let (count, n) = (kept.numel(), along.numel());
    let lanes = match n {
        0..=32 => 1,
        33..=256 if count >= 4096 => 1,
        33..=512 => 64,
        513..=4096 if count >= 64 => 64,
        _ => GROUP,
    };
    let subgroups = b.features.contains(wgpu::Features::SUBGROUP);
    let plan = Lines { dtypes, kept: kept.rank(), along: along.rank(), lanes, subgroups };
    let mut params = vec![count as u32, n as u32];
    params.extend(layouts.iter().map(|l| l.offset() as u32));
    for axes in [&kept, &along] {
        params.extend(axes.dims.iter().map(|&d| d as u32));
        axes.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    }
    params.extend(numbers);
    let binds: Vec<Bind<'_>> = operands.iter().map(|o| o.bind).collect();
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
