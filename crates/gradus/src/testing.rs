//! Gradient checks for your own operations, layers and losses.
//!
//! ```
//! use std::sync::Arc;
//!
//! use gradus::autograd::Context;
//! use gradus::prelude::*;
//! use gradus::testing::{gradcheck, gradgradcheck};
//! use gradus::{CustomOp, apply_custom};
//!
//! /// `x * |x|`, whose slope is `2 |x|`.
//! struct SignedSquare;
//!
//! impl CustomOp for SignedSquare {
//!     fn name(&self) -> &str {
//!         "signed_square"
//!     }
//!     fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
//!         Ok(vec![x[0].mul(&x[0].abs()?)?])
//!     }
//!     fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
//!         let Some(g) = &g[0] else { return Ok(vec![None]) };
//!         Ok(vec![Some(ctx.input(0)?.abs()?.mul(2.0)?.mul(g)?)])
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let x = Tensor::from_vec(vec![0.5f64, -1.0, 2.0], [3], &Device::cpu()?)?;
//!     let op = Arc::new(SignedSquare);
//!     let f = |x: &[Tensor]| Ok(apply_custom(&op, &[&x[0]])?.swap_remove(0));
//!     gradcheck(f, &[x.clone()])?;
//!     gradgradcheck(f, &[x])
//! }
//! ```

pub use gradus_tensor::autograd::{GradcheckOptions, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with};
