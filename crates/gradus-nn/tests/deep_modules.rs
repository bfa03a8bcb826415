//! Deeply nested modules are handled in time linear in the depth, without overflowing the stack.
#![allow(clippy::unwrap_used)]

mod common;

use common::{device, parameter, values};
use gradus_nn::{Forward, Item, ItemMut, Module, Parameter, Relu, Sequential, Visitor, VisitorMut};
use gradus_tensor::{Device, Error, Result, Tensor};

const DEEP: usize = 100_000;

/// `x * scale`
#[derive(Module)]
struct Scale {
    scale: Parameter,
}

impl Forward for Scale {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        x.mul(self.scale.tensor())
    }
}

/// A user's struct that contains a module.
#[derive(Module)]
struct Around {
    inside: Sequential,
}

impl Forward for Around {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.inside.forward(x)
    }
}

/// Nested `Sequential`s with a parameter in the innermost one.
fn nest(depth: usize, device: &Device) -> Sequential {
    let innermost = Sequential::new().add(Scale { scale: parameter(&[3.0], device) });
    (0..depth).fold(innermost, |inside, _| Sequential::new().add(inside))
}

#[test]
fn sequentials_may_be_nested_as_deep_as_memory_allows() {
    let device = device();
    let mut model = nest(DEEP, &device);
    let x = values(&[1], &device);
    assert_eq!(model.forward(&x).unwrap().item().unwrap(), 3.0 * x.item().unwrap());
    assert_eq!(model.num_parameters(), 1);
    let name = model.named_parameters().remove(0).0;
    assert_eq!(name.len(), "0.".repeat(DEEP + 1).len() + "scale".len());
    assert_eq!(model.state_dict().unwrap().get(&name).unwrap().item().unwrap(), 3.0);
    model.eval();
    model.freeze();
    assert!(model.parameters()[0].is_frozen());
    model.to_device(&device).unwrap();
    let text = format!("{model:?}");
    assert_eq!(text, model.to_string());
    assert!(text.contains("..") && text.len() < 20_000, "{text}");
    drop(model);
}

#[test]
fn structs_around_sequentials_are_dropped_however_deep() {
    let device = device();
    let innermost = Around { inside: nest(0, &device) };
    let around = |inside: Around| Around { inside: Sequential::new().add(Relu).add(Box::new(inside)) };
    let model = (0..DEEP).fold(innermost, |inside, _| around(inside));
    assert_eq!(model.named_parameters().len(), 1);
    // The forward pass of a struct calls user code, so too many nested ones are an error long before the stack
    // overflows.
    let e = model.forward(&values(&[1], &device)).unwrap_err().to_string();
    assert!(e.contains("modules are nested more than 128 deep"), "{e}");
    drop(model);
}

/// A linked list, in which each element contains the rest.
#[derive(Module)]
struct List(Option<Box<List>>, f64);

/// A wrapper around any module, which adds no name.
#[derive(Module)]
#[module(no_display)]
struct Wrapper(Box<dyn Module>);

#[test]
fn a_walk_over_types_of_a_user_is_a_loop() {
    let mut list = List(None, 0.0);
    for i in 0..DEEP {
        list = List(Some(Box::new(list)), i as f64);
    }
    let mut longest = 0;
    Visitor::walk(&list, &mut |path, _| longest = longest.max(path.len()));
    assert_eq!(longest, 2 * DEEP + 1);
    // The type does not drop itself in a loop, so the test does.
    let mut rest = list.0.take();
    while let Some(mut next) = rest {
        rest = next.0.take();
    }
    let mut wrapper = Wrapper(Box::new(1.5));
    for _ in 0..10 * DEEP {
        wrapper = Wrapper(Box::new(wrapper));
    }
    let mut found = 0;
    Visitor::walk(&wrapper, &mut |path, item| {
        found += usize::from(path.is_empty() && matches!(item, Item::Setting(_)))
    });
    VisitorMut::walk(&mut wrapper, &mut |_, _| {});
    assert_eq!(found, 1);
    std::mem::forget(wrapper);
}

/// A module whose `compute` calls itself.
#[derive(Module)]
struct Endless;

impl Forward for Endless {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x)
    }
}

#[test]
fn a_module_that_computes_itself_is_an_error() {
    let e: Error = Endless.forward(&values(&[1], &device())).unwrap_err();
    assert!(e.to_string().contains("does a module compute itself"), "{e}");
}

#[test]
fn the_layers_of_a_sequential_can_be_exchanged() {
    let device = device();
    let mut model = nest(1, &device).add(Relu);
    VisitorMut::walk(&mut model, &mut |path, item| {
        if let ItemMut::Layers(layers) = item
            && path == "0"
        {
            layers.push(Box::new(Scale { scale: parameter(&[-2.0], &device) }));
        }
    });
    let x = Tensor::from_vec([-1.0], [1], &device).unwrap();
    assert_eq!(model.forward(&x).unwrap().item().unwrap(), 6.0);
}

#[test]
fn layers_of_a_sequential_are_reached_and_moved_by_number_and_name() {
    let device = device();
    let scale = |by: f64| Scale { scale: parameter(&[by], &device) };
    let mut model = Sequential::new().add_named("double", scale(2.0)).unwrap().add(scale(3.0));
    model.push(scale(5.0));
    model.insert(1, Relu).unwrap();
    let names = |model: &Sequential| model.named_parameters().into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    assert_eq!(names(&model), ["double.scale", "2.scale", "3.scale"]);
    assert_eq!(model.children().map(|(name, _)| name.into_owned()).collect::<Vec<_>>(), ["double", "1", "2", "3"]);
    let x = Tensor::from_vec([1.0], [1], &device).unwrap();
    assert_eq!(model.forward(&x).unwrap().item().unwrap(), 30.0);
    assert_eq!(model.get(2).unwrap().forward(&x).unwrap().item().unwrap(), 3.0);
    assert_eq!(model.get_named("double").unwrap().forward(&x).unwrap().item().unwrap(), 2.0);
    assert!(model.get(4).is_none() && model.get_named("0").is_none());
    assert!(model.to_string().contains("(double): Scale("), "{model}");

    drop(model.remove(0).unwrap());
    *model.get_mut(1).unwrap() = Box::new(scale(7.0));
    assert_eq!(names(&model), ["1.scale", "2.scale"]);
    assert_eq!((model.len(), model.iter().count()), (3, 3));
    assert_eq!(model.forward(&x).unwrap().item().unwrap(), 35.0);
    for layer in &mut model {
        layer.freeze();
    }
    assert!(model.parameters().iter().all(Parameter::is_frozen));
    let mut again: Sequential = model.iter().map(|_| Box::new(scale(2.0)) as Box<dyn Forward>).collect();
    again.extend([Box::new(scale(0.5)) as Box<dyn Forward>]);
    assert_eq!(again.forward(&x).unwrap().item().unwrap(), 4.0);

    assert!(model.insert(4, Relu).unwrap_err().to_string().contains("layer 4 of 3"));
    assert!(model.remove(3).unwrap_err().to_string().contains("layer 3 of 3"));
    for bad in ["", "a.b", "0", "1", "7"] {
        assert!(Sequential::new().add(Relu).add_named(bad, Relu).is_err(), "{bad:?}");
    }
    // The names of an error are those of the layers.
    let inner = Sequential::new().add(Relu).add_named("head", Failing).unwrap();
    let e = Sequential::new().add_named("body", inner).unwrap().forward(&x).unwrap_err();
    assert_eq!(e.layer().unwrap().path, "body.head");
}

#[derive(Module)]
struct Failing;

impl Forward for Failing {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        x.index(7)
    }
}
