//! The text of kernels: types, access to elements of any dtype, coordinates, and the functions that WGSL lacks.
//!
//! The elements of storage buffers have 4 or 8 bytes; a 64-bit integer is two words (see `words`). A smaller element of
//! 1 or 2 bytes is part of a word. A read shifts and masks the word. A write replaces the element's own bits
//! atomically, so that neighbours written by other invocations are preserved.

/// Declares the functions that kernels call, each with its name and its text.
macro_rules! library {
    ($($name:ident: $body:literal)*) => {
        /// The functions of this module, each with its name and its text.
        pub(super) const LIBRARY: &[(&str, &str)] = &[$((stringify!($name), $body),)*];
    };
}

mod functions;
mod functions64;
mod library;
mod pairs;
mod scalar;
mod words;

use std::fmt::Write;

use gradus_backend::DType;

pub(crate) use scalar::{binary, cast, constant, instruction};

/// The number of invocations in a work-group.
pub(crate) const GROUP: u32 = 256;

/// The WGSL type that a dtype computes in.
pub(crate) fn ty(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "f32",
        DType::F64 => "f64",
        DType::I64 | DType::U64 => "vec2<u32>",
        DType::I32 | DType::I16 | DType::I8 => "i32",
        DType::U32 | DType::U16 | DType::U8 => "u32",
        DType::Bool => "bool",
    }
}

/// The suffix of the names of functions for a dtype, as in `larger_f32`.
pub(crate) fn suffix(dtype: DType) -> &'static str {
    match dtype {
        DType::I64 => "i64",
        DType::U64 => "u64",
        d => ty(d),
    }
}

/// The text of a kernel under construction.
#[derive(Debug, Default)]
pub(crate) struct Text {
    head: String,
    body: String,
    bindings: u32,
    subgroups: bool,
}

impl Text {
    /// Starts the text of a kernel with `params` parameters, which are 32-bit words and are read by [`param`].
    pub(crate) fn new(params: usize) -> Text {
        let mut text = Text { bindings: 1, ..Text::default() };
        let n = (params + 1).div_ceil(4);
        text.declare(format_args!("@group(0) @binding(0) var<uniform> P: array<vec4<u32>, {n}>;"));
        // The parameter after the last one is 0, but no compiler can know that; see `opaque_f32`.
        text.declare(format_args!("fn ZERO() -> u32 {{ return {}; }}", param(params)));
        text
    }

