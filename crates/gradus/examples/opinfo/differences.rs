//! The samples that differ on purpose, grouped by reason.

use std::fmt;

use gradus::prelude::*;

use crate::sample::Sample;

/// How a sample differs.
pub(crate) enum Finding {
    /// Gradus refuses what PyTorch computes.
    Refused(Error),
    /// Gradus computes what PyTorch refuses with this message.
    Accepted(String),
    /// Both compute the sample, but the results differ as described.
    Differs(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Refused(e) => write!(f, "refused: {} {}", e.op(), e.message()),
            Finding::Accepted(words) => write!(f, "accepted; PyTorch: {words}"),
            Finding::Differs(words) => f.write_str(words),
        }
    }
}

/// A reason, and the samples to which it applies.
pub(crate) struct Difference {
    pub(crate) reason: &'static str,
    /// Whether the reason is for calls that Gradus accepts and PyTorch refuses.
    pub(crate) accepted: bool,
    /// The names of entries, separated by spaces; empty for all entries.
    entries: &'static str,
    covers: fn(&Sample<'_>, &str) -> bool,
}

impl Difference {
    pub(crate) fn covers(&self, sample: &Sample<'_>, finding: &Finding) -> bool {
        let named = self.entries.is_empty() || self.entries.split_whitespace().any(|n| n == sample.entry);
        let accepted = matches!(finding, Finding::Accepted(_));
        named && accepted == self.accepted && (self.covers)(sample, &finding.to_string())
    }
}

/// A reason for samples that PyTorch computes.
const fn differs(reason: &'static str, entries: &'static str, covers: fn(&Sample<'_>, &str) -> bool) -> Difference {
    Difference { reason, accepted: false, entries, covers }
}

/// A reason for calls that PyTorch refuses.
const fn accepts(reason: &'static str, entries: &'static str, covers: fn(&Sample<'_>, &str) -> bool) -> Difference {
    Difference { reason, accepted: true, entries, covers }
}

/// Whether a finding contains these words.
fn has(finding: &str, words: &str) -> bool {
    finding.contains(words)
}

pub(crate) const DIFFERENCES: &[Difference] = &[
    differs("a bool is no number: arithmetic, order and sums of booleans ask for a cast first", "", |_, f| {
        has(f, "not defined for bool")
    }),
    differs(
        "logical operations take booleans: compare with 0 first",
        "logical_and logical_or logical_xor logical_not",
        |_, f| has(f, "it takes booleans"),
    ),
    differs(
        "a number that the dtype cannot represent is an error (contract: `full`, conversions); PyTorch cuts it off",
        "",
        |_, f| has(f, "cannot be represented as"),
    ),
    differs(
        "a float number beside integers makes a float (R6); PyTorch cuts the number off",
        "addmv addbmm",
        |s, f| s.tensors[0].dtype() == DType::I64 && has(f, "output 0 is f32"),
    ),
    differs(
        "a mean is a float, and so is what is mixed by weights (contract: `mean`): integers ask for a cast",
        "nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.local_response_norm linspace",
        |_, f| has(f, "it takes floats"),
    ),
    differs("an integer to a negative power is an error (contract: `pow`)", "pow __rpow__", |_, f| {
        has(f, "an integer was raised to a negative power")
    }),
    differs("a loss broadcasts nothing (contract: `mse_loss`)", "nn.functional.gaussian_nll_loss", |s, f| {
        s.tensors[0].shape() != s.tensors[1].shape() && has(f, "shapes differ")
    }),
    differs(
        "eps is above 0 (contract: `layer_norm`)",
        "nn.functional.layer_norm nn.functional.rms_norm nn.functional.group_norm",
        |_, f| has(f, "it is above 0 and finite"),
    ),
    differs("rank 2 and more (contract: `batch_norm`)", "nn.functional.batch_norm", |s, f| {
        s.tensors[0].rank() == 1 && has(f, "a batch and a channel axis")
    }),
    differs(
        "a row of which nothing is kept is 0 (contract: `masked_softmax`); PyTorch's is NaN",
        "masked.softmax",
        |_, f| has(f, "is 0.0, PyTorch's NaN"),
    ),
    differs("indices count from the end in `index` only (R7)", "take_along_dim", |_, f| has(f, "index -")),
    differs("sums in the dtype of the weights; PyTorch's are f64", "bincount", |_, f| has(f, "output 0 is i64")),
    differs(
        "of equal elements the first has the lower place; PyTorch's order of them is unspecified",
        "kthvalue topk sort argsort",
        |s, f| {
            s.tensors[0].dtype() != DType::F64
                && has(f, if s.entry == "argsort" { "of output 0 is" } else { "of output 1 is" })
        },
    ),
    differs(
        "unsorted, values come in the order of their first occurrence; PyTorch's order is unspecified",
        "unique",
        |s, f| !s.flag(usize::MAX, "sorted", true).unwrap_or(true) && has(f, "of output"),
    ),
    differs("elements, not slices of an axis", "unique", |_, f| has(f, "unique slices of an axis")),
    differs(
        "the slope of log-probabilities as they are; PyTorch gives that through a `log_softmax`",
        "nn.functional.ctc_loss",
        |_, f| has(f, "of the gradient of input 0"),
    ),
    differs(
        "PyTorch adds 1e-12 to a divisor of the second derivative",
        "nn.functional.binary_cross_entropy",
        |_, f| has(f, "of the second gradient of input 0"),
    ),
    differs("PyTorch's slope in f64 is 1/6 rounded to f32", "nn.functional.hardsigmoid", |_, f| {
        has(f, "of the gradient of input 0")
    }),
    differs("exact everywhere; PyTorch's is x beyond a threshold", "nn.functional.softplus", |_, f| {
        has(f, "of output 0 is")
    }),
    differs("random: which elements drop out is drawn", "nn.functional.scaled_dot_product_attention", |_, f| {
        has(f, "sample dropout")
    }),
    differs("`arange` counts in whole numbers; `linspace` is for fractions", "arange", |_, f| {
        has(f, "is no whole number")
    }),
    differs("a correction is a number of values, at least 0", "var std var_mean std_mean", |_, f| {
        has(f, "a correction of")
    }),
    differs(
        "the mean divides by the number of elements, with padding or without",
        "nn.functional.avg_pool2d nn.functional.avg_pool3d",
        |_, f| has(f, "another divisor"),
    ),
    differs("one number of repetitions for all", "repeat_interleave", |_, f| {
        has(f, "a number of repetitions for each element")
    }),
    differs("a size or factors, not both", "_upsample_bilinear2d_aa", |_, f| has(f, "a size and factors")),
    differs("images, not volumes", "nn.functional.grid_sample", |s, f| {
        s.tensors[0].rank() == 5 && has(f, "[n, c, h, w]")
    }),
    differs("one set of weights", "nn.functional.linear_cross_entropy", |s, f| {
        s.tensors[1].rank() != 2 && has(f, "the wrong rank")
    }),
    differs(
        "shapes are equal outside of the axis (contract: `cat`); PyTorch skips empty vectors, for old code",
        "cat",
        |s, f| s.tensors[0].shape() == [0] && has(f, "refused: cat"),
    ),
    differs(
        "an index has the rank of the tensor; PyTorch takes an empty one of any rank, for old code",
        "gather",
        |s, f| s.tensors[1].numel() == 0 && has(f, "refused: gather"),
    ),
    accepts(
        "a number is an operand wherever a tensor is",
        "atan2 fmax fmin hypot logaddexp maximum minimum",
        |_, f| has(f, "'other' (position 2) must be Tensor, not int"),
    ),
    accepts("dtypes promote (R6)", "nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d", |_, f| {
        has(f, "should be the same")
    }),
    accepts("dtypes promote (R6)", "scatter scatter_add", |_, f| {
        has(f, "Expected self.dtype to be equal to src.dtype")
    }),
    accepts("the mean of integers is a float (contract: `mean`)", "mean", |_, f| {
        has(f, "could not infer output dtype")
    }),
    accepts(
        "sizes of 0 are legal (R2), and the result is as empty",
        "nn.functional.group_norm nn.functional.max_pool1d nn.functional.max_pool3d",
        |s, f| s.tensors[0].numel() == 0 && has(f, "xpected"),
    ),
    accepts("sizes of 0 are legal (R2): no numbers are drawn", "multinomial", |_, f| {
        has(f, "cannot sample n_sample <= 0")
    }),
    accepts("along axis 0 a scalar is a vector of one element, as for PyTorch's `flip`", "flipud", |s, _| {
        s.tensors[0].rank() == 0
    }),
];
