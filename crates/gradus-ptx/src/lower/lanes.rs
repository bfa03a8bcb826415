//! Macros that make an operation on all lanes of an operation on one.

/// An operation on 32-bit registers.
macro_rules! v {
    (|$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        $crate::lower::Fun::V(|a, b, c| {
            let mut out = [0u32; 32];
            for lane in 0..32 {
                let ($x, $y, $z) = (a[lane], b[lane], c[lane]);
                out[lane] = $e;
            }
            out
        })
    };
}

/// An operation on registers of any width; narrow ones are extended with zeros.
macro_rules! w {
    (|$x:pat_param, $y:pat_param, $z:pat_param, $t:pat_param| $e:expr) => {
        $crate::lower::Fun::W(|a, b, c, d| {
            let mut out = [0u64; 32];
            for lane in 0..32 {
                let ($x, $y, $z, $t) = (a[lane], b[lane], c[lane], d[lane]);
                out[lane] = $e;
            }
            out
        })
    };
}

/// An operation on integers of the type `T`, for those of the types that are named.
macro_rules! ints {
    ($kind:expr, |$x:pat_param, $y:pat_param, $z:pat_param| $T:ident $e:expr) => {
        match $kind {
            Type::U16 | Type::B16 => Some(v!(|x, y, z| ints!(lane u16, u16, u32, x, y, z, |$x, $y, $z| $T $e))),
            Type::S16 => Some(v!(|x, y, z| ints!(lane i16, u16, u32, x, y, z, |$x, $y, $z| $T $e))),
            Type::U32 | Type::B32 => Some(v!(|x, y, z| ints!(lane u32, u32, u32, x, y, z, |$x, $y, $z| $T $e))),
            Type::S32 => Some(v!(|x, y, z| ints!(lane i32, u32, u32, x, y, z, |$x, $y, $z| $T $e))),
            Type::U64 | Type::B64 => Some(w!(|x, y, z, _| ints!(lane u64, u64, u64, x, y, z, |$x, $y, $z| $T $e))),
            Type::S64 => Some(w!(|x, y, z, _| ints!(lane i64, u64, u64, x, y, z, |$x, $y, $z| $T $e))),
            _ => None,
        }
    };
    (lane $t:ty, $u:ty, $word:ty, $a:ident, $b:ident, $c:ident, |$x:pat_param, $y:pat_param, $z:pat_param| $T:ident $e:expr) => {{
        #[allow(dead_code)]
        type $T = $t;
        let ($x, $y, $z) = ($a as $t, $b as $t, $c as $t);
        let result: $t = $e;
        result as $u as $word
    }};
}
