//! One layer of an [`Lstm`](super::Lstm) with a projection.

use gradus_tensor::{Error, Result, Tensor, fused};

use crate::Parameter;

/// Runs the layer in one direction, with `x [t, n, features]`, `h [n, proj]`, `c [n, hidden]`, and lengths in descending
/// order: the hidden states of all steps, which are 0 behind the end of a sequence, and the final states.
#[track_caller]
pub(super) fn projected(
    x: &Tensor,
    lengths: Option<&[usize]>,
    reverse: bool,
    [h, c]: [&Tensor; 2],
    parameters: &[Parameter],
) -> Result<Vec<Tensor>> {
    let (t, n) = (x.shape()[0], x.shape()[1]);
    if t == 0 {
        let e = Error::argument("lstm", "there are no time steps");
        return Err(e.operand("x", x.shape(), x.dtype(), x.device()));
    }
    if let Some(lengths) = lengths {
        let fits = lengths.len() == n && lengths.iter().all(|&length| (1..=t).contains(&length));
        if !fits || !lengths.is_sorted_by(|a, b| a >= b) {
            let m = format!("the lengths {lengths:?} are not {n} numbers from 1 to {t} in descending order");
            return Err(Error::argument("lstm", m));
        }
    }
    let ([w_ih, w_hh, .., w_hr], biases) = (parameters, parameters.get(2..parameters.len() - 1)) else {
        return Err(Error::argument("lstm", "the layer has no weights"));
    };
    let bias = match biases {
        Some([a, b]) => Some(a.add(b.tensor())?),
        _ => None,
    };
    // The products of all inputs at once.
    let gates = x.linear(w_ih, bias.as_ref())?;
    let (mut h, mut c, zeros) = (h.clone(), c.clone(), Tensor::zeros(h.shape(), gates.dtype(), h.device())?);
    // At most one for each step.
    let mut outputs = vec![h.clone(); t];
    for i in 0..t {
        let i = if reverse { t - 1 - i } else { i };
        let rows = lengths.map_or(n, |lengths| lengths.partition_point(|&length| length > i));
        let of_step = |x: &Tensor| if rows < n { x.narrow(0, 0, rows) } else { Ok(x.clone()) };
        // The states of sequences without this step stay what they are.
        let with_rest = |new: &Tensor, old: &Tensor| {
            if rows < n { Tensor::cat(&[new, &old.narrow(0, rows, n - rows)?], 0) } else { Ok(new.clone()) }
        };
        let gates = of_step(&gates.select(0, i as isize)?)?.add(of_step(&h)?.linear(w_hh, None)?)?;
        let [input, forget, new, output] = &gates.chunk(4, 1)?[..] else {
            return Err(Error::argument("lstm", "there are not four gates"));
        };
        let new_c = fused!(|i, f, g, c| f.sigmoid() * c + i.sigmoid() * g.tanh())(input, forget, new, &of_step(&c)?)?;
        let new_h = fused!(|o, c| o.sigmoid() * c.tanh())(output, &new_c)?.linear(w_hr, None)?;
        outputs[i] = with_rest(&new_h, &zeros)?;
        (h, c) = (with_rest(&new_h, &h)?, with_rest(&new_c, &c)?);
    }
    Ok(vec![Tensor::stack(&outputs.iter().collect::<Vec<_>>(), 0)?, h, c])
}
