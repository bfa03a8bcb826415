//! [`Graph::check`]: whether a graph is well-formed.

use gradus_tensor::ops::InputSpec;
use gradus_tensor::{Error, Result};

use crate::graph::{Graph, Node, Origin, Place};

impl Graph {
    /// Checks that each operation infers the shapes and dtypes of its outputs from its inputs, that each value was
    /// computed before it is read, at the version at which it is read, and that all places lie in their memories. Passes
    /// preserve this; debug builds check it after each pass.
    ///
    /// # Errors
    /// Names the first operation that is wrong, with the line of its call.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let mut version: Vec<Option<u32>> =
            self.memories.iter().map(|m| (!matches!(m.origin, Origin::Computed)).then_some(0)).collect();
        for (i, node) in self.nodes.iter().enumerate() {
            self.infers(node)?;
            for place in node.inputs.iter().chain(&node.outputs) {
                self.inside(node, place)?;
            }
            if let Some(at) = node.inputs.iter().position(|p| !self.is_empty(p) && version[p.memory] != Some(p.version))
            {
                let p = &node.inputs[at];
                return Err(wrong(node, format!("input {at}, {p}, is read when it is {:?}", version[p.memory])));
            }
            node.outputs.iter().for_each(|p| version[p.memory] = Some(p.version));
            if node.repeats.is_some_and(|earlier| earlier >= i) {
                return Err(wrong(node, "it repeats a later operation".to_owned()));
            }
        }
        let left = self.results.iter().chain(self.replaced.iter().map(|(_, place)| place));
        match left.into_iter().find(|p| !self.is_empty(p) && version[p.memory].is_none()) {
            Some(p) => Err(Error::argument("graph", format!("nothing computes the result {p}"))),
            None => Ok(()),
        }
    }

    /// Whether a place has no elements, so that no kernel computes it.
    fn is_empty(&self, place: &Place) -> bool {
        place.layout.numel() == 0
    }

    #[track_caller]
    fn infers(&self, node: &Node) -> Result<()> {
        // An operation that updates tensors infers from these first.
        let updated = if node.in_place && node.op.effect().updates() { &node.outputs[..] } else { &[] };
        let spec = |p: &Place| (*p.layout.shape(), p.dtype);
        let specs: Vec<_> = updated.iter().chain(&node.inputs).map(spec).collect();
        let inputs: Vec<InputSpec<'_>> =
            specs.iter().map(|(shape, dtype)| InputSpec { shape, dtype: *dtype, device: &self.device }).collect();
        let Some(inferred) = node.op.infer(&inputs) else { return Ok(()) };
        let inferred = inferred.map_err(|e| wrong(node, e.message().to_owned()))?;
        let given = node.outputs.iter().map(spec);
        if inferred.iter().map(|s| (s.shape, s.dtype)).eq(given) {
            return Ok(());
        }
        let shown: Vec<String> = inferred.iter().map(|s| format!("{}{:?}", s.dtype, s.shape)).collect();
        Err(wrong(node, format!("it infers {}", shown.join(", "))))
    }

    #[track_caller]
    fn inside(&self, node: &Node, place: &Place) -> Result<()> {
        let Some(memory) = self.memories.get(place.memory) else {
            return Err(wrong(node, format!("there is no memory {}", place.memory)));
        };
        // Places in arguments are relative to an offset that is known only in a call.
        let bytes = place.layout.span().end.saturating_mul(place.dtype.size());
        if place.layout.numel() > 0 && bytes > memory.bytes {
            return Err(wrong(node, format!("{place} ends at byte {bytes} of {}", memory.bytes)));
        }
        Ok(())
    }
}

#[track_caller]
fn wrong(node: &Node, what: String) -> Error {
    let places = |list: &[Place]| list.iter().map(Place::to_string).collect::<Vec<_>>().join(", ");
    let shown = format!("{} of {} into {}", node.op.name(), places(&node.inputs), places(&node.outputs));
    Error::argument("graph", format!("{shown}: {what}")).note(format!("it ran at {}", node.location))
}
