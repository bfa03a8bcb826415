//! The derive macros of `gradus_nn::Module`, `gradus_data::Sample` and `gradus_graph::Tensors`, which the traits document.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable
//! between releases.
#![forbid(unsafe_code)]

mod attributes;
mod crate_path;
mod expand;
mod sample;
mod tensors;

use proc_macro::TokenStream;

/// Implements `Module` for a struct or an enum, and `Display`, which prints the tree of modules.
///
/// Every field is visited under its name, and its type must implement `Module`. Layers, parameters, buffers, containers
/// and plain values (numbers, strings, ..) do.
///
/// * A struct with named fields gives names such as `conv1.weight`. An unnamed field is named by its number,
///   `0.weight`. If a struct or variant has only one field and it is unnamed, that field adds no name, like `Box` and
///   `Option`.
/// * An enum visits the fields of its current variant, without the variant's name: a value has one variant at a time,
///   so names cannot clash.
///
/// A field with `#[module(skip)]` is not visited. This is meant for types of other crates, which do not implement
/// `Module`. `#[module(rename = "running")]` gives a field another name. On the type, `#[module(no_display)]` omits the
/// `Display` implementation, and `#[module(crate = path)]` sets the path of `gradus_nn`.
///
/// Without `crate = path`, the path follows from the manifest of the crate being compiled: `::gradus_nn` if it depends
/// on `gradus-nn`, or `::gradus::nn` if it depends only on the facade `gradus`. Dependencies renamed in that manifest
/// are recognised. A rename (`package = ".."`) inherited from the workspace's manifest with `workspace = true` is not,
/// and needs `#[module(crate = path)]`.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::module(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// Implements `Sample` for a struct, so that a data loader can batch it. The batch is a struct of the same visibility
/// with the name of the type and `Batch` behind it. It has the same fields, each with the batch of the field's type:
///
/// ```text
/// #[derive(Sample)]                     pub struct ExampleBatch {
/// pub struct Example {                      pub image: Tensor,     // [n, ..]
///     pub image: Tensor,        gives       pub label: Tensor,     // i64 [n]
///     pub label: i64,                       pub name: Vec<String>,
///     pub name: String,                 }
/// }
/// ```
///
/// The type of every field must implement `Sample`. Generic types and enums are refused. The path of `gradus_data` is
/// found as that of `gradus_nn` is for `Module`.
#[proc_macro_derive(Sample)]
pub fn derive_sample(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    sample::sample(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// Implements `Tensors` for a struct, so that a captured step can take or return it. The type of every field must
/// implement `Tensors`. Generic types and enums are refused. The path of `gradus_graph` is found as that of `gradus_nn` is
/// for `Module`.
#[proc_macro_derive(Tensors)]
pub fn derive_tensors(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    tensors::tensors(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}
