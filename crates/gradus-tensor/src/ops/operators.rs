//! `&a + &b`, `&a * 2.0`, `1.0 - &a`, `-&a`: operators that give `Result<Tensor>`.

use std::ops;

use gradus_backend::Result;

use super::elementwise::Operand;
use super::table::{ADD, DIV, MUL, SUB};
use crate::Tensor;

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'a> ops::$trait<&'a Tensor> for &'a Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &'a Tensor) -> Result<Tensor> {
                $op.apply(&[Operand::Tensor(self), Operand::Tensor(other)])
            }
        }
        operators!(scalar $trait $method $op f64);
        operators!(scalar $trait $method $op i64);
    )*};
    (scalar $trait:ident $method:ident $op:ident $t:ty) => {
        impl ops::$trait<$t> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: $t) -> Result<Tensor> {
                $op.apply(&[Operand::Tensor(self), other.into()])
            }
        }
        impl ops::$trait<&Tensor> for $t {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                $op.apply(&[self.into(), Operand::Tensor(other)])
            }
        }
    };
}

operators! { Add add ADD; Sub sub SUB; Mul mul MUL; Div div DIV; }

impl ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}
