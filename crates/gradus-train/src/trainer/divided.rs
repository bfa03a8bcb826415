//! The state of a run whose parameters are divided, as far as a rank holds it.

use std::collections::{BTreeMap, BTreeSet};

use gradus_nn::{Module, Optimizer, StateDict, Strict};
use gradus_tensor::{Error, Here, Result, Tensor, no_grad};

use crate::Checkpoint;
use crate::checkpoint::{Cut, Stored, Wanted, listed};
use crate::ranks::Piece;

const OP: &str = "checkpoint";

/// The pieces of a rank, by the names of their parameters.
type Pieces<'a> = BTreeMap<&'a str, &'a Piece>;

fn by_name(pieces: &[Piece]) -> Pieces<'_> {
    pieces.iter().map(|piece| (piece.name.as_str(), piece)).collect()
}

/// The piece of the parameter to which an entry of the optimiser's state belongs.
fn of_entry<'a>(pieces: &Pieces<'a>, key: &str) -> Option<&'a Piece> {
    pieces.get(key.rsplit_once('.')?.0).copied()
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Copies what a rank holds: its pieces as vectors, the state of their optimiser, and all that is not divided.
#[track_caller]
pub(super) fn own_state<M: Module + ?Sized>(
    pieces: &[Piece],
    model: &M,
    optimizer: &dyn Optimizer,
) -> Result<Checkpoint> {
    let mut own = Checkpoint { optimizer: optimizer.state_dict()?, ..Checkpoint::default() };
    no_grad(|| {
        let named = by_name(pieces);
        for (name, parameter) in model.named_parameters() {
            let values = named.get(name.as_str()).map_or(&parameter, |piece| &piece.part).values().copy()?;
            own.model.insert(name, values);
        }
        for (name, buffer) in model.named_buffers() {
            own.model.insert(name, buffer.tensor().copy()?);
        }
        Ok(())
    })
    .here()?;
    own.random = model.named_random_states().into_iter().map(|(name, state)| (name, state.get())).collect();
    Ok(own)
}

/// What a rank writes of its state. What all ranks have alike is written by the `first`.
#[track_caller]
pub(super) fn part(own: &Checkpoint, pieces: &[Piece], first: bool) -> Result<Checkpoint> {
    let pieces = by_name(pieces);
    let mut part = Checkpoint { model: StateDict::new(), optimizer: StateDict::new(), ..own.clone() };
    if !first {
        (part.random, part.states) = Default::default();
    }
    // A tensor without elements is in the file of the first rank.
    let holds = |piece: &Piece| piece.part.numel() > 0 || (numel(&piece.shape) == 0 && first);
    let cuts = &mut part.cuts;
    let mut put = |state: &mut StateDict, (what, name): (&str, &str), tensor: &Tensor, piece: &Piece| {
        if tensor.numel() == numel(&piece.shape) {
            state.insert(name, tensor.reshape(&piece.shape)?);
        } else {
            state.insert(name, tensor.clone());
            cuts.insert(format!("{what}.{name}"), Cut { start: piece.start, shape: piece.shape.clone() });
        }
        Ok(())
    };
    for (name, tensor) in own.model.iter() {
        match pieces.get(name) {
            Some(piece) if holds(piece) => put(&mut part.model, ("model", name), tensor, piece)?,
            None if first => part.model.insert(name, tensor.clone()),
            _ => {}
        }
    }
    for (key, tensor) in own.optimizer.iter() {
        match of_entry(&pieces, key) {
            Some(piece) if tensor.shape() == piece.part.values().shape() && holds(piece) => {
                put(&mut part.optimizer, ("optimizer", key), tensor, piece)?;
            }
            // It belongs to all elements alike.
            Some(piece) if holds(piece) && piece.start == 0 => part.optimizer.insert(key, tensor.clone()),
            None if first => part.optimizer.insert(key, tensor.clone()),
            _ => {}
        }
    }
    own.model.iter_metadata().for_each(|(key, text)| part.model.set_metadata(key, text));
    own.optimizer.iter_metadata().for_each(|(key, text)| part.optimizer.set_metadata(key, text));
    Ok(part)
}

