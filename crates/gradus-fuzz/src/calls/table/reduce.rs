//! Reductions, scans, sorting and searching.

use super::{LONG, Row, SHORT, rows};

/// Rows for methods that take axes and `keepdim`, no arguments, one axis, or one axis and `keepdim`.
macro_rules! reductions {
    (axes: $($axes:ident)*; whole: $($whole:ident)*; axis: $($axis:ident)*; kept: $($kept:ident)*) => {
        rows! { SHORT any;
            $($axes |x, d| x.$axes(&d.axes(x.rank()), d.flag());)*
            $($whole |x, _d| x.$whole();)*
            $($axis |x, d| x.$axis(d.axis(x.rank()));)*
            $($kept |x, d| x.$kept(d.axis(x.rank()), d.flag());)*
        }
    };
}

const TABLE: &[Row] = reductions! {
    axes: sum mean max min prod aminmax any all logsumexp count_nonzero;
    whole: sum_all mean_all max_all min_all prod_all trace nonzero;
    axis: cumsum cumprod logcumsumexp cummax cummin softmax log_softmax softmin;
    kept: argmax argmin max_with_indices min_with_indices
};

const OTHERS: &[Row] = rows! { SHORT any;
    var |x, d| x.var(&d.axes(x.rank()), d.size(), d.flag());
    std |x, d| x.std(&d.axes(x.rank()), d.size(), d.flag());
    var_mean |x, d| x.var_mean(&d.axes(x.rank()), d.size(), d.flag());
    norm |x, d| x.norm(d.number(), &d.axes(x.rank()), d.flag());
    normalize |x, d| x.normalize(d.number(), d.axis(x.rank()), d.fraction());
    unique |x, d| x.unique(d.flag(), d.flag(), d.flag());
    searchsorted |x, d| x.searchsorted(&d.like(&x)?, d.flag());
    bucketize |x, d| { let n = d.below(9); x.bucketize(&d.made(&[n], x.dtype())?, d.flag()) };
    bincount |x, d| {
        let x = if d.once_in(3) { x } else { let n = d.below(30); d.indices(&[n], 50)? };
        x.bincount(d.maybe(|d| d.sized(x.shape(), gradus::DType::F32))?.as_ref(), d.size())
    };
};

const SORTS: &[Row] = rows! { LONG any;
    sort |x, d| x.sort(d.axis(x.rank()), d.flag());
    argsort |x, d| x.argsort(d.axis(x.rank()), d.flag());
    topk |x, d| x.topk(d.size(), d.axis(x.rank()), d.flag(), d.flag());
    kthvalue |x, d| x.kthvalue(d.size(), d.axis(x.rank()), d.flag());
};

pub(super) const ROWS: &[&[Row]] = &[TABLE, OTHERS, SORTS];
