//! Hand-written WGSL modules for one shape and dtype, as a good programmer would write them. They run on tensors that
//! already exist.

use gradus::prelude::*;
use gradus::{Bound, ComputeModule};

/// A call that can be repeated. It returns its results.
pub(crate) type Call = Box<dyn Fn() -> Result<Vec<Tensor>>>;

/// Modules that are launched one after the other. The first reads the inputs. Each of the others reads what the
/// previous one wrote.
pub(crate) struct Written {
    stages: Vec<Stage>,
}

struct Stage {
    source: String,
    groups: [u32; 3],
    /// The number of f32 elements that it writes for the next stage; `None` for the last stage, which writes the
    /// results.
    between: Option<usize>,
}

impl Written {
    /// One module with the given text, constants and number of work-groups.
    pub(crate) fn one(text: &str, constants: &[(&str, usize)], groups: [u32; 3]) -> Written {
        let lines = constants.iter().map(|(name, value)| format!("const {name} = {value}u;\n"));
        let source = lines.chain([text.to_owned()]).collect();
        Written { stages: vec![Stage { source, groups, between: None }] }
    }

    /// Adds a module with the same text as the last one. It reads the `elements` f32 elements that the last one writes.
    pub(crate) fn again(mut self, elements: usize, groups: [u32; 3]) -> Written {
        if let Some(last) = self.stages.last_mut() {
            last.between = Some(elements);
            let source = last.source.clone();
            self.stages.push(Stage { source, groups, between: None });
        }
        self
    }

    /// The call that runs the modules on the inputs, and returns tensors with the shapes and dtypes of `results`.
    pub(crate) fn prepare(&self, inputs: &[Tensor], results: &[Tensor]) -> Result<Call> {
        let device = results[0].device().clone();
        let outs: Vec<Tensor> =
            results.iter().map(|t| Tensor::zeros(t.shape(), t.dtype(), &device)).collect::<Result<_>>()?;
        let mut reads = inputs.to_vec();
        let mut stages = Vec::new();
        for stage in &self.stages {
            let write = match stage.between {
                Some(elements) => vec![Tensor::zeros([elements], DType::F32, &device)?],
                None => outs.clone(),
            };
            stages.push((stage.source.clone(), stage.groups, reads, write.clone()));
            reads = write;
        }
        Ok(Box::new(move || {
            for (source, groups, reads, write) in &stages {
                let bindings: Vec<Bound<'_>> =
                    reads.iter().map(Bound::Read).chain(write.iter().map(Bound::Write)).collect();
                device.dispatch_compute(ComputeModule::Wgsl(source), &bindings, &[], *groups)?;
            }
            Ok(outs.clone())
        }))
    }
}
