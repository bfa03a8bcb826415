//! Activations that take more than one instruction. Each has exact limits and a finite slope everywhere.

use super::Expr;

/// From this value on, `sigmoid(-x)` is 0 in every float type.
pub(super) const SILU_BOUND: f64 = 1000.0;

impl<'k> Expr<'k> {
    /// `max(x, 0)`. NaN propagates, and the slope at 0 is 0.
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

    /// `x * Phi(x)` with `Phi` the cumulative normal distribution function: the exact GELU.
    #[must_use]
    pub fn gelu(self) -> Expr<'k> {
        // erfc keeps the left tail accurate.
        self.gated((self.bounded(60.0) * -std::f64::consts::FRAC_1_SQRT_2).erfc() * 0.5)
    }

    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: the tanh approximation of GELU.
    #[must_use]
    pub fn gelu_tanh(self) -> Expr<'k> {
        // Uses x/2 (1 + tanh u) = x sigmoid(2u).
        let c = self.bounded(60.0);
        let two_u = (c + c * c * c * 0.044715) * (2.0 * 0.797_884_560_802_865_4);
        self.gated(two_u.sigmoid())
    }

    /// `x * x`
    #[must_use]
    pub fn square(self) -> Expr<'k> {
        self * self
    }

    /// Clamps the argument of a saturating function to `-bound..=bound`. Beyond the bound the function is constant in
    /// every float type. The slope of the clamped argument there is exactly 0, so the gradient never multiplies
    /// infinity by zero.
    #[must_use]
    pub fn bounded(self, bound: f64) -> Expr<'k> {
        let below = self.lt(-bound).select(-bound, self);
        below.gt(bound).select(bound, below)
    }

    /// `x * gate`, except at -inf, where the product would be `-inf * 0`: there it returns the limit, -0.
    #[must_use]
    pub fn gated(self, gate: Expr<'k>) -> Expr<'k> {
        self.eq(f64::NEG_INFINITY).select(-0.0, self * gate)
    }
}
