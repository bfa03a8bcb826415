//! Integer instructions against the host's.

mod common;

use common::apply::{Random, apply, apply1};

/// Numbers of all sizes, with the ends of the range.
fn numbers(seed: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let special = [0, 1, 2, 31, 32, 33, 63, 64, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let wide = [u64::MAX, 1 << 63, (1 << 63) - 1, 0x8000_0001];
    let mut all: Vec<u64> = special.into_iter().chain(wide).collect();
    all.extend((0..4000).map(|_| random.next() >> (random.next() % 64)));
    all.extend((0..1000).map(|_| (random.next() >> (random.next() % 64)).wrapping_neg()));
    let len = all.len() as u64;
    (0..all.len()).for_each(|at| all.swap(at, (random.next() % len) as usize));
    all
}

/// Checks an instruction on 32-bit registers.
#[track_caller]
fn narrow(code: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let [a, b, c] = [1, 2, 3].map(|seed| numbers(seed).into_iter().map(|x| x as u32).collect::<Vec<u32>>());
    for (at, found) in apply::<u32, u32, u32, u32>(code, &a, &b, &c).into_iter().enumerate() {
        let (a, b, c) = (a[at], b[at], c[at]);
        assert_eq!(found, expected(a, b, c), "{code} of {a:#x}, {b:#x}, {c:#x}: {found:#x}");
    }
}

/// Checks an instruction on 64-bit registers; the third operand has 32 bits.
#[track_caller]
fn wide(code: &str, expected: impl Fn(u64, u64, u32) -> u64) {
    let [a, b, c] = [1, 2, 3].map(numbers);
    let c: Vec<u32> = c.into_iter().map(|x| x as u32).collect();
    for (at, found) in apply::<u64, u64, u64, u32>(code, &a, &b, &c).into_iter().enumerate() {
        let (a, b, c) = (a[at], b[at], c[at]);
        assert_eq!(found, expected(a, b, c), "{code} of {a:#x}, {b:#x}, {c:#x}: {found:#x}");
    }
}

/// Checks an instruction on 16-bit registers.
#[track_caller]
fn short(code: &str, expected: impl Fn(u16, u16) -> u16) {
    let [a, b] = [1, 2].map(|seed| numbers(seed).into_iter().map(|x| x as u16).collect::<Vec<u16>>());
    for (at, found) in apply::<u16, u16, u16, u16>(code, &a, &b, &a).into_iter().enumerate() {
        assert_eq!(found, expected(a[at], b[at]), "{code} of {:#x}, {:#x}: {found:#x}", a[at], b[at]);
    }
}

#[test]
fn sums_and_products() {
    narrow("add.s32 {d}, {a}, {b};", |a, b, _| a.wrapping_add(b));
    narrow("sub.u32 {d}, {a}, {b};", |a, b, _| a.wrapping_sub(b));
    narrow("add.sat.s32 {d}, {a}, {b};", |a, b, _| (a as i32).saturating_add(b as i32) as u32);
    narrow("mul.lo.s32 {d}, {a}, {b};", |a, b, _| a.wrapping_mul(b));
    narrow("mul.hi.s32 {d}, {a}, {b};", |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
    narrow("mul.hi.u32 {d}, {a}, {b};", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    narrow("mad.lo.u32 {d}, {a}, {b}, {c};", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    narrow("mul24.lo.s32 {d}, {a}, {b};", |a, b, _| {
        let low = |x: u32| i64::from((x << 8) as i32 >> 8);
        (low(a) * low(b)) as u32
    });
    narrow("sad.s32 {d}, {a}, {b}, {c};", |a, b, c| c.wrapping_add((a as i32).abs_diff(b as i32)));
    wide("add.s64 {d}, {a}, {b};", |a, b, _| a.wrapping_add(b));
    wide("mul.lo.u64 {d}, {a}, {b};", |a, b, _| a.wrapping_mul(b));
    wide("mul.hi.u64 {d}, {a}, {b};", |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    wide("mul.hi.s64 {d}, {a}, {b};", |a, b, _| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64);
    wide("mad.wide.s32 {d}, {c}, -7, {a};", |a, _, c| (i64::from(c as i32) * -7).wrapping_add(a as i64) as u64);
    wide("mad.wide.u32 {d}, {c}, {c}, {a};", |a, _, c| (u64::from(c) * u64::from(c)).wrapping_add(a));
    short("mul.lo.s16 {d}, {a}, {b};", |a, b| a.wrapping_mul(b));
    short("mul.hi.s16 {d}, {a}, {b};", |a, b| ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u16);
    short("add.s16 {d}, {a}, {b};", |a, b| a.wrapping_add(b));
    short("sub.s16 {d}, {a}, {b};", |a, b| a.wrapping_sub(b));
}

#[test]
fn carries() {
    // 128-bit sums, differences and products of 64-bit halves.
    wide("add.cc.u64 {d}, {a}, {b}; addc.u64 {d}, {a}, {b};", |a, b, _| {
        a.wrapping_add(b).wrapping_add(u64::from(a.checked_add(b).is_none()))
    });
    wide("sub.cc.u64 {d}, {a}, {b}; subc.u64 {d}, {a}, {b};", |a, b, _| {
        a.wrapping_sub(b).wrapping_sub(u64::from(a < b))
    });
    narrow("sub.cc.u32 {d}, {a}, {b}; subc.cc.u32 {d}, {a}, {b}; subc.u32 {d}, {c}, 0;", |a, b, c| {
        let twice = (u64::from(a) << 32 | u64::from(a)).checked_sub(u64::from(b) << 32 | u64::from(b));
        c.wrapping_sub(u32::from(twice.is_none()))
    });
    narrow("mad.lo.cc.u32 {d}, {a}, {b}, {c}; madc.hi.u32 {d}, {a}, {b}, 0;", |a, b, c| {
        ((u64::from(a) * u64::from(b) + u64::from(c)) >> 32) as u32
    });
}

#[test]
fn quotients() {
    narrow("div.s32 {d}, {a}, {b};", |a, b, _| if b == 0 { !0 } else { (a as i32).wrapping_div(b as i32) as u32 });
    narrow("rem.s32 {d}, {a}, {b};", |a, b, _| if b == 0 { !0 } else { (a as i32).wrapping_rem(b as i32) as u32 });
    narrow("div.u32 {d}, {a}, {b};", |a, b, _| a.checked_div(b).unwrap_or(!0));
    wide("rem.u64 {d}, {a}, {b};", |a, b, _| a.checked_rem(b).unwrap_or(!0));
    wide("div.s64 {d}, {a}, {b};", |a, b, _| if b == 0 { !0 } else { (a as i64).wrapping_div(b as i64) as u64 });
    short("div.s16 {d}, {a}, {b};", |a, b| if b == 0 { !0 } else { (a as i16).wrapping_div(b as i16) as u16 });
}

#[test]
fn order_and_sign() {
    narrow("min.s32 {d}, {a}, {b};", |a, b, _| (a as i32).min(b as i32) as u32);
    narrow("max.u32 {d}, {a}, {b};", |a, b, _| a.max(b));
    narrow("abs.s32 {d}, {a};", |a, _, _| (a as i32).wrapping_abs() as u32);
    narrow("neg.s32 {d}, {a};", |a, _, _| a.wrapping_neg());
    wide("max.s64 {d}, {a}, {b};", |a, b, _| (a as i64).max(b as i64) as u64);
    wide("abs.s64 {d}, {a};", |a, _, _| (a as i64).wrapping_abs() as u64);
    short("min.s16 {d}, {a}, {b};", |a, b| (a as i16).min(b as i16) as u16);
    short("neg.s16 {d}, {a};", |a, _| a.wrapping_neg());
    let select = "setp.{op} %p2, {a}, {b}; selp.b32 {d}, 5, {c}, %p2;";
    type Holds = fn(u32, u32) -> bool;
    let cases: [(&str, Holds); 10] = [
        ("eq.s32", |a, b| a == b),
        ("ne.u32", |a, b| a != b),
        ("lt.s32", |a, b| (a as i32) < b as i32),
        ("le.s32", |a, b| a as i32 <= b as i32),
        ("gt.s32", |a, b| a as i32 > b as i32),
        ("ge.s32", |a, b| a as i32 >= b as i32),
        ("lt.u32", |a, b| a < b),
        ("ls.u32", |a, b| a <= b),
        ("hi.u32", |a, b| a > b),
        ("ge.u32", |a, b| a >= b),
    ];
    for (op, holds) in cases {
        narrow(&select.replace("{op}", op), |a, b, c| if holds(a, b) { 5 } else { c });
    }
    let combined = "setp.lt.s32 %p3, {b}, {c}; setp.gt.or.s32 %p1|%p2, {a}, {b}, %p3; selp.b32 %r5, 1, 0, %p1; \
                    selp.b32 %r6, 2, 0, %p2; add.s32 {d}, %r5, %r6;";
    narrow(combined, |a, b, c| {
        let (gt, with) = (a as i32 > b as i32, (b as i32) < c as i32);
        u32::from(gt || with) + 2 * u32::from(!gt || with)
    });
    narrow("slct.u32.s32 {d}, {a}, {b}, {c};", |a, b, c| if c as i32 >= 0 { a } else { b });
}

#[test]
fn bits() {
    narrow("and.b32 {d}, {a}, {b};", |a, b, _| a & b);
    narrow("xor.b32 {d}, {a}, -5;", |a, _, _| a ^ !4);
    narrow("not.b32 {d}, {a};", |a, _, _| !a);
    narrow("cnot.b32 {d}, {a};", |a, _, _| u32::from(a == 0));
    narrow("popc.b32 {d}, {a};", |a, _, _| a.count_ones());
    narrow("clz.b32 {d}, {a};", |a, _, _| a.leading_zeros());
    narrow("brev.b32 {d}, {a};", |a, _, _| a.reverse_bits());
    narrow("bfind.u32 {d}, {a};", |a, _, _| a.checked_ilog2().unwrap_or(!0));
    narrow("bfind.s32 {d}, {a};", |a, _, _| (if (a as i32) < 0 { !a } else { a }).checked_ilog2().unwrap_or(!0));
    narrow("shl.b32 {d}, {a}, {b};", |a, b, _| a.checked_shl(b).unwrap_or(0));
    narrow("shr.u32 {d}, {a}, {b};", |a, b, _| a.checked_shr(b).unwrap_or(0));
    narrow("shr.s32 {d}, {a}, {b};", |a, b, _| (a as i32 >> b.min(31)) as u32);
    narrow(
        "shf.l.wrap.b32 {d}, {a}, {b}, {c};",
        |a, b, c| if c % 32 == 0 { b } else { b << (c % 32) | a >> (32 - c % 32) },
    );
    narrow(
        "shf.r.wrap.b32 {d}, {a}, {b}, {c};",
        |a, b, c| if c % 32 == 0 { a } else { a >> (c % 32) | b << (32 - c % 32) },
    );
    narrow("shf.r.clamp.b32 {d}, {a}, {b}, {c};", |a, b, c| match c {
        0 => a,
        c if c >= 32 => b,
        c => a >> c | b << (32 - c),
    });
    narrow("lop3.b32 {d}, {a}, {b}, {c}, 0x96;", |a, b, c| a ^ b ^ c);
    narrow("lop3.b32 {d}, {a}, {b}, {c}, 0xca;", |a, b, c| (a & b) | (!a & c));
    narrow("prmt.b32 {d}, {a}, {b}, 0x4321;", |a, b, _| a >> 8 | b << 24);
    narrow("prmt.b32 {d}, {a}, {b}, 0x9910;", |a, _, _| {
        let sign = if a & 0x8000 == 0 { 0 } else { 0xffff };
        a & 0xffff | sign << 16
    });
    narrow("bfe.u32 {d}, {a}, 5, 9;", |a, _, _| a >> 5 & 511);
    narrow("bfe.s32 {d}, {a}, 5, 9;", |a, _, _| ((a << 18) as i32 >> 23) as u32);
    narrow("bfi.b32 {d}, {a}, {b}, 7, 12;", |a, b, _| b & !(0xfff << 7) | (a & 0xfff) << 7);
    narrow("dp4a.s32.u32 {d}, {a}, {b}, {c};", |a, b, c| {
        (0..4).fold(c, |sum, at| {
            let (x, y) = (i32::from((a >> (8 * at)) as i8), i32::from((b >> (8 * at)) as u8));
            sum.wrapping_add((x * y) as u32)
        })
    });
    narrow("dp2a.lo.s32.u32 {d}, {a}, {b}, {c};", |a, b, c| {
        let (x, y) = ([a as i16, (a >> 16) as i16].map(i32::from), [b as u8, (b >> 8) as u8].map(i32::from));
        c.wrapping_add((x[0] * y[0] + x[1] * y[1]) as u32)
    });
    narrow("dp2a.hi.u32.s32 {d}, {a}, {b}, {c};", |a, b, c| {
        let (x, y) = ([a as u16, (a >> 16) as u16].map(i32::from), [(b >> 16) as i8, (b >> 24) as i8].map(i32::from));
        c.wrapping_add((x[0] * y[0] + x[1] * y[1]) as u32)
    });
    wide("shl.b64 {d}, {a}, {c};", |a, _, c| a.checked_shl(c).unwrap_or(0));
    wide("shr.s64 {d}, {a}, {c};", |a, _, c| (a as i64 >> c.min(63)) as u64);
    wide("bfe.u64 {d}, {a}, 13, 40;", |a, _, _| a >> 13 & ((1 << 40) - 1));
    wide("bfi.b64 {d}, {a}, {b}, 32, 32;", |a, b, _| b & 0xffff_ffff | a << 32);
    wide("brev.b64 {d}, {a};", |a, _, _| a.reverse_bits());
    short("shr.s16 {d}, {a}, 3;", |a, _| (a as i16 >> 3) as u16);
    short("not.b16 {d}, {a};", |a, _| !a);
    let wide: Vec<u64> = numbers(9);
    for (code, expected) in [("popc", u64::count_ones as fn(u64) -> u32), ("clz", u64::leading_zeros)] {
        let found = apply1::<u32, u64>(&format!("{code}.b64 {{d}}, {{a}};"), &wide);
        assert!(found.into_iter().eq(wide.iter().map(|x| expected(*x))), "{code}");
    }
}

#[test]
fn conversions_and_moves() {
    narrow("cvt.s32.s8 {d}, {a};", |a, _, _| i32::from(a as i8) as u32);
    narrow("cvt.u32.u8 {d}, {a};", |a, _, _| a & 255);
    narrow("cvt.sat.u8.s32 {d}, {a};", |a, _, _| (a as i32).clamp(0, 255) as u32);
    narrow("cvt.sat.s8.s32 {d}, {a};", |a, _, _| (a as i32).clamp(-128, 127) as u32);
    narrow("cvt.u16.u32 %h1, {a}; cvt.s32.s16 {d}, %h1;", |a, _, _| i32::from(a as i16) as u32);
    narrow("mov.b32 {%h1, %h2}, {a}; mov.b32 {d}, {%h2, %h1};", |a, _, _| a.rotate_left(16));
    wide("cvt.s64.s32 {d}, {c};", |_, _, c| i64::from(c as i32) as u64);
    wide("cvt.u64.u32 {d}, {c};", |_, _, c| c.into());
    wide("mov.b64 {%r5, %r6}, {a}; mov.b64 {d}, {%r6, %r5};", |a, _, _| a.rotate_left(32));
    wide("cvt.u32.u64 %r5, {a}; cvt.u64.u32 {d}, %r5;", |a, _, _| a & 0xffff_ffff);
}