    /// Adds a line outside the main function.
    pub(crate) fn declare(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.head, "{line}");
    }

    /// Adds a line to the main function.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.body, "  {line}");
    }

    /// Adds the next binding as an operand that is read. `load_NAME(position)` returns a value of its compute type.
    pub(crate) fn input(&mut self, name: &str, dtype: DType) {
        let (b, cell) = (self.bindings, cell(dtype));
        self.bindings += 1;
        self.declare(format_args!("@group(0) @binding({b}) var<storage, read> b_{name}: array<{cell}>;"));
        self.load(name, dtype, false);
    }

    /// Adds the next binding as an output, written with `store_NAME(position, value)`. It can be loaded as well.
    pub(crate) fn output(&mut self, name: &str, dtype: DType) {
        let (b, cell) = (self.bindings, cell(dtype));
        self.bindings += 1;
        let small = dtype.size() < 4;
        let cell = if small { "atomic<u32>" } else { cell };
        self.declare(format_args!("@group(0) @binding({b}) var<storage, read_write> b_{name}: array<{cell}>;"));
        self.load(name, dtype, small);
        let (t, bits) = (ty(dtype), to_bits("v", dtype));
        if !small {
            self.declare(format_args!("fn store_{name}(i: u32, v: {t}) {{ b_{name}[i] = v; }}"));
            return;
        }
        let (shift, at, mask) = within_word(dtype);
        self.declare(format_args!(
            "fn store_{name}(i: u32, v: {t}) {{\n  let s = {at}; let old = atomicLoad(&b_{name}[i >> {shift}u]);\n  \
             atomicXor(&b_{name}[i >> {shift}u], (old ^ (({bits}) << s)) & ({mask} << s));\n}}"
        ));
    }

    /// Declares the next binding as an operand of at most 4 bytes an element, of which an invocation reads and writes
    /// four neighbours: `load4_NAME(group)` and, if it is `written`, `store4_NAME(group, values)`. A group of four fills
    /// whole words, so stores need no atomics.
    pub(crate) fn quads(&mut self, name: &str, dtype: DType, written: bool) {
        let (b, t) = (self.bindings, ty(dtype));
        self.bindings += 1;
        let cell = match dtype.size() {
            4 => format!("vec4<{t}>"),
            2 => "vec2<u32>".to_owned(),
            _ => "u32".to_owned(),
        };
        let access = if written { "read_write" } else { "read" };
        self.declare(format_args!("@group(0) @binding({b}) var<storage, {access}> b_{name}: array<{cell}>;"));
        let loaded = match dtype.size() {
            4 => ["w.x", "w.y", "w.z", "w.w"].map(str::to_owned),
            2 => ["w.x & 0xffffu", "w.x >> 16u", "w.y & 0xffffu", "w.y >> 16u"]
                .map(|bits| from_bits(&format!("({bits})"), dtype)),
            _ => [0, 8, 16, 24].map(|shift| from_bits(&format!("((w >> {shift}u) & 0xffu)"), dtype)),
        };
        self.declare(format_args!(
            "fn load4_{name}(i: u32) -> array<{t}, 4> {{ let w = b_{name}[i]; return array<{t}, 4>({}); }}",
            loaded.join(", ")
        ));
        if !written {
            return;
        }
        let [v0, v1, v2, v3] = [0, 1, 2, 3].map(|k| match (dtype, dtype.size()) {
            (_, 4) => format!("v[{k}]"),
            // These set no higher bits.
            (DType::F16 | DType::BF16 | DType::Bool, _) => to_bits(&format!("v[{k}]"), dtype),
            (_, size) => format!("(({}) & {})", to_bits(&format!("v[{k}]"), dtype), ["0xffu", "0xffffu"][size - 1]),
        });
        let stored = match dtype.size() {
            4 => format!("{cell}({v0}, {v1}, {v2}, {v3})"),
            2 => format!("vec2<u32>({v0} | ({v1} << 16u), {v2} | ({v3} << 16u))"),
            _ => format!("{v0} | ({v1} << 8u) | ({v2} << 16u) | ({v3} << 24u)"),
        };
        self.declare(format_args!("fn store4_{name}(i: u32, v: array<{t}, 4>) {{ b_{name}[i] = {stored}; }}"));
    }

    fn load(&mut self, name: &str, dtype: DType, atomic: bool) {
        let t = ty(dtype);
        let value = if dtype.size() >= 4 {
            format!("b_{name}[i]")
        } else {
            let (shift, at, mask) = within_word(dtype);
            let cell = format!("b_{name}[i >> {shift}u]");
            let cell = if atomic { format!("atomicLoad(&{cell})") } else { cell };
            from_bits(&format!("(({cell} >> {at}) & {mask})"), dtype)
        };
        self.declare(format_args!("fn load_{name}(i: u32) -> {t} {{ return {value}; }}"));
    }

    /// Adds the fault buffer as the last binding, and `fail()`, which marks the slot whose number is parameter `slot`.
    pub(crate) fn fault(&mut self, slot: usize) {
        let b = self.bindings;
        self.bindings += 1;
        self.declare(format_args!("@group(0) @binding({b}) var<storage, read_write> faults: array<atomic<u32>>;"));
        self.declare(format_args!("fn fail() {{ atomicStore(&faults[{} * 8u], 1u); }}", param(slot)));
    }

    /// Lets functions use `subgroup`, the number of the invocation's subgroup among the `subgroups` of the work-group,
    /// and `subgroup_lane`, its number among the `subgroup_width` invocations of the subgroup.
    pub(crate) fn use_subgroups(&mut self) {
        self.subgroups = true;
        for name in ["subgroup", "subgroups", "subgroup_lane", "subgroup_width"] {
            self.declare(format_args!("var<private> {name}: u32;"));
        }
    }

    /// Returns only the lines of the main function.
    pub(crate) fn into_body(self) -> String {
        self.body
    }

    /// Returns the whole text: the declarations, the library functions that are used, and a main function with `size`
    /// invocations per work-group. In the main function, `group` is the number of the work-group, `local` the number of
    /// the invocation within its group, and `id` the number of the invocation among all.
    pub(crate) fn finish(self, size: u32) -> String {
        let (arguments, kept) = if self.subgroups {
            (
                ", @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) sgs: u32, @builtin(subgroup_invocation_id) sl: \
                 u32, @builtin(subgroup_size) sw: u32",
                "  subgroup = sg; subgroups = sgs; subgroup_lane = sl; subgroup_width = sw;\n",
            )
        } else {
            ("", "")
        };
        let main = format!(
            "@compute @workgroup_size({size})\nfn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nw: \
             vec3<u32>, @builtin(local_invocation_index) local: u32{arguments}) {{\n{kept}  let group = wg.y * nw.x + \
             wg.x;\n  let id = group * {size}u + local;\n{}}}\n",
            self.body
        );
        library::with_used(&format!("{}{main}", self.head))
    }
}

