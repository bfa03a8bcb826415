//! An elementwise kernel that is joined into the loads of the operation that reads its result. Captured steps make it.

use std::sync::Arc;

use gradus_backend::{Backend, Reader, Result, Shape, View, ViewMut};

use super::map::{arguments, stretched};
use super::{Flow, InputSpec, Map, Op, Operation, Outputs, Reduce, Softmax};

/// A kernel with one output, and the reduction or softmax that reads that output. Inputs: those of the kernel. The result
/// has the bits of the two operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mapped {
    map: Map,
    reader: Reader,
    name: Arc<str>,
}

impl Mapped {
    /// Joins a kernel with inputs into `reader`; `None` if `reader` is another operation, or the kernel has several outputs.
    pub fn new(map: Map, reader: &Op) -> Option<Mapped> {
        let reader = match reader {
            Op::Reduce(reduce) => Reader::Reduce(reduce.op, reduce.axes),
            Op::Softmax(softmax) => Reader::Softmax { log: softmax.log, axis: softmax.axis },
            _ => return None,
        };
        let name = format!("{}+{}", map.name(), reader.name()).into();
        (map.kernel.outputs().len() == 1).then_some(Mapped { map, reader, name })
    }

    /// The kernel.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// What reads its output.
    pub fn reader(&self) -> Reader {
        self.reader
    }
}

impl Operation for Mapped {
    fn name(&self) -> &str {
        &self.name
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let between = self.map.infer(inputs)?;
        let x = [InputSpec { shape: &between[0].shape, dtype: between[0].dtype, device: inputs[0].device }];
        match self.reader {
            Reader::Reduce(op, axes) => Reduce { op, axes }.infer(&x),
            Reader::Softmax { log, axis } => Softmax { log, axis }.infer(&x),
        }
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let mut shape = *inputs[0].layout.shape();
        for x in &inputs[1..] {
            shape = Shape::broadcast(self.name(), &shape, x.layout.shape())?;
        }
        let layouts = stretched(inputs, &shape)?;
        let args = arguments(&self.map.args, inputs, &layouts);
        backend.map_into(&self.map.kernel, &args, shape, self.reader, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        self.map.can_fail()
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}
