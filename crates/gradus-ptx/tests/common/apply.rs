//! One instruction over arrays.

use super::{Arg, Device};

/// A number in a register.
pub(crate) trait Word: bytemuck::Pod {
    /// The type of its loads and stores, and the prefix of its registers.
    const KIND: (&'static str, &'static str);
}

impl Word for u16 {
    const KIND: (&'static str, &'static str) = ("b16", "%h");
}

impl Word for u32 {
    const KIND: (&'static str, &'static str) = ("b32", "%r");
}

impl Word for u64 {
    const KIND: (&'static str, &'static str) = ("b64", "%rd");
}

impl Word for f32 {
    const KIND: (&'static str, &'static str) = ("f32", "%f");
}

impl Word for f64 {
    const KIND: (&'static str, &'static str) = ("f64", "%fd");
}

/// Runs instructions for each element. `{d}` is the result and `{a}`, `{b}`, `{c}` are the operands.
pub(crate) fn apply<D: Word, A: Word, B: Word, C: Word>(code: &str, a: &[A], b: &[B], c: &[C]) -> Vec<D> {
    let count = a.len();
    assert!(b.len() == count && c.len() == count);
    let register = |(_, prefix): (&str, &str), index: u32| format!("{prefix}{}", 30 + index);
    let names = [register(A::KIND, 1), register(B::KIND, 2), register(C::KIND, 3)];
    let mut body = String::from(
        "    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %ntid.x;\n    mov.u32 %r3, %tid.x;\n    mad.lo.s32 %r4, %r1, %r2, \
         %r3;\n    ld.param.u32 %r5, [count];\n    setp.ge.u32 %p1, %r4, %r5;\n    @%p1 ret;\n",
    );
    let kinds = [(A::KIND.0, size_of::<A>()), (B::KIND.0, size_of::<B>()), (C::KIND.0, size_of::<C>())];
    for ((name, (kind, size)), param) in names.iter().zip(kinds).zip(["a", "b", "c"]) {
        body += &format!("    ld.param.u64 %rd1, [{param}];\n    mad.wide.u32 %rd1, %r4, {size}, %rd1;\n");
        body += &format!("    ld.global.{kind} {name}, [%rd1];\n");
    }
    let d = register(D::KIND, 4);
    let code = [("{d}", &d), ("{a}", &names[0]), ("{b}", &names[1]), ("{c}", &names[2])]
        .iter()
        .fold(code.to_owned(), |text, (from, to)| text.replace(from, to));
    let size = size_of::<D>();
    body += &format!("    {code}\n    ld.param.u64 %rd1, [d];\n    mad.wide.u32 %rd1, %r4, {size}, %rd1;\n");
    body += &format!("    st.global.{} [%rd1], {d};\n", D::KIND.0);
    let mut device = Device::kernel(&[".u64 d", ".u64 a", ".u64 b", ".u64 c", ".u32 count"], &body);
    device.limits.races = false;
    let to = device.alloc::<D>(count);
    let from = [device.upload(a), device.upload(b), device.upload(c)];
    let [a, b, c] = from.map(Arg::U64);
    let args = [Arg::U64(to), a, b, c, Arg::U32(count as u32)];
    device.run("test", count.div_ceil(256) as u32, 256, &args).unwrap_or_else(|fault| panic!("{code}: {fault}"));
    device.download(to, count)
}

/// The same for one operand.
pub(crate) fn apply1<D: Word, A: Word>(code: &str, a: &[A]) -> Vec<D> {
    apply(code, a, a, a)
}

/// The same for two operands.
pub(crate) fn apply2<D: Word, A: Word>(code: &str, a: &[A], b: &[A]) -> Vec<D> {
    apply(code, a, b, a)
}

/// Random numbers: a linear congruential generator's upper bits.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0 >> 32
        };
        next() << 32 | next()
    }
}
