//! The contents of errors, as data and as text: the line of the call, its operands, and why there is no gradient.
#![allow(clippy::unwrap_used)]

mod common;

use std::panic::Location;

use common::{another_cpu, cpu, f64s, leaf};
use gradus_tensor::{
    BackwardOptions, DType, Error, ErrorKind, Here, Operand, PoolOptions, Result, Tensor, checkpoint, grad, hvp,
    inference, no_grad, ops, vmap,
};

/// Returns the line from which it is called.
#[track_caller]
fn line() -> u32 {
    Location::caller().line()
}

#[track_caller]
fn check<T>(line: u32, result: Result<T>) -> Error {
    let Err(e) = result else { panic!("no error") };
    let found = e.location().unwrap_or_else(|| panic!("no line: {e}"));
    assert_eq!((found.file(), found.line()), (file!(), line), "{e}");
    assert!(e.to_string().contains(&format!("\n  at {found}")), "{e}");
    e
}

#[test]
fn an_error_has_the_line_of_the_call() {
    let (x, i) = (f64s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), Tensor::zeros([2], DType::I64, &cpu()).unwrap());
    // The arguments are checked by the method, by the operation, in a closure, by the device, or in a composite
    // operation.
    check(line(), x.with_grad().and(i.with_grad()));
    check(line(), x.matmul(&x));
    check(line(), x.sum(&[2], false));
    check(line(), x.reshape([5]));
    check(line(), x.index_select(0, &i.add(5).unwrap()));
    check(line(), &x + f64s(&[1.0, 2.0], &[2]));
    check(line(), x.add(f64s(&[1.0, 2.0], &[2])));
    check(line(), x.add(x.matmul(&x)));
    check(line(), x.add(Tensor::zeros([2, 3], DType::F64, &another_cpu()).unwrap()));
    check(line(), x.add_(x.unsqueeze(0).unwrap().expand([2, 2, 3]).unwrap()));
    check(line(), x.scatter_(0, &i, 1.0));
    check(line(), x.index_fill_(5, &i, 1.0));
    check(line(), x.avg_pool2d([2, 2], PoolOptions::new(), true));
    check(line(), x.item());
    check(line(), x.to_vec::<f32>());
    check(line(), x.backward());
    check(line(), Tensor::einsum("ij,jk", &[&x]));
    check(line(), Tensor::from_vec([1.0f32], [2], &cpu()));
    check(line(), Tensor::cat(&[&x, &i], 0));
    check(line(), ops::table::ADD.apply(&[Operand::Tensor(&x)]));
    check(line(), hvp(|x| x[0].sum_all(), &[&x], &[&i]));
}

#[test]
fn the_line_is_the_innermost_of_the_users() {
    let x = leaf(&[1.0, 2.0]);
    let inside = line() + 1;
    let f = |x: &[Tensor]| x[0].reshape([3]);
    check(inside, checkpoint(f, &[&x]));
    check(inside, vmap(|x| f(x), &[&x.unsqueeze(0).unwrap()], &[Some(0)], &[0]));
    // A backward rule has no line in the user's code, so the error has the line of the backward pass.
    let y = x.exp().unwrap();
    let loss = y.mul(&y).unwrap().sum_all().unwrap();
    no_grad(|| y.detach().zero_()).unwrap();
    check(line(), grad(&[&loss], &[&x], None, BackwardOptions::new()));
}

#[test]
fn a_function_by_its_path_has_no_line_and_here_gives_one() {
    #[track_caller]
    fn all(x: &[Tensor]) -> Result<Vec<Tensor>> {
        x.iter().map(Tensor::with_grad).collect::<Result<Vec<_>>>().here()
    }
    let x = Tensor::zeros([2], DType::I64, &cpu()).unwrap();
    let by_path = std::slice::from_ref(&x).iter().map(Tensor::with_grad).next().unwrap();
    assert!(by_path.unwrap_err().location().is_none());
    check(line(), all(&[x]));
}

#[test]
fn operands_are_data() {
    let (a, b) = (f64s(&[0.0; 6], &[2, 3]), f64s(&[0.0; 4], &[4, 1]));
    let e = a.matmul(&b).unwrap_err();
    let [lhs, rhs] = e.operands() else { panic!("{e}") };
    assert_eq!((&lhs.shape[..], &rhs.shape[..]), (&[2, 3][..], &[4, 1][..]));
    assert_eq!((lhs.dtype, rhs.dtype), (DType::F64, DType::F64));
    assert!(e.to_string().contains(&rhs.device), "{e}");
    assert!(e.version_mismatch().is_none() && e.layer().is_none());
}

