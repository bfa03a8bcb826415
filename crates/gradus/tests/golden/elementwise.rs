//! Elementwise operations that are not in the table of elementwise operations. The table has calls for its own entries.

use gradus::prelude::*;

use crate::{Cases, one};

pub(crate) const CASES: Cases = &[
    ("cast/to_i64", one!(|x| x[0].to_dtype(DType::I64))),
    ("cast/to_bool", one!(|x| x[0].to_dtype(DType::Bool))),
    ("nan_to_num", one!(|x| x[0].nan_to_num(0.0, None, None))),
    ("lerp", one!(|x| x[0].lerp(&x[1], &x[2]))),
    ("prelu", one!(|x| x[0].prelu(&x[1]))),
    ("glu", one!(|x| x[0].glu(1))),
    ("dropout", one!(|x| x[0].dropout(0.0, &mut Generator::new(1)))),
    ("round_decimals", one!(|x| x[0].round_decimals(1))),
];
