//! Generates the implementation of `Sample`, and the struct of a batch.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Member, Result};

use crate::crate_path;

pub(crate) fn sample(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "only a struct can derive Sample: implement it by hand"));
    };
    if !input.generics.params.is_empty() {
        let m = "a generic type cannot derive Sample: implement it by hand, or derive it for a type without parameters";
        return Err(Error::new_spanned(&input.generics, m));
    }
    if data.fields.is_empty() {
        return Err(Error::new_spanned(&input.ident, "a sample has at least one field"));
    }
    let root = crate_path::root("data");
    let (ident, visibility) = (&input.ident, &input.vis);
    let batch = format_ident!("{ident}Batch");
    let types: Vec<_> = data.fields.iter().map(|f| &f.ty).collect();
    let members: Vec<Member> = data.fields.members().collect();
    let lists: Vec<_> = (0..types.len()).map(|i| format_ident!("list_{i}")).collect();
    let parts: Vec<_> = (0..types.len()).map(|i| format_ident!("part_{i}")).collect();
    let notes = members.iter().map(|member| match member {
        Member::Named(name) => format!("in the field {name} of {ident}"),
        Member::Unnamed(index) => format!("in the field {} of {ident}", index.index),
    });
    let declared = data.fields.iter().map(|f| {
        let (visibility, name, ty) = (&f.vis, &f.ident, &f.ty);
        let name = name.as_ref().map(|name| quote!(#name:));
        quote!(#visibility #name <#ty as #root::Sample>::Batch)
    });
    let body = match &data.fields {
        Fields::Named(_) => quote!({ #(#declared),* }),
        _ => quote!(( #(#declared),* );),
    };
    let doc = format!("A batch of [`{ident}`]: every field holds those of all samples.");
    Ok(quote! {
        #[doc = #doc]
        #[allow(missing_docs, dead_code)]
        #visibility struct #batch #body

        #[automatically_derived]
        impl #root::Sample for #ident {
            type Batch = #batch;

            #[track_caller]
            fn collate(
                samples: ::std::vec::Vec<Self>,
                device: &#root::derive::Device,
            ) -> ::core::result::Result<Self::Batch, #root::derive::Error> {
                #(let mut #lists = ::std::vec::Vec::with_capacity(samples.len());)*
                for sample in samples {
                    let #ident { #(#members: #parts),* } = sample;
                    #(#lists.push(#parts);)*
                }
                ::core::result::Result::Ok(#batch {
                    #(#members: <#types as #root::Sample>::collate(#lists, device).map_err(|e| e.note(#notes))?,)*
                })
            }

            fn tensors(
                batch: &Self::Batch,
            ) -> ::core::option::Option<::std::vec::Vec<&#root::derive::Tensor>> {
                let mut all = ::std::vec::Vec::new();
                #(all.extend(<#types as #root::Sample>::tensors(&batch.#members)?);)*
                ::core::option::Option::Some(all)
            }
        }
    })
}
