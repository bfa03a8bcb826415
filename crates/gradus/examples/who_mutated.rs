//! A value is overwritten between the forward and the backward pass. This example compares the errors of Gradus and
//! PyTorch.
//!
//! ```sh
//! cargo run --release -p gradus --example who_mutated
//! ```
//! This is the same program in Python, for which the example also prints the output of PyTorch 2.15.0:
//!
//! ```python
//! buffer = torch.full([6], 0.5)
//! w = buffer[:3]                                            # a view of the first half
//! x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
//! y = (x * w).sum()                                         # the gradient for x is w
//! w.fill_(4.0)                                              # or one of the other two writes below
//! y.backward()
//! ```
//!
//! With anomaly detection, PyTorch also shows the line of `x * w`, but about the write it says only: "The variable in
//! question was changed in there or anywhere later. Good luck!" PyTorch detects a write through `w.detach()` too, but
//! not a write through `w.data`. Gradus has no such unwatched handle: `detach` shares both the memory and its log of
//! writes.
#![allow(clippy::print_stdout)]

use gradus::prelude::*;

/// The error that PyTorch 2.15.0+cu132 raises on the CPU, verbatim, both for `w.fill_(4.0)` and for
/// `buffer[3:].fill_(4.0)`.
const PYTORCH: &str = "one of the variables needed for gradient computation has been modified by an inplace operation: \
    [torch.FloatTensor [3]] is at version 1; expected version 0 instead. Hint: enable anomaly detection to find the \
    operation that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True, check_nan=False).";

/// The target of the write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// `w`, which the gradient needs.
    Needed,
    /// The part of the same memory that is not in `w`.
    Beside,
    /// `w`, through a handle that is not part of the graph.
    Detached,
}

/// Returns the gradient of `x`, or the error.
pub(crate) fn run(write: Write) -> Result<Vec<f32>> {
    let device = Device::cpu()?;
    let buffer = Tensor::full([6], 0.5, DType::F32, &device)?;
    let w = buffer.narrow(0, 0, 3)?;
    let x = Tensor::from_vec([1.0f32, 2.0, 3.0], [3], &device)?.with_grad()?;
    let y = (&x * &w)?.sum_all()?;
    match write {
        Write::Needed => w.fill_(4.0)?,
        Write::Beside => buffer.narrow(0, 3, 3)?.fill_(4.0)?,
        Write::Detached => w.detach().fill_(4.0)?,
    }
    let gradients = y.backward()?;
    gradients.get(&x).expect("y depends on x").to_vec()
}

fn main() -> Result<()> {
    let pytorch = [
        (Write::Needed, "w.fill_(4.0)", format!("RuntimeError: {PYTORCH}")),
        (Write::Beside, "buffer[3:].fill_(4.0)", format!("RuntimeError: {PYTORCH}\n(no byte of w has changed)")),
        (Write::Detached, "w.data.fill_(4.0)", "tensor([4., 4., 4.])\n(wrong, without a word)".to_owned()),
    ];
    for (write, python, printed) in pytorch {
        println!("== {python}\n-- PyTorch 2.15.0\n{printed}\n-- Gradus");
        match run(write) {
            Ok(gradient) => println!("{gradient:?}\n"),
            Err(error) => println!("{error}\n"),
        }
    }
    Ok(())
}