#[test]
fn a_write_over_a_kept_value_is_data() {
    let x = leaf(&[1.0, 2.0]);
    let h = x.exp().unwrap();
    let (recorded, y) = (line(), h.mul(&h).unwrap());
    let (wrote, written) = (line(), h.detach().add_(1.0));
    written.unwrap();
    let e = check(line(), y.sum_all().unwrap().backward());
    let m = e.version_mismatch().unwrap();
    assert_eq!((m.needed_by.as_str(), m.value.as_str(), m.written_by.as_str()), ("mul", "input 0", "add_"));
    assert_eq!((m.expected, m.found), (0, 1));
    assert_eq!((m.lines.needed.line(), m.lines.written.line()), (recorded, wrote));
    assert_eq!((m.lines.needed.file(), m.lines.written.file()), (file!(), file!()));
}

#[test]
fn a_computed_tensor_that_was_overwritten_is_data() {
    let x = leaf(&[1.0, 2.0]);
    let (recorded, h) = (line(), x.exp().unwrap());
    no_grad(|| h.detach().zero_()).unwrap();
    let e = check(line(), h.add(1.0));
    let m = e.version_mismatch().unwrap();
    assert_eq!((m.needed_by.as_str(), m.written_by.as_str(), m.expected, m.found), ("add", "zero_", 0, 1));
    assert_eq!(m.lines.needed.line(), recorded);
}

#[test]
fn a_second_pass_names_the_line_of_the_first_and_no_operation_that_was_not_called() {
    let x = leaf(&[1.0, 2.0]);
    let loss = x.square().unwrap().sum_all().unwrap();
    let first = line() + 1;
    drop(loss.backward().unwrap());
    let e = check(line(), loss.backward());
    assert_eq!(e.message(), "the graph was freed by an earlier backward pass");
    let text = e.to_string();
    assert!(text.contains(&format!("that pass ran at {}:{first}:", file!())), "{text}");
    assert!(text.contains("retain_graph()") && !text.contains("reshape"), "{text}");
}

/// The error text of a backward pass from a tensor that has no gradient.
#[track_caller]
fn untracked(y: &Tensor) -> String {
    let e = y.sum_all().unwrap().backward().unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Autograd);
    e.to_string()
}

#[test]
fn a_loss_without_a_gradient_says_why() {
    let x = leaf(&[1.0, 2.0]);
    let has = |text: String, words: &[&str]| words.iter().for_each(|w| assert!(text.contains(w), "{w} in {text}"));
    // A second derivative, although the first gradient was computed without a graph.
    let y = x.pow(3.0).unwrap().sum_all().unwrap();
    let g = y.backward().unwrap().get(&x).unwrap().clone();
    has(untracked(&g.square().unwrap().mul(2.0).unwrap()), &["without create_graph", "help:", "create_graph()"]);
    // Views of that gradient, and sums of it with constants.
    has(untracked(&g.narrow(0, 0, 1).unwrap().add(f64s(&[1.0], &[1])).unwrap()), &["without create_graph"]);
    // Results computed while gradients are switched off.
    has(untracked(&no_grad(|| x.exp()).unwrap()), &["no_grad or inference", "help: compute it outside"]);
    has(untracked(&inference(|| x.reshape([1, 2])).unwrap().copy().unwrap()), &["no_grad or inference"]);
    // Results computed from a detached tensor.
    has(untracked(&x.detach().exp().unwrap()), &["a detached one", "leave out detach()"]);
    // Results of an operation without a derivative.
    let sign = x.gt(0.0).unwrap().to_dtype(DType::F64).unwrap();
    has(untracked(&sign), &["no derivative, such as a comparison"]);
    // Results computed from constants only.
    has(untracked(&f64s(&[1.0, 2.0], &[2]).exp().unwrap()), &["nothing that the tensor", "with_grad()?"]);
    let integers = Tensor::zeros([], DType::I64, &cpu()).unwrap();
    has(integers.backward().unwrap_err().to_string(), &["integers and truth values have no derivative"]);
}
