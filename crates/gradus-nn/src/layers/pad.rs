//! Layers that add a border: [`ZeroPad2d`], [`ConstantPad2d`], [`ReflectionPad2d`], [`ReplicationPad2d`],
//! [`CircularPad2d`], and their counterparts over one and three axes.

use gradus_tensor::{PadMode, Result, Tensor};

use crate::{Forward, Module};

macro_rules! pads {
    ($($n:literal $layer:ident $border:literal $mode:expr;)*) => {$(
        #[doc = concat!("Adds a border of ", $border, " around the last ", $n, " axes, see [`Tensor::pad`].")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
        pub struct $layer {
            padding: [(isize, isize); $n],
        }

        impl $layer {
            /// Creates a layer that adds `(before, after)` elements to each axis, the last axis last. (PyTorch lists
            /// the pairs in the opposite order.) Negative numbers crop.
            pub fn new(padding: [(isize, isize); $n]) -> Self {
                $layer { padding }
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                input.pad(&self.padding, $mode)
            }
        }
    )*};
}

pads! {
    1 ZeroPad1d "zeros" PadMode::Constant(0.into());
    2 ZeroPad2d "zeros" PadMode::Constant(0.into());
    3 ZeroPad3d "zeros" PadMode::Constant(0.into());
    1 ReflectionPad1d "mirrored elements (without the edge)" PadMode::Reflect;
    2 ReflectionPad2d "mirrored elements (without the edge)" PadMode::Reflect;
    3 ReflectionPad3d "mirrored elements (without the edge)" PadMode::Reflect;
    1 ReplicationPad1d "copies of the edge" PadMode::Replicate;
    2 ReplicationPad2d "copies of the edge" PadMode::Replicate;
    3 ReplicationPad3d "copies of the edge" PadMode::Replicate;
    1 CircularPad1d "elements of the opposite end" PadMode::Circular;
    2 CircularPad2d "elements of the opposite end" PadMode::Circular;
    3 CircularPad3d "elements of the opposite end" PadMode::Circular;
}

macro_rules! constant_pads {
    ($($n:literal $layer:ident)*) => {$(
        #[doc = concat!("Adds a border of one value around the last ", $n, " axes, see [`Tensor::pad`].")]
        #[derive(Debug, Clone, Copy, PartialEq, Module)]
        pub struct $layer {
            padding: [(isize, isize); $n],
            value: f64,
        }

        impl $layer {
            /// Creates a layer that adds `(before, after)` elements of this value to each axis, the last axis last.
            /// (PyTorch lists the pairs in the opposite order.) Negative numbers crop.
            pub fn new(padding: [(isize, isize); $n], value: f64) -> Self {
                $layer { padding, value }
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                input.pad(&self.padding, PadMode::Constant(self.value.into()))
            }
        }
    )*};
}

constant_pads! { 1 ConstantPad1d 2 ConstantPad2d 3 ConstantPad3d }
