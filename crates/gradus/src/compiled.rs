//! [`Compile`]: a model whose forward pass is captured, for inference.

use gradus_graph::{Captured, Graph, Node, Origin, Place};
use gradus_nn::Forward;
use gradus_tensor::{Error, Here, Result, Tensor, all_or_nothing, no_grad_guard};

/// Captures forward passes.
pub trait Compile: Forward {
    /// Captures the forward pass for inputs like `example`, without gradients. Forward passes of the result are
    /// [replayed](crate::graph), with the bits of [`forward`](Forward::forward) on the CPU. Inputs of other shapes are
    /// captured when they come. The result borrows the model, so that neither its parameters' tensors nor its mode can be
    /// replaced in the meantime; values that are written into the parameters are used.
    ///
    /// ```
    /// use gradus::prelude::*;
    ///
    /// # fn main() -> Result<()> {
    /// let (device, mut rng) = (Device::cpu()?, Generator::new(0));
    /// let mut init = Init::new(DType::F32, &device, &mut rng);
    /// let model = Sequential::new().add(Linear::new(4, 16, &mut init)?).add(Gelu).add(Linear::new(16, 2, &mut init)?);
    /// let x = Tensor::randn([8, 4], DType::F32, &device, &mut rng)?;
    /// let mut compiled = model.compiled(&x)?;
    /// assert_eq!(compiled.forward(&x)?.to_vec::<f32>()?, no_grad(|| model.forward(&x))?.to_vec::<f32>()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Fails if the model is in training mode, so that its forward pass draws random numbers or updates running
    /// statistics, and if it cannot be captured: see [`capture`](crate::graph::capture).
    #[track_caller]
    fn compiled(&self, example: &Tensor) -> Result<Compiled<'_, Self>> {
        // If the model is in training mode, the random numbers and running statistics are restored.
        all_or_nothing(|| {
            let mut compiled = Compiled { model: self, captured: Captured::strict() };
            // The first two calls are traced, and the third is a replay. A copy shows that the input may be another tensor.
            for x in [example, &example.copy()?, example] {
                let _ = compiled.forward(x)?;
            }
            if compiled.graph().is_some_and(changes_the_model) {
                let m = "the forward pass draws random numbers or changes tensors of the model";
                let e = Error::argument("compiled", m);
                return Err(e.help("call model.eval() first; capture training steps by `capture`"));
            }
            Ok(compiled)
        })
        .here()
    }
}

impl<M: Forward + ?Sized> Compile for M {}

fn changes_the_model(graph: &Graph) -> bool {
    let is_kept = |place: &Place| !matches!(graph.memories[place.memory].origin, Origin::Computed);
    let changes = |node: &Node| node.source.is_some() || node.in_place && node.outputs.iter().any(is_kept);
    !graph.replaced.is_empty() || graph.nodes.iter().any(changes)
}

/// A model with a captured forward pass; see [`Compile::compiled`].
pub struct Compiled<'m, M: ?Sized> {
    model: &'m M,
    captured: Captured,
}

impl<M: Forward + ?Sized> Compiled<'_, M> {
    /// Computes the output of the model, without gradients.
    #[track_caller]
    pub fn forward(&mut self, input: &Tensor) -> Result<Tensor> {
        let _guard = no_grad_guard();
        let model = self.model;
        let pass = |x: &[Tensor]| Ok((vec![model.forward(&x[0])?.detach()], ()));
        let (mut results, ()) = self.captured.call(0, &[&input.detach()], pass).here()?;
        results.pop().ok_or_else(|| Error::argument("compiled", "a replay has no result"))
    }

    /// Verifies the next `calls` replays; see [`Step::verify`](crate::graph::Step::verify).
    pub fn verify(&mut self, calls: u64) {
        self.captured.verify(calls);
    }

    /// The number of forward passes that were replayed, including one by [`compiled`](Compile::compiled).
    pub fn replays(&self) -> u64 {
        self.captured.replays()
    }

    /// The operations of the forward pass.
    pub fn graph(&self) -> Option<&Graph> {
        self.captured.graph()
    }
}
