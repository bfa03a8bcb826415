//! Statements as they are written.

use super::lexer::Number;
use crate::variable::{Param, Space};

/// The fundamental types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    TF32,
    F32,
    F64,
}

impl Type {
    /// The type that this part of an opcode names, without its dot.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::BF16,
            "bf16x2" => Self::BF16x2,
            "tf32" => Self::TF32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// The size in bytes; a predicate has none.
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::Pred => 0,
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::BF16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F16x2 | Self::BF16x2 | Self::TF32 | Self::F32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::B128 => 16,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        use Type::{BF16, BF16x2, F16, F16x2, F32, F64, TF32};
        matches!(self, F16 | F16x2 | BF16 | BF16x2 | TF32 | F32 | F64)
    }
}

/// One operand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    /// A register, a label, a variable, a special register or `_`.
    Name(String),
    /// A variable's address and a distance.
    Offset(String, i64),
    /// A literal.
    Number(Number),
    /// `!%p`.
    Not(String),
    /// `%p|%q`.
    Pair(String, String),
    /// `[base + offset]`; without a base, an absolute address.
    Address(Option<String>, i64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `(a, b)`.
    List(Vec<Operand>),
}

/// An instruction as it is written.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// The line of the PTX.
    pub(crate) line: u32,
    /// The file's number and the line of the source; 0 and 0 where it is not known.
    pub(crate) source: (u32, u32),
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// The opcode with its modifiers, without dots.
    pub(crate) opcode: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

/// What a body declares other than registers.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) size: u64,
    pub(crate) align: u64,
}

/// One statement of a body.
#[derive(Debug, Clone)]
pub(crate) enum Statement {
    /// Registers of one type: their names, or a prefix with a count.
    Registers(Type, Vec<(String, Option<u32>)>),
    Variable(Declared),
    Label(String),
    /// A list of labels for `brx.idx`.
    Targets(String, Vec<String>),
    Open,
    Close,
    Instruction(Instruction),
}

/// A kernel or a device function.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) results: Vec<Param>,
    pub(crate) params: Vec<Param>,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) required_threads: Option<[u32; 3]>,
    /// None for a function that is only declared.
    pub(crate) body: Option<Vec<Statement>>,
}
