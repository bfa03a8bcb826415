//! The instruction set that the kernels run on, chosen once, when the backend is created.
//!
//! Each algorithm is written once, as a generic `#[inline(always)]` function over slices. [`per_isa!`] instantiates it
//! inside functions that enable the target features, where LLVM turns its loops into wide vector code, and dispatches
//! to the right instance. All instances do the same IEEE operations in the same order, so their results have the same
//! bits. Fused operations are written as `mul_add`, and Rust never fuses operations by itself.

use gradus_backend::{Error, ErrorKind, Result};

/// An instruction set that this machine has.
///
/// **Invariant**: a value exists only for a level that was detected on this machine. `per_isa!` relies on this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Level);

/// The instruction sets that kernels are instantiated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX-512 F, BW, DQ and VL, and everything that `Avx2` includes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with FMA, F16C and BMI2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The features that the compilation target guarantees.
    Portable,
}

impl Level {
    /// Every level of this architecture, the best one first.
    pub(crate) const ALL: &[Level] = &[
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        Level::Portable,
    ];

    /// The level's name, as given in `GRADUS_CPU_ISA`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        }
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi2")
            }
            Level::Portable => true,
        }
    }
}

impl Isa {
    /// Returns the instruction set of this level if the machine has it.
    pub(crate) fn new(level: Level) -> Option<Isa> {
        level.is_available().then_some(Isa(level))
    }

    /// Returns the best instruction set of this machine.
    pub(crate) fn best() -> Isa {
        Level::ALL.iter().find_map(|&l| Isa::new(l)).unwrap_or(Isa(Level::Portable))
    }

    /// Returns all instruction sets of this machine, the best one first.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Isa> {
        Level::ALL.iter().filter_map(|&l| Isa::new(l)).collect()
    }

    /// Returns the instruction set with this name. Returns an error if there is no such instruction set or if the
    /// machine lacks it.
    pub(crate) fn named(name: &str) -> Result<Isa> {
        let names: Vec<_> = Level::ALL.iter().map(|l| l.name()).collect();
        let Some(&level) = Level::ALL.iter().find(|l| l.name() == name) else {
            let m = format!("{name:?} is no instruction set of this architecture");
            return Err(Error::argument("cpu", m).help(format!("GRADUS_CPU_ISA takes {}", names.join(", "))));
        };
        Isa::new(level).ok_or_else(|| {
            let m = format!("this machine lacks the instruction set {name}");
            Error::new(ErrorKind::Unsupported, "cpu", m)
                .help(format!("leave GRADUS_CPU_ISA unset for the best one, which is {}", Isa::best().level().name()))
        })
    }

    pub(crate) fn level(self) -> Level {
        self.0
    }
}

/// Instantiates an `#[inline(always)]` body for every instruction set:
/// ```ignore
/// per_isa! { pub(crate) fn add_f32(x: &[f32], y: &[f32], out: &mut [f32]) = add::<f32>; }
/// add_f32(cpu.isa(), x, y, out);
/// ```
/// The generated function takes an [`Isa`] before the arguments. The right-hand side is any expression that can be
/// called with the arguments. A function named there must be `#[inline(always)]` to be compiled to the wide vectors.
macro_rules! per_isa {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:expr;)*) => {$(
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this level exists only if this machine was found to have these features.
                $crate::isa::Level::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::isa::Level::Avx2 => unsafe { avx2($($arg),*) },
                $crate::isa::Level::Portable => $body($($arg),*),
            }
        }
    )*};
}
pub(crate) use per_isa;

/// Like [`per_isa!`], but with one instance for both AVX-512 and AVX2, because every instance costs compile time and
/// binary size. It suits loops that are limited by memory or by half-precision conversions, and loops that rarely run.
macro_rules! per_isa_256 {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:expr;)*) => {$(
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of one of these levels exists only if this machine was found to have these features.
                $crate::isa::Level::Avx512 | $crate::isa::Level::Avx2 => unsafe { avx2($($arg),*) },
                $crate::isa::Level::Portable => $body($($arg),*),
            }
        }
    )*};
}
pub(crate) use per_isa_256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(Isa::named("portable").unwrap().level(), Level::Portable);
        assert_eq!(Isa::named("sse9").unwrap_err().kind(), &ErrorKind::InvalidArgument);
        for &level in Level::ALL {
            assert_eq!(Isa::named(level.name()).is_ok(), level.is_available());
        }
    }

    #[test]
    fn every_instance_computes() {
        #[inline(always)]
        fn sum(x: &[f32]) -> f32 {
            x.iter().sum()
        }
        per_isa! { fn total(x: &[f32]) -> f32 = sum; }
        for isa in Isa::available() {
            assert_eq!(total(isa, &[1.0, 2.0, 3.5]), 6.5);
        }
    }
}
