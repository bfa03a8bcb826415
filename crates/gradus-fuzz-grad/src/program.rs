//! What a random program is: statements over numbered tensors, as plain data.

/// Number of a tensor in a program.
pub(crate) type Slot = u32;

/// In place of a tensor: none.
pub(crate) const NONE: Slot = u32::MAX;

macro_rules! names {
    ($($name:ident $text:literal,)*) => {
        /// What a statement does. The numbers beside the tensors are its parameters; scalars are in eighths.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Name {
            $($name,)*
        }

        impl Name {
            /// As it is written.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $(Name::$name => $text,)*
                }
            }

            /// The one with this text.
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
    // Tensors of their own: a leaf or not, numbers: seed, sizes.
    Leaf "leaf", Data "data",
    // Of one tensor, elementwise.
    Neg "neg", Sin "sin", Cos "cos", Tanh "tanh", Exp "exp", Sigmoid "sigmoid", Square "square", Silu "silu",
    Softplus "softplus", Relu "relu", Abs "abs", Sqrt "sqrt", Log "log", Recip "recip", Cube "cube",
    Scale "scale", Shift "shift", Clamp "clamp", MaskedFill "masked_fill", Fused1 "fused1",
    // Operations of the user: the cube, and a product.
    Custom1 "custom1", Custom2 "custom2",
    // Numbers: seed, probability. In a region the numbers come from the region's generator, whose seed is its number.
    Dropout "dropout",
    // Of several, elementwise.
    Add "add", Sub "sub", Mul "mul", Div "div", Maximum "maximum", Minimum "minimum", Pow "pow",
    SiluMul "silu_mul", Fused2 "fused2", Fused3 "fused3",
    // Over axes. Numbers of the first row: bits of the axes, whether they stay; of the others: axis.
    Sum "sum", Mean "mean", Prod "prod", Max "max", Min "min", LogSumExp "logsumexp", Var "var",
    Softmax "softmax", LogSoftmax "log_softmax", Cumsum "cumsum", Cumprod "cumprod",
    LayerNorm "layer_norm", RmsNorm "rms_norm",
    // Of several tensors.
    Matmul "matmul", Attention "attention", CrossEntropy "cross_entropy", Cat "cat", Stack "stack",
    // Indexing. Numbers: axis, then the index (or a seed for it).
    Gather "gather", IndexSelect "index_select", ScatterAdd "scatter_add", IndexAdd "index_add",
    // Views.
    Slice "slice", Select "select", Transpose "transpose", Reshape "reshape", Expand "expand", Flip "flip",
    Diagonal "diagonal", Squeeze "squeeze", Unsqueeze "unsqueeze", Windows "windows",
    // The same values at other positions.
    Copy "copy", Detach "detach", Require "require",
    // Writes in place.
    FillIn "fill_", ZeroIn "zero_", AddIn "add_", SubIn "sub_", MulIn "mul_", DivIn "div_", CopyIn "copy_",
    ClampIn "clamp_", ScaleIn "scale_",
    // Numbers: the rows of the first axis from, and to.
    AssignIn "index_assign_",
    // Numbers: a seed for the index on the first axis, its length, whether to add.
    IndexPutIn "index_put_",
    // Numbers: a seed for the index, its length, the axis, and a scalar.
    IndexAddIn "index_add_", IndexCopyIn "index_copy_", IndexFillIn "index_fill_",
    ScatterIn "scatter_", ScatterAddIn "scatter_add_",
    // Numbers: the mask, a scalar.
    MaskedFillIn "masked_fill_",
    // Hooks on the gradient of a tensor (numbers: 0 observe, 1 scale, 2 tanh; the factor), on its node before and after.
    Hook "hook", Before "prehook", After "posthook", Unhook "unhook",
    // Blocks.
    NoGrad "nograd", Packed "packed", AllowMutation "allow_mutation", StrictInplace "strict_inplace",
    Strict "strict",
    Checkpoint "ckpt",
    // Gradients: root, seed or none, ..., inputs. Numbers: how many roots, on how many threads at once.
    Grad "grad", GradRetain "grad_retain", GradCreate "grad_create",
    // Of one scalar for all leaves.
    Backward "backward", BackwardRetain "backward_retain",
    // The handle goes.
    Drop "drop",
}

impl Name {
    /// Whether the result shares memory with the tensor (a reshape may).
    pub(crate) fn is_view(self) -> bool {
        use Name::*;
        matches!(self, Slice | Select | Transpose | Reshape | Expand | Flip | Diagonal | Squeeze | Unsqueeze | Windows)
    }

    /// Whether it is a block under a switch of the thread.
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

    /// Whether it writes what it reads from another tensor.
    pub(crate) fn reads_another(self) -> bool {
        use Name::*;
        matches!(self, AddIn | SubIn | MulIn | DivIn | CopyIn)
            || self.writes_some() && !matches!(self, IndexFillIn | MaskedFillIn)
    }

    /// Whether it takes gradients.
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
    /// The tensors that it takes.
    pub(crate) of: Vec<Slot>,
    /// Its parameters.
    pub(crate) numbers: Vec<i64>,
    /// The statements of a block.
    pub(crate) body: Vec<Statement>,
    /// Which of the body's tensors a checkpointed region gives.
    pub(crate) gives: Vec<Slot>,
}

impl Statement {
    pub(crate) fn new(name: Name, outs: &[Slot], of: &[Slot], numbers: &[i64]) -> Self {
        Statement { name, outs: outs.to_vec(), of: of.to_vec(), numbers: numbers.to_vec(), body: vec![], gives: vec![] }
    }

    /// Parameter `i`; 0 where it is not given.
    pub(crate) fn number(&self, i: usize) -> i64 {
        self.numbers.get(i).copied().unwrap_or(0)
    }

    /// Parameter `i` as a scalar.
    pub(crate) fn scalar(&self, i: usize) -> f64 {
        eighths(self.number(i))
    }

    /// Parameter `i` as an axis, or anything else that is not negative.
    pub(crate) fn place(&self, i: usize) -> usize {
        usize::try_from(self.number(i)).unwrap_or(usize::MAX)
    }
}

/// Scalars are written in eighths, which are exact.
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

/// Every statement, those of blocks included.
pub(crate) fn visit(statements: &[Statement], f: &mut impl FnMut(&Statement)) {
    for s in statements {
        f(s);
        visit(&s.body, f);
    }
}

/// A small generator of numbers (Steele, Lea and Flood, 2014: splitmix64).
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

    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len())).copied()
    }
}

/// The values of a tensor of `n` elements: between 0.25 and 1.75 in magnitude, no two alike.
pub(crate) fn values(seed: i64, n: usize) -> Vec<f64> {
    let mut random = Random::new(seed as u64);
    let mut one = || {
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let v = 0.25 + 1.5 * u;
        if random.chance(40) { -v } else { v }
    };
    (0..n).map(|_| one()).collect()
}

/// Indices below `size`: what `gather` and its kin pick.
pub(crate) fn indices(seed: i64, n: usize, size: usize) -> Vec<usize> {
    let mut random = Random::new(seed as u64 ^ 0x5eed);
    (0..n).map(|_| random.below(size)).collect()
}

/// Whether element `i` is under the mask.
pub(crate) fn masked(pattern: i64, i: usize) -> bool {
    pattern >> (i % 12) & 1 == 1
}
