//! Losses.

use gradus::Reduction::{Mean, None as Each, Sum};
use gradus::ops::Target;
use gradus::prelude::*;

use crate::{Cases, one};

pub(crate) const CASES: Cases = &[
    ("cross_entropy", one!(|x| x[0].cross_entropy(&x[1]))),
    ("cross_entropy/sum", one!(|x| x[0].cross_entropy_with(&x[1], None, None, 0.0, Sum))),
    ("cross_entropy/none", one!(|x| x[0].cross_entropy_with(&x[1], None, None, 0.0, Each))),
    ("cross_entropy/smoothing", one!(|x| x[0].cross_entropy_with(&x[1], None, None, 0.1, Mean))),
    ("cross_entropy/ignore", one!(|x| x[0].cross_entropy_with(&x[1], None, Some(-100), 0.0, Mean))),
    ("cross_entropy/all_ignored", one!(|x| x[0].cross_entropy_with(&x[1], None, Some(-100), 0.0, Mean))),
    ("mse_loss", one!(|x| x[0].mse_loss(&x[1], Mean))),
    ("mse_loss/none", one!(|x| x[0].mse_loss(&x[1], Each))),
    ("cross_entropy/weight", one!(|x| x[0].cross_entropy_with(&x[1], x.get(2), None, 0.0, Mean))),
    ("cross_entropy/weight_smoothing", one!(|x| x[0].cross_entropy_with(&x[1], x.get(2), None, 0.2, Mean))),
    (
        "cross_entropy/probabilities",
        one!(|x| { x[0].cross_entropy_with(Target::Probabilities(&x[1]), None, None, 0.0, Mean) }),
    ),
    ("cross_entropy/spatial", one!(|x| x[0].cross_entropy(&x[1]))),
    ("nll_loss", one!(|x| x[0].nll_loss(&x[1], x.get(2), None, Mean))),
    ("bce_with_logits", one!(|x| x[0].bce_with_logits(&x[1], None, x.get(2), Mean))),
    ("binary_cross_entropy", one!(|x| x[0].binary_cross_entropy(&x[1], None, Mean))),
    ("l1_loss", one!(|x| x[0].l1_loss(&x[1], Mean))),
    ("smooth_l1_loss", one!(|x| x[0].smooth_l1_loss(&x[1], 0.7, Mean))),
    ("huber_loss", one!(|x| x[0].huber_loss(&x[1], 0.7, Mean))),
    ("kl_div", one!(|x| x[0].kl_div(&x[1], false, Sum))),
    ("kl_div/log_target", one!(|x| x[0].kl_div(&x[1], true, Sum))),
    ("kl_div_batch_mean", one!(|x| x[0].kl_div_batch_mean(&x[1], false))),
    ("cosine_embedding_loss", one!(|x| x[0].cosine_embedding_loss(&x[1], &x[2], 0.1, Mean))),
    ("triplet_margin_loss", one!(|x| x[0].triplet_margin_loss(&x[1], &x[2], 1.0, 2.0, false, Mean))),
    ("margin_ranking_loss", one!(|x| x[0].margin_ranking_loss(&x[1], &x[2], 0.3, Mean))),
    ("soft_margin_loss", one!(|x| x[0].soft_margin_loss(&x[1], Mean))),
    ("hinge_embedding_loss", one!(|x| x[0].hinge_embedding_loss(&x[1], 0.5, Mean))),
    ("poisson_nll_loss", one!(|x| x[0].poisson_nll_loss(&x[1], true, false, 1e-8, Mean))),
    ("gaussian_nll_loss", one!(|x| x[0].gaussian_nll_loss(&x[1], &x[2], false, 1e-6, Mean))),
    ("ctc_loss/mean", one!(|x| x[0].log_softmax(2)?.ctc_loss(&x[1], &[7, 6], &[3, 2], 0, false, Mean))),
    ("ctc_loss/sum", one!(|x| x[0].log_softmax(2)?.ctc_loss(&x[1], &[7, 6], &[3, 2], 0, false, Sum))),
];
