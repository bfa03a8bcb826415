//! The path of the layer in the error of a forward pass.
//!
//! The innermost layer that failed records itself in the error. On the error's way out, each module around it looks up the
//! name that it has for the recorded layer, and prepends it to the path. A module that has no unique name for it records
//! itself instead, so that the error names the innermost layer that is known for certain. A pass that succeeds costs
//! nothing.

use gradus_tensor::{Error, FailedLayer};

/// The address and the type of a module. The address alone is not enough: a module and its first field share it.
pub(crate) type Place = (usize, &'static str);

/// Which modules inside another one have a given place.
pub(crate) enum Found {
    None,
    /// The path, which all of them share.
    One(String),
    Several,
}

/// An error on its way out of the forward pass of the module at `here`, in which `find` looks for others.
#[cold]
pub(crate) fn on_the_way_out(here: Place, e: Error, find: impl FnOnce(Place) -> Found) -> Error {
    match e.layer_place() {
        None => itself(e, here),
        Some(inner) if inner == here => e,
        Some(inner) => match find(inner) {
            Found::One(name) => inside(&name, e, here),
            // Layers without fields may share a place, and a field that is not part of the model has no name.
            Found::Several | Found::None => itself(e, here),
        },
    }
}

/// Records the module at `here` as the failed layer.
fn itself(e: Error, here: Place) -> Error {
    let kind = here.1.split('<').next().and_then(|path| path.rsplit("::").next()).unwrap_or(here.1);
    e.in_layer(FailedLayer { path: String::new(), kind: kind.to_owned() }, here)
}

/// An error on its way out of the layer at `layer`, which has this name in the module at `here`.
#[cold]
pub(crate) fn out_of(here: Place, layer: Place, name: &str, e: Error) -> Error {
    if e.layer_place() == Some(layer) { inside(name, e, here) } else { e }
}

/// Prepends `name`, the name in the module at `place`, to the path of the recorded layer.
fn inside(name: &str, e: Error, place: Place) -> Error {
    let Some(FailedLayer { path, kind }) = e.layer().cloned() else { return e };
    let dot = if name.is_empty() || path.is_empty() { "" } else { "." };
    e.in_layer(FailedLayer { path: format!("{name}{dot}{path}"), kind }, place)
}
