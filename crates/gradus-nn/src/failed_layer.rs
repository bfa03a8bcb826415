//! The path of the layer in the error of a forward pass.
//!
//! The innermost layer that failed notes itself in the error, and each module around it, on the error's way out, looks up the
//! name that it has for what the error speaks of. One that has no single name for that speaks of itself instead: then the
//! error names the innermost layer that is known for certain. Nothing is done where nothing fails.

use gradus_tensor::{Error, FailedLayer};

/// Where a module lies in memory, and its type: a module and its first field lie at one place.
pub(crate) type Place = (usize, &'static str);

/// The modules inside of another that lie at one place.
pub(crate) enum Found {
    None,
    /// By the path that all of them have.
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
            // Layers without fields may share a place, and a field that is no part of the model has no name.
            Found::Several | Found::None => itself(e, here),
        },
    }
}

/// The error is that of the module at `here`.
fn itself(e: Error, here: Place) -> Error {
    let kind = here.1.split('<').next().and_then(|path| path.rsplit("::").next()).unwrap_or(here.1);
    e.in_layer(FailedLayer { path: String::new(), kind: kind.to_owned() }, here)
}

/// An error on its way out of the layer at `layer`, which has this name in the module at `here`.
#[cold]
pub(crate) fn out_of(here: Place, layer: Place, name: &str, e: Error) -> Error {
    if e.layer_place() == Some(layer) { inside(name, e, here) } else { e }
}

/// The layer that the error speaks of is at or below `name` in the module at `place`.
fn inside(name: &str, e: Error, place: Place) -> Error {
    let Some(FailedLayer { path, kind }) = e.layer().cloned() else { return e };
    let dot = if name.is_empty() || path.is_empty() { "" } else { "." };
    e.in_layer(FailedLayer { path: format!("{name}{dot}{path}"), kind }, place)
}
