//! Generates the implementation of `Tensors`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Member, Result};

use crate::crate_path;

pub(crate) fn tensors(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "only a struct can derive Tensors: implement it by hand"));
    };
    if !input.generics.params.is_empty() {
        let m =
            "a generic type cannot derive Tensors: implement it by hand, or derive it for a type without parameters";
        return Err(Error::new_spanned(&input.generics, m));
    }
    let root = crate_path::root("graph");
    let ident = &input.ident;
    let types: Vec<_> = data.fields.iter().map(|f| &f.ty).collect();
    let members: Vec<Member> = data.fields.members().collect();
    Ok(quote! {
        #[automatically_derived]
        impl #root::Tensors for #ident {
            fn flatten<'t>(
                &'t self,
                tensors: &mut ::std::vec::Vec<&'t #root::derive::Tensor>,
                form: &mut ::std::vec::Vec<usize>,
            ) {
                #(<#types as #root::Tensors>::flatten(&self.#members, tensors, form);)*
            }

            fn unflatten(
                tensors: &mut impl ::core::iter::Iterator<Item = #root::derive::Tensor>,
                form: &mut impl ::core::iter::Iterator<Item = usize>,
            ) -> ::core::option::Option<Self> {
                ::core::option::Option::Some(#ident {
                    #(#members: <#types as #root::Tensors>::unflatten(tensors, form)?,)*
                })
            }
        }
    })
}
