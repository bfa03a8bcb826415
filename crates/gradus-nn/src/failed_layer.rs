//! The path of the failed layer in the error of a forward pass.
//!
//! The innermost layer that fails records itself in the error. As the error propagates, each enclosing module looks up
//! its own name for the recorded layer and prepends that name to the path. A module that has no unique name for the
//! layer records itself instead, so that the error always names the innermost layer known for certain. A forward pass
//! that succeeds pays nothing for this.

use gradus_tensor::{Error, FailedLayer};

/// The address and type name of a module. The address alone is not enough, because a module and its first field share
/// it.
pub(crate) type Place = (usize, &'static str);

/// The result of looking for a place inside a module.
pub(crate) enum Found {
    None,
    /// The path of the module at that place.
    One(String),
    Several,
}

/// Extends the layer path of an error that leaves the forward pass of the module at `here`. `find` looks up a place
/// inside that module.
#[cold]
pub(crate) fn on_the_way_out(here: Place, e: Error, find: impl FnOnce(Place) -> Found) -> Error {
    match e.layer_place() {
        None => itself(e, here),
        Some(inner) if inner == here => e,
        Some(inner) => match find(inner) {
            Found::One(name) => inside(&name, e, here),
            // Several layers without fields may share an address, and a field that is not part of the model has no
            // name.
            Found::Several | Found::None => itself(e, here),
        },
    }
}

/// Records the module at `here` as the failed layer.
fn itself(e: Error, here: Place) -> Error {
    e.in_layer(FailedLayer { path: String::new(), kind: kind_of(here.1).to_owned() }, here)
}

/// The name of a type without its path and its parameters.
pub(crate) fn kind_of(type_name: &str) -> &str {
    type_name.split('<').next().and_then(|path| path.rsplit("::").next()).unwrap_or(type_name)
}

/// Extends the layer path of an error that leaves the layer at `layer`, which is called `name` in the module at `here`.
#[cold]
pub(crate) fn out_of(here: Place, layer: Place, name: &str, e: Error) -> Error {
    if e.layer_place() == Some(layer) { inside(name, e, here) } else { e }
}

/// Prepends `name` to the path of the recorded layer and records `place`, the module in which the path now starts.
fn inside(name: &str, e: Error, place: Place) -> Error {
    let Some(FailedLayer { path, kind }) = e.layer().cloned() else { return e };
    let dot = if name.is_empty() || path.is_empty() { "" } else { "." };
    e.in_layer(FailedLayer { path: format!("{name}{dot}{path}"), kind }, place)
}
