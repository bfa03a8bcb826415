//! [`Link`]: tensors from one stage of a pipeline to a neighbour, one for each micro-batch.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gradus_tensor::{DType, Device, Error, ErrorKind, Result, Tensor};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::fact::fact;
use crate::group::Line;
use crate::handle::Handle;

/// The most axes of a tensor.
const AXES: usize = 8;
/// The numbers that go before a tensor: its micro-batch and rows, what it is, its dtype, and its shape.
const HEADER: usize = 6 + AXES;

/// A part of a batch that goes through the pipeline as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MicroBatch {
    pub(crate) number: usize,
    pub(crate) rows: Range<usize>,
}

impl fmt::Display for MicroBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batch {}, rows {:?}", self.number, self.rows)
    }
}

/// What a stage gives its neighbour.
pub(crate) enum Parcel {
    /// No gradient: the loss does not depend on the activation.
    Nothing,
    /// An activation that needs no gradient.
    Constant(Tensor),
    /// An activation that needs a gradient, or a gradient.
    Tracked(Tensor),
}

/// One direction of the traffic with one neighbour, over a communicator that carries nothing else for this rank. So the
/// n-th tensor that one side sends is the n-th that the other receives, and no transfer waits for one of another link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) comm: Arc<dyn Communicator>,
    pub(crate) peer: usize,
}

impl Link {
    /// Starts to send; both handles are waited for later.
    pub(crate) fn send(
        &self,
        micro: &MicroBatch,
        parcel: &Parcel,
        device: &Device,
        line: Line,
    ) -> Result<[Option<Handle>; 2]> {
        let (kind, tensor) = match parcel {
            Parcel::Nothing => (0, None),
            Parcel::Constant(tensor) => (1, Some(tensor)),
            Parcel::Tracked(tensor) => (2, Some(tensor)),
        };
        let mut header = vec![micro.number as i64, micro.rows.start as i64, micro.rows.end as i64, kind];
        if let Some(tensor) = tensor {
            header.extend([tensor.dtype() as i64, tensor.rank() as i64]);
            header.extend(tensor.shape().iter().map(|&n| n as i64));
        }
        header.resize(HEADER, 0);
        let start = |tensor: &Tensor| self.comm.start(Collective::Send(self.peer), tensor, line);
        let header = start(&Tensor::from_vec(header, [HEADER], device)?)?;
        Ok([Some(header), tensor.map(start).transpose()?])
    }

    /// Waits for what the neighbour sends for this micro-batch.
    pub(crate) fn receive(&self, micro: &MicroBatch, device: &Device, line: Line) -> Result<Parcel> {
        let run = |shape: &[usize], dtype: DType| {
            let room = Tensor::zeros(shape, dtype, device)?;
            self.comm.run_in_place(Collective::Receive(self.peer), &room, line).map(|()| room)
        };
        let header = run(&[HEADER], DType::I64)?;
        let what = format!("the micro-batches of stage {}, their shapes or dtypes", self.peer);
        let header = fact::<i64>(&header, &what, line)?;
        let numbers: Vec<usize> = header.iter().map(|&n| n as usize).collect();
        let broken = || Error::new(ErrorKind::Peer, "pipeline", "a neighbour speaks another version of the protocol");
        let &[number, start, end, kind, dtype, axes, ref shape @ ..] = &numbers[..] else { return Err(broken()) };
        let theirs = MicroBatch { number, rows: start..end };
        if theirs != *micro {
            let e = Error::new(ErrorKind::Peer, "pipeline", "stages compute different rows").at(line);
            return Err(e
                .note(format!("rank {}: {micro}", self.comm.rank()))
                .note(format!("rank {}: {theirs}", self.peer))
                .help("all ranks give the same number of rows"));
        }
        if kind == 0 {
            return Ok(Parcel::Nothing);
        }
        let (dtype, shape) = (DType::ALL.get(dtype).ok_or_else(broken)?, shape.get(..axes).ok_or_else(broken)?);
        let tensor = run(shape, *dtype)?;
        Ok(if kind == 1 { Parcel::Constant(tensor) } else { Parcel::Tracked(tensor) })
    }
}
