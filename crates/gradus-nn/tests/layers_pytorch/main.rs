//! Every layer and loss beside PyTorch's, in f64: names and shapes of parameters, outputs, gradients, running
//! statistics, and evaluation. `tests/reference/layers.py` makes the values and says what is in the file.
#![allow(clippy::unwrap_used)]

mod activations;
mod losses;
mod moves;
mod norms;
mod reference;
mod tables;
mod windows;