/// The expression for parameter number `i`.
pub(crate) fn param(i: usize) -> String {
    format!("P[{}].{}", i / 4, ["x", "y", "z", "w"][i % 4])
}

/// The WGSL type of a buffer's cells.
fn cell(dtype: DType) -> &'static str {
    if dtype.size() < 4 { "u32" } else { ty(dtype) }
}

/// For dtypes of 1 and 2 bytes: the shift from a position to its word, the shift of the element's bits within the word,
/// and the mask of these bits.
fn within_word(dtype: DType) -> (u32, &'static str, &'static str) {
    if dtype.size() == 1 { (2, "((i & 3u) << 3u)", "0xffu") } else { (1, "((i & 1u) << 4u)", "0xffffu") }
}

/// The expression for the value of bits that have been shifted down and masked.
fn from_bits(bits: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("({bits} != 0u)"),
        DType::U8 | DType::U16 => bits.to_owned(),
        DType::I8 => format!("((bitcast<i32>({bits}) << 24u) >> 24u)"),
        DType::I16 => format!("((bitcast<i32>({bits}) << 16u) >> 16u)"),
        DType::F16 => format!("f32_from_f16({bits})"),
        DType::BF16 => format!("bitcast<f32>({bits} << 16u)"),
        _ => bits.to_owned(),
    }
}

/// The expression for the bits of a value, in the low bits of a u32. Only an integer may set higher bits, which the store masks off.
fn to_bits(value: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("select(0u, 1u, {value})"),
        DType::U8 | DType::U16 => value.to_owned(),
        DType::I8 | DType::I16 => format!("bitcast<u32>({value})"),
        DType::F16 => format!("f16_from_f32({value})"),
        DType::BF16 => format!("bf16_from_f32({value})"),
        _ => value.to_owned(),
    }
}

/// Takes the coordinate along an axis of size `size` from `NAME_rest`. The remainder comes from the quotient, since integer divisions
/// are slow.
pub(crate) fn divided(name: &str, axis: usize, size: &str) -> String {
    format!(
        "let {name}_over{axis} = {name}_rest / {size}; let {name}{axis} = {name}_rest - {name}_over{axis} * {size}; \
         {name}_rest = {name}_over{axis};"
    )
}

/// Adds code that splits the number `of` into coordinates `NAME0, NAME1, ..` along axes whose sizes are the parameters
/// from `dims` on. The outermost coordinate is the remaining quotient.
pub(crate) fn coordinates(text: &mut Text, name: &str, of: &str, rank: usize, dims: usize) {
    if rank == 1 {
        text.line(format_args!("let {name}0 = {of};"));
    } else if rank > 1 {
        text.line(format_args!("var {name}_rest = {of};"));
        for axis in (1..rank).rev() {
            let d = param(dims + axis);
            text.line(divided(name, axis, &d));
        }
        text.line(format_args!("let {name}0 = {name}_rest;"));
    }
}

/// The position `base + sum(NAMEi * stride i)`, where `base` and the strides are parameters.
pub(crate) fn position(name: &str, rank: usize, base: usize, steps: usize) -> String {
    let terms = (0..rank).map(|axis| format!(" + {name}{axis} * {}", param(steps + axis)));
    format!("{}{}", param(base), terms.collect::<String>())
}
