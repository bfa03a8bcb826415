//! Random programs as plain data: statements about numbered tensors.

/// The number of a tensor in a program.
pub(crate) type Slot = u32;

/// Stands where a tensor could be given but is not.
pub(crate) const NONE: Slot = u32::MAX;

macro_rules! names {
    ($($name:ident $text:literal,)*) => {
        /// What a statement does. Its numbers are its parameters; scalars are given in eighths.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Name {
            $($name,)*
        }

        impl Name {
            /// The name as it is written in a program.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $(Name::$name => $text,)*
                }
            }

            /// The name with this text.
            pub(crate) fn from_text(text: &str) -> Option<Name> {
                match text {
                    $($text => Some(Name::$name),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    // New tensors: a leaf, or a constant. Numbers: a seed, then the sizes.
    Leaf "leaf", Data "data",
    // Elementwise operations on one tensor.
    Neg "neg", Sin "sin", Cos "cos", Tanh "tanh", Exp "exp", Sigmoid "sigmoid", Square "square", Silu "silu",
    Softplus "softplus", Relu "relu", Abs "abs", Sqrt "sqrt", Log "log", Recip "recip", Cube "cube",
    Scale "scale", Shift "shift", Clamp "clamp", MaskedFill "masked_fill", Fused1 "fused1",
    // Custom operations: the cube of one tensor, and the product of two.
    Custom1 "custom1", Custom2 "custom2",
    // Numbers: a seed, and a probability. Inside a region, the region's generator replaces the seed. Its own seed is
    // the region's number.
    Dropout "dropout",
    // Elementwise operations on several tensors.
    Add "add", Sub "sub", Mul "mul", Div "div", Maximum "maximum", Minimum "minimum", Pow "pow",
    SiluMul "silu_mul", Fused2 "fused2", Fused3 "fused3",
    // Operations along axes. Numbers of the first row: the axes as bits, and whether to keep them. Of the second row:
    // the axis. The third row normalises the last axis, and has no numbers.
    Sum "sum", Mean "mean", Prod "prod", Max "max", Min "min", LogSumExp "logsumexp", Var "var",
    Softmax "softmax", LogSoftmax "log_softmax", Cumsum "cumsum", Cumprod "cumprod",
    LayerNorm "layer_norm", RmsNorm "rms_norm",
    // Other operations on several tensors.
    Matmul "matmul", Attention "attention", CrossEntropy "cross_entropy", Cat "cat", Stack "stack",
    // Indexing. Numbers: the axis, then the index or a seed for it.
    Gather "gather", IndexSelect "index_select", ScatterAdd "scatter_add", IndexAdd "index_add",
    // Views.
    Slice "slice", Select "select", Transpose "transpose", Reshape "reshape", Expand "expand", Flip "flip",
    Diagonal "diagonal", Squeeze "squeeze", Unsqueeze "unsqueeze", Windows "windows",
    // The same values as a copy, detached, or as a new leaf.
    Copy "copy", Detach "detach", Require "require",
    // Writes in place.
    FillIn "fill_", ZeroIn "zero_", AddIn "add_", SubIn "sub_", MulIn "mul_", DivIn "div_", CopyIn "copy_",
    ClampIn "clamp_", ScaleIn "scale_",
    // Numbers: the first row to write, and the end of the rows.
    AssignIn "index_assign_",
    // Numbers: a seed for the index along the first axis, its length, and whether to add.
    IndexPutIn "index_put_",
    // Numbers: a seed for the index, its length, the axis, and a scalar for `index_fill_`.
    IndexAddIn "index_add_", IndexCopyIn "index_copy_", IndexFillIn "index_fill_",
    ScatterIn "scatter_", ScatterAddIn "scatter_add_",
    // Numbers: the mask, and a scalar.
    MaskedFillIn "masked_fill_",
    // Hooks on the gradient of a tensor, and on its node before and after the node runs. Numbers: the kind (0 observes,
    // 1 scales, 2 is tanh), and the factor.
    Hook "hook", Before "prehook", After "posthook", Unhook "unhook",
    // Blocks.
    NoGrad "nograd", Packed "packed", AllowMutation "allow_mutation", StrictInplace "strict_inplace",
    Strict "strict",
    Checkpoint "ckpt",
    // Gradients. Operands: each root followed by its seed or none, then the inputs. Numbers: the number of roots, and
    // the number of threads that compute the same gradients at once.
    Grad "grad", GradRetain "grad_retain", GradCreate "grad_create",
    // Gradients of one scalar for all leaves.
    Backward "backward", BackwardRetain "backward_retain",
    // Drops a tensor.
    Drop "drop",
}

impl Name {
    /// Whether the result shares memory with the operand. A reshape may copy instead.
    pub(crate) fn is_view(self) -> bool {
        use Name::*;
        matches!(self, Slice | Select | Transpose | Reshape | Expand | Flip | Diagonal | Squeeze | Unsqueeze | Windows)
    }

    /// Whether it is a block in which one of the thread's switches is set.
    pub(crate) fn is_mode(self) -> bool {
        matches!(self, Name::NoGrad | Name::Packed | Name::AllowMutation | Name::StrictInplace | Name::Strict)
    }

    /// Whether it writes in place.
    pub(crate) fn is_write(self) -> bool {
        use Name::*;
        self.writes_some()
            || matches!(self, FillIn | ZeroIn | AddIn | SubIn | MulIn | DivIn | CopyIn | ClampIn | ScaleIn)
    }

    /// Whether it writes only some elements in place.
    pub(crate) fn writes_some(self) -> bool {
        use Name::*;
        matches!(
            self,
            AssignIn | IndexPutIn | IndexAddIn | IndexCopyIn | IndexFillIn | ScatterIn | ScatterAddIn | MaskedFillIn
        )
    }

    /// Whether it writes values that it reads from another tensor.
    pub(crate) fn reads_another(self) -> bool {
        use Name::*;
        matches!(self, AddIn | SubIn | MulIn | DivIn | CopyIn)
            || self.writes_some() && !matches!(self, IndexFillIn | MaskedFillIn)
    }

    /// Whether it computes gradients.
    pub(crate) fn is_pass(self) -> bool {
        use Name::*;
        matches!(self, Grad | GradRetain | GradCreate | Backward | BackwardRetain)
    }
}

/// One statement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Statement {
    pub(crate) name: Name,
    /// The tensors that it defines.
    pub(crate) outs: Vec<Slot>,
    /// The tensors that it uses.
    pub(crate) of: Vec<Slot>,
    /// Its parameters.
    pub(crate) numbers: Vec<i64>,
    /// The statements of a block.
    pub(crate) body: Vec<Statement>,
    /// The tensors of the body that a checkpointed region returns.
    pub(crate) gives: Vec<Slot>,
}

impl Statement {
    pub(crate) fn new(name: Name, outs: &[Slot], of: &[Slot], numbers: &[i64]) -> Self {
        Statement { name, outs: outs.to_vec(), of: of.to_vec(), numbers: numbers.to_vec(), body: vec![], gives: vec![] }
    }

    /// Parameter `i`; 0 if it is not given.
    pub(crate) fn number(&self, i: usize) -> i64 {
        self.numbers.get(i).copied().unwrap_or(0)
    }

    /// Parameter `i` as a scalar.
    pub(crate) fn scalar(&self, i: usize) -> f64 {
        eighths(self.number(i))
    }

    /// Parameter `i` as an axis or another count; `usize::MAX` if it is negative.
    pub(crate) fn place(&self, i: usize) -> usize {
        usize::try_from(self.number(i)).unwrap_or(usize::MAX)
    }
}

/// The scalar for a number of eighths, which are exact.
pub(crate) fn eighths(n: i64) -> f64 {
    n as f64 / 8.0
}

/// A program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    pub(crate) statements: Vec<Statement>,
    /// Whether it also runs on two threads at once.
    pub(crate) twice: bool,
}

/// Calls `f` for every statement, including those inside blocks.
pub(crate) fn visit(statements: &[Statement], f: &mut impl FnMut(&Statement)) {
    for s in statements {
        f(s);
        visit(&s.body, f);
    }
}

/// A small random number generator (splitmix64: Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// `true` with a probability of `percent` %.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A random item; `None` if there are none.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len())).copied()
    }
}

/// The values of a tensor of `n` elements: distinct, and between 0.25 and 1.75 in magnitude.
pub(crate) fn values(seed: i64, n: usize) -> Vec<f64> {
    let mut random = Random::new(seed as u64);
    let mut one = || {
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let v = 0.25 + 1.5 * u;
        if random.chance(40) { -v } else { v }
    };
    (0..n).map(|_| one()).collect()
}

/// Random indices below `size`, for `gather` and similar operations.
pub(crate) fn indices(seed: i64, n: usize, size: usize) -> Vec<usize> {
    let mut random = Random::new(seed as u64 ^ 0x5eed);
    (0..n).map(|_| random.below(size)).collect()
}

/// Whether the mask selects element `i`.
pub(crate) fn masked(pattern: i64, i: usize) -> bool {
    pattern >> (i % 12) & 1 == 1
}
