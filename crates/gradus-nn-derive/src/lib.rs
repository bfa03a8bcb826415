//! The derive macro of `gradus_nn::Module`; its documentation is on the trait.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
#![forbid(unsafe_code)]

mod attributes;
mod crate_path;
mod expand;

use proc_macro::TokenStream;

/// Implements `Module` (and `Display`, which prints the tree of modules) for a struct or an enum.
///
/// Every field is visited under its name; its type implements `Module`, as layers, parameters, buffers, containers and
/// plain values (numbers, strings, ..) do.
///
/// * A struct with named fields: `conv1.weight`. An unnamed field has its number for a name, `0.weight`; the only unnamed
///   field of a struct or variant adds no name at all, as `Box` and `Option` add none.
/// * An enum visits the fields of its current variant, without the name of the variant: a value has one variant at a
///   time, so names cannot clash.
///
/// On a field: `#[module(skip)]` leaves it out (for types of other crates), `#[module(rename = "running")]` names it.
/// On the type: `#[module(no_display)]` leaves out `Display`, `#[module(crate = path)]` says where `gradus_nn` is. Without
/// it the manifest of the crate that is compiled decides: `::gradus_nn` if it depends on `gradus-nn`, `::gradus::nn` if it
/// depends on the facade `gradus` only; renamed dependencies are followed. Only that
/// manifest is read: a rename (`package = ".."`) in the manifest of the workspace, inherited with `workspace = true`, is
/// not seen, and needs `#[module(crate = path)]`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::module(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}
