//! Activation functions.

use gradus_nn::{
    Celu, Elu, Gelu, GeluTanh, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid, LogSoftmax,
    Mish, Module, PRelu, RRelu, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softmax2d, Softmin, Softplus, Softshrink,
    Softsign, Tanh, Tanhshrink, Threshold,
};
use gradus_tensor::Generator;

use crate::reference::Cases;

#[test]
fn activations() {
    let t = Cases::of("act");
    let x = t.value(&[3, 4], 0).mul(3.0).unwrap();
    macro_rules! plain {
        ($($layer:ident $case:literal)*) => { $(t.layer_of($case, $layer, x.clone());)* };
    }
    plain! { Relu "ReLU" Relu6 "ReLU6" Gelu "GELU" Silu "SiLU" Mish "Mish" Sigmoid "Sigmoid" LogSigmoid "LogSigmoid" }
    plain! { Hardsigmoid "Hardsigmoid" Hardswish "Hardswish" Tanh "Tanh" Tanhshrink "Tanhshrink" Softsign "Softsign" }
    plain! { Selu "SELU" }
    t.layer("GELUTanh", GeluTanh, &[3, 4]);
    let shape = [3, 4, 2];
    t.layer("LeakyReLU0", LeakyRelu::default(), &shape);
    t.layer("LeakyReLU1", LeakyRelu { slope: 0.2 }, &shape);
    t.layer("ELU0", Elu::default(), &shape);
    t.layer("ELU1", Elu { alpha: 0.4 }, &shape);
    t.layer("CELU0", Celu::default(), &shape);
    t.layer("CELU1", Celu { alpha: -0.5 }, &shape);
    t.layer("Softplus0", Softplus::default(), &shape);
    t.layer("Softplus1", Softplus { beta: 2.5, threshold: 3.0 }, &shape);
    t.layer("Hardtanh0", Hardtanh::default(), &shape);
    t.layer("Hardtanh1", Hardtanh { min_val: -0.5, max_val: 0.2 }, &shape);
    t.layer("Hardshrink0", Hardshrink::default(), &shape);
    t.layer("Hardshrink1", Hardshrink { lambda: 0.9 }, &shape);
    t.layer("Softshrink0", Softshrink::default(), &shape);
    t.layer("Softshrink1", Softshrink { lambda: 0.9 }, &shape);
    t.layer("GLU0", Glu::default(), &shape);
    t.layer("GLU1", Glu { axis: 1 }, &shape);
    t.layer("Threshold0", Threshold { threshold: 0.3, value: 7.0 }, &shape);
    t.layer("Softmax", Softmax { axis: -1 }, &[3, 4]);
    t.layer("Softmax1", Softmax { axis: 1 }, &[2, 3, 2]);
    t.layer("Softmin", Softmin { axis: -1 }, &[3, 4]);
    t.layer("Softmin1", Softmin { axis: 1 }, &[2, 3, 2]);
    t.layer("LogSoftmax", LogSoftmax { axis: -1 }, &[3, 4]);
    t.layer("LogSoftmax1", LogSoftmax { axis: 1 }, &[2, 3, 2]);
    t.layer("Softmax2d", Softmax2d, &[2, 3, 2, 2]);
    t.layer("Softmax2d3", Softmax2d, &[3, 2, 2]);
    t.layer("PReLU1", t.make(|init| PRelu::new(1, 0.25, init)), &[3, 4]);
    t.layer("PReLU4", t.make(|init| PRelu::new(4, 0.25, init)), &[2, 4, 3]);
    let mut rrelu = RRelu::new(0.1, 0.4, &mut Generator::new(0)).unwrap();
    rrelu.eval();
    t.layer("RReLU", rrelu, &[3, 4]);
    t.finish();
}