/// Chooses what is read of a tensor by its name and its shape.
pub(super) type Choice = Box<dyn Fn(&str, &[usize]) -> Wanted + Send>;

/// What a rank is to read of a checkpoint, so that it is as [`own_state`] gives it.
///
/// # Errors
/// Also fails if the model has other parameters or buffers than the checkpoint; the error names them.
#[track_caller]
pub(super) fn wanted<M: Module + ?Sized>(stored: &Stored, pieces: &[Piece], model: &M) -> Result<Choice> {
    let named = by_name(pieces);
    let shape_of = |name: &str, shape: &[usize]| named.get(name).map_or(shape, |piece| &piece.shape).to_vec();
    let parameters = model.named_parameters();
    let mut shapes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    shapes.extend(parameters.iter().map(|(name, p)| (name.clone(), shape_of(name, p.shape()))));
    shapes.extend(model.named_buffers().into_iter().map(|(name, buffer)| (name, buffer.tensor().shape().to_vec())));
    let (mut wrong, mut found) = (vec![], BTreeSet::new());
    for (names, shape) in stored.tensors() {
        let names: Vec<&str> = names.into_iter().filter_map(|name| name.strip_prefix("model.")).collect();
        let known: Vec<&str> = names.iter().copied().filter(|name| shapes.contains_key(*name)).collect();
        if let (Some(name), true) = (names.first(), known.is_empty()) {
            wrong.push(format!("the model has no {name}"));
        }
        for name in known {
            found.insert(name.to_owned());
            if shapes[name] != shape {
                wrong.push(format!("{name} has the shape {shape:?} there and {:?} in the model", shapes[name]));
            }
        }
    }
    let missing = shapes.keys().filter(|name| !found.contains(*name));
    wrong.extend(missing.map(|name| format!("the checkpoint has no {name}")));
    if let Some(m) = listed(wrong.into_iter()) {
        return Err(Error::argument(OP, m).help("make the model in the same way as the one that was saved"));
    }
    let elements = |piece: &Piece| Wanted::Elements(piece.start..piece.start + piece.part.numel());
    let pieces = pieces.iter().map(|piece| (piece.name.clone(), (piece.shape.clone(), elements(piece))));
    let pieces: BTreeMap<String, (Vec<usize>, Wanted)> = pieces.collect();
    Ok(Box::new(move |name, shape| match name.split_once('.') {
        Some(("model", name)) if !shapes.contains_key(name) => Wanted::Nothing,
        Some(("model", name)) => pieces.get(name).map_or(Wanted::Whole, |(_, elements)| elements.clone()),
        Some(("optimizer", key)) => match key.rsplit_once('.').and_then(|(name, _)| pieces.get(name)) {
            Some((whole, elements)) if whole == shape => elements.clone(),
            _ => Wanted::Whole,
        },
        _ => Wanted::Whole,
    }))
}

/// Restores what a rank holds. After an error, the state is that of neither.
#[track_caller]
pub(super) fn restore<M: Module + ?Sized>(
    own: &Checkpoint,
    pieces: &[Piece],
    model: &M,
    optimizer: &mut dyn Optimizer,
) -> Result<()> {
    let states = model.named_random_states();
    own.check_random(&states)?;
    let pieces = by_name(pieces);
    let of = |name: &str| own.model.get(name).ok_or_else(|| Error::argument(OP, format!("there is no {name}")));
    for (name, parameter) in model.named_parameters() {
        pieces.get(name.as_str()).map_or(&parameter, |piece| &piece.part).set(of(&name)?).here()?;
    }
    for (name, buffer) in model.named_buffers() {
        buffer.set(of(&name)?).here()?;
    }
    optimizer.load_state_dict(&own.optimizer, Strict::Yes)?;
    for (name, state) in states {
        if let Some(generator) = own.random.get(&name) {
            state.set(generator.clone());
        }
    }
    Ok(())
}
