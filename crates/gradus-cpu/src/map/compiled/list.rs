//! Made by `cargo xtask compiled`: not to be edited by hand.

use super::*;

compiled! {
    silu(1) -> (v5) {
        v0 = Arg(0);
        v1 = Const(-1000.0);
        v2 = Lt(v0, v1);
        v3 = Select(v2, v1, v0);
        v4 = Sigmoid(v3);
        v5 = Mul(v3, v4);
    }
    silu_backward(2) -> (v15) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-1000.0);
        v3 = Lt(v0, v2);
        v4 = Select(v3, v2, v0);
        v5 = Sigmoid(v4);
        v6 = Mul(v4, v5);
        v7 = Const(1000.0);
        v8 = Gt(v6, v7);
        v9 = Select(v8, v7, v6);
        v10 = SigmoidNeg(v4);
        v11 = Mul(v9, v10);
        v12 = Add(v5, v11);
        v13 = Mul(v1, v12);
        v14 = Const(0.0);
        v15 = Select(v3, v14, v13);
    }
    silu_mul(2) -> (v7) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-1000.0);
        v3 = Lt(v0, v2);
        v4 = Select(v3, v2, v0);
        v5 = Sigmoid(v4);
        v6 = Mul(v4, v5);
        v7 = Mul(v6, v1);
    }
    silu_mul_backward(3) -> (v18, v9) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Const(-1000.0);
        v4 = Lt(v0, v3);
        v5 = Select(v4, v3, v0);
        v6 = Sigmoid(v5);
        v7 = Mul(v5, v6);
        v8 = Mul(v2, v1);
        v9 = Mul(v2, v7);
        v10 = Const(1000.0);
        v11 = Gt(v7, v10);
        v12 = Select(v11, v10, v7);
        v13 = SigmoidNeg(v5);
        v14 = Mul(v12, v13);
        v15 = Add(v6, v14);
        v16 = Mul(v8, v15);
        v17 = Const(0.0);
        v18 = Select(v4, v17, v16);
    }
    gelu_tanh(1) -> (v19) {
        v0 = Arg(0);
        v1 = Const(-60.0);
        v2 = Lt(v0, v1);
        v3 = Select(v2, v1, v0);
        v4 = Const(60.0);
        v5 = Gt(v3, v4);
        v6 = Select(v5, v4, v3);
        v7 = Mul(v6, v6);
        v8 = Mul(v7, v6);
        v9 = Const(0.044715);
        v10 = Mul(v8, v9);
        v11 = Add(v6, v10);
        v12 = Const(1.5957691216057308);
        v13 = Mul(v11, v12);
        v14 = Sigmoid(v13);
        v15 = Const(f64::NEG_INFINITY);
        v16 = Eq(v0, v15);
        v17 = Mul(v0, v14);
        v18 = Const(-0.0);
        v19 = Select(v16, v18, v17);
    }
    gelu_tanh_backward(2) -> (v35) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-60.0);
        v3 = Lt(v0, v2);
        v4 = Select(v3, v2, v0);
        v5 = Const(60.0);
        v6 = Gt(v4, v5);
        v7 = Select(v6, v5, v4);
        v8 = Mul(v7, v7);
        v9 = Mul(v8, v7);
        v10 = Const(0.044715);
        v11 = Mul(v9, v10);
        v12 = Add(v7, v11);
        v13 = Const(1.5957691216057308);
        v14 = Mul(v12, v13);
        v15 = Sigmoid(v14);
        v16 = Const(f64::NEG_INFINITY);
        v17 = Eq(v0, v16);
        v18 = Const(0.0);
        v19 = Select(v17, v18, v1);
        v20 = Mul(v19, v15);
        v21 = Mul(v19, v0);
        v22 = SigmoidNeg(v14);
        v23 = Mul(v15, v22);
        v24 = Mul(v21, v23);
        v25 = Mul(v24, v13);
        v26 = Mul(v25, v10);
        v27 = Mul(v26, v7);
        v28 = Mul(v26, v8);
        v29 = Add(v25, v28);
        v30 = Mul(v27, v7);
        v31 = Add(v29, v30);
        v32 = Add(v31, v30);
        v33 = Select(v6, v18, v32);
        v34 = Select(v3, v18, v33);
        v35 = Add(v20, v34);
    }
    hardswish(1) -> (v15) {
        v0 = Arg(0);
        v1 = Const(-3.0);
        v2 = Lt(v0, v1);
        v3 = Select(v2, v1, v0);
        v4 = Const(3.0);
        v5 = Gt(v3, v4);
        v6 = Select(v5, v4, v3);
        v7 = Le(v0, v1);
        v8 = Ge(v0, v4);
        v9 = Add(v6, v4);
        v10 = Mul(v6, v9);
        v11 = Const(6.0);
        v12 = Div(v10, v11);
        v13 = Select(v8, v0, v12);
        v14 = Const(0.0);
        v15 = Select(v7, v14, v13);
    }
    adam(4) -> (v23, v13, v17) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Arg(3);
        v4 = Number(4);
        v5 = Number(5);
        v6 = Number(6);
        v7 = Number(7);
        v8 = Number(8);
        v9 = Number(9);
        v10 = Number(10);
        v11 = Mul(v4, v2);
        v12 = Mul(v5, v1);
        v13 = Add(v11, v12);
        v14 = Mul(v6, v3);
        v15 = Mul(v1, v1);
        v16 = Mul(v7, v15);
        v17 = Add(v14, v16);
        v18 = Mul(v8, v13);
        v19 = Sqrt(v17);
        v20 = Mul(v19, v9);
        v21 = Add(v20, v10);
        v22 = Div(v18, v21);
        v23 = Sub(v0, v22);
    }
    adamw(4) -> (v25, v15, v19) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Arg(3);
        v4 = Number(4);
        v5 = Number(5);
        v6 = Number(6);
        v7 = Number(7);
        v8 = Number(8);
        v9 = Number(9);
        v10 = Number(10);
        v11 = Number(11);
        v12 = Mul(v0, v11);
        v13 = Mul(v4, v2);
        v14 = Mul(v5, v1);
        v15 = Add(v13, v14);
        v16 = Mul(v6, v3);
        v17 = Mul(v1, v1);
        v18 = Mul(v7, v17);
        v19 = Add(v16, v18);
        v20 = Mul(v8, v15);
        v21 = Sqrt(v19);
        v22 = Mul(v21, v9);
        v23 = Add(v22, v10);
        v24 = Div(v20, v23);
        v25 = Sub(v12, v24);
    }
}
