//! Limits of the numbers in a config.

use gradus_tensor::{DType, Error, Result, Tensor};

/// The largest number of features, channels, classes, tokens or positions. Products of a few of them do not overflow.
const MOST_FEATURES: usize = 1 << 20;

/// The largest number of layers.
const MOST_LAYERS: usize = 1 << 10;

/// Refuses sizes that are 0 or too large.
#[track_caller]
pub(crate) fn sizes(op: &str, sizes: &[(&str, usize)]) -> Result<()> {
    within(op, sizes, 1, MOST_FEATURES)
}

/// Refuses numbers of layers that are 0 or too large.
#[track_caller]
pub(crate) fn layers(op: &str, layers: &[(&str, usize)]) -> Result<()> {
    within(op, layers, 1, MOST_LAYERS)
}

#[track_caller]
fn within(op: &str, numbers: &[(&str, usize)], least: usize, most: usize) -> Result<()> {
    match numbers.iter().find(|(_, number)| !(least..=most).contains(number)) {
        Some((name, number)) => Err(Error::argument(op, format!("{name} is {number}; it is {least} to {most}"))),
        None => Ok(()),
    }
}

/// Refuses a number that is not a multiple of another, by their names.
#[track_caller]
pub(crate) fn divides(op: &str, (part, divisor): (&str, usize), (whole, number): (&str, usize)) -> Result<()> {
    if divisor > 0 && number.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{part} {divisor} does not divide {whole} {number}")))
}

/// Refuses an input that is not a batch of images with this number of channels.
#[track_caller]
pub(crate) fn images(op: &str, input: &Tensor, channels: usize) -> Result<()> {
    if input.rank() == 4 && input.shape()[1] == channels {
        return Ok(());
    }
    let e = Error::shape(op, format!("the input is images [n, {channels}, h, w]"));
    Err(e.operand("input", input.shape(), input.dtype(), input.device()))
}

/// The batch size and length of tokens, which are `[n, length]`, with at most this many in a row.
#[track_caller]
pub(crate) fn tokens(op: &str, tokens: &Tensor, most: usize) -> Result<[usize; 2]> {
    match *tokens.shape() {
        [n, length] if length <= most => Ok([n, length]),
        [_, length] => {
            let e = Error::argument(op, format!("{length} tokens; the model has {most} positions"));
            Err(e.operand("tokens", tokens.shape(), tokens.dtype(), tokens.device()))
        }
        _ => {
            let e = Error::shape(op, "tokens are [n, length]");
            Err(e.operand("tokens", tokens.shape(), tokens.dtype(), tokens.device()))
        }
    }
}

/// A mask of tokens `[n, length]`, true or not 0 where there is a token, as one that broadcasts with the scores of
/// attention.
#[track_caller]
pub(crate) fn key_mask(op: &str, mask: &Tensor, shape: [usize; 2]) -> Result<Tensor> {
    if mask.shape() != shape {
        let e = Error::shape(op, format!("a mask of the tokens is [{}, {}]", shape[0], shape[1]));
        return Err(e.operand("mask", mask.shape(), mask.dtype(), mask.device()));
    }
    mask.to_dtype(DType::Bool)?.unsqueeze(1)?.unsqueeze(1)
}
