//! The activations that are more than one instruction, each with its limits exact and its slope finite.

use super::Expr;

/// `sigmoid(-x)` is 0 in every float type from here on.
pub(super) const SILU_BOUND: f64 = 1000.0;

impl<'k> Expr<'k> {
    /// 0 below 0, else this; NaN stays, and the slope at 0 is 0.
    #[must_use]
    pub fn relu(self) -> Expr<'k> {
        self.le(0.0).select(0.0, self)
    }

    /// `x * sigmoid(x)`, also called swish.
    #[must_use]
    pub fn silu(self) -> Expr<'k> {
        let x = self.lt(-SILU_BOUND).select(-SILU_BOUND, self);
        x * x.sigmoid()
    }

    /// `x * Phi(x)` with the normal distribution function: the exact GELU.
    #[must_use]
    pub fn gelu(self) -> Expr<'k> {
        // erfc keeps the left tail exact.
        self.gated((self.bounded(60.0) * -std::f64::consts::FRAC_1_SQRT_2).erfc() * 0.5)
    }

    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: the approximation of GELU by tanh.
    #[must_use]
    pub fn gelu_tanh(self) -> Expr<'k> {
        // x/2 (1 + tanh u) = x sigmoid(2u).
        let c = self.bounded(60.0);
        let two_u = (c + c * c * c * 0.044715) * (2.0 * 0.797_884_560_802_865_4);
        self.gated(two_u.sigmoid())
    }

    /// `x * x`
    #[must_use]
    pub fn square(self) -> Expr<'k> {
        self * self
    }

    /// The argument of a saturating function, bounded: beyond the bound the function is constant in every float type, and
    /// the slope of the bounded argument is an exact 0, so that no infinity meets a zero.
    #[must_use]
    pub fn bounded(self, bound: f64) -> Expr<'k> {
        let below = self.lt(-bound).select(-bound, self);
        below.gt(bound).select(bound, below)
    }

    /// `x * gate`, and its limit -0 at -inf, where the product would be `-inf * 0`.
    #[must_use]
    pub fn gated(self, gate: Expr<'k>) -> Expr<'k> {
        self.eq(f64::NEG_INFINITY).select(-0.0, self * gate)
    }
}
