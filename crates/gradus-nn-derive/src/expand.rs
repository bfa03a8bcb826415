//! Generates the implementations of `Module` and `Display`.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Generics, Ident, Index, Member, Result, Type, WhereClause};

use crate::{attributes, crate_path};

/// A field that is visited.
struct Field<'a> {
    member: Member,
    name: String,
    ty: &'a Type,
}

/// The fields of a struct or variant.
struct Visited<'a> {
    fields: Vec<Field<'a>>,
    /// Whether there is only one field, and it is unnamed: such a field is visited without a name of its own.
    transparent: bool,
}

pub(crate) fn module(input: &DeriveInput) -> Result<TokenStream> {
    let options = attributes::of_type(&input.attrs)?;
    let root = options.root.map_or_else(|| crate_path::root("nn"), |path| path.into_token_stream());
    let ident = &input.ident;
    let mut types = Vec::new();
    let (shared, exclusive) = match &input.data {
        Data::Struct(data) => {
            let visited = visited(&data.fields)?;
            types.extend(visited.fields.iter().map(|f| f.ty));
            let destructure = pattern(&visited, quote!(Self));
            let [shared, exclusive] = bodies(&visited, &ident.to_string());
            (quote!(let #destructure = self; #shared), quote!(let #destructure = self; #exclusive))
        }
        Data::Enum(data) => {
            let (mut shared, mut exclusive) = (Vec::new(), Vec::new());
            for variant in &data.variants {
                attributes::refuse(&variant.attrs, "a variant: put it on a field")?;
                let visited = visited(&variant.fields)?;
                types.extend(visited.fields.iter().map(|f| f.ty));
                let name = &variant.ident;
                let destructure = pattern(&visited, quote!(Self::#name));
                let [s, e] = bodies(&visited, &format!("{ident}::{name}"));
                shared.push(quote!(#destructure => { #s }));
                exclusive.push(quote!(#destructure => { #e }));
            }
            if data.variants.is_empty() {
                (quote!(match *self {}), quote!(match *self {}))
            } else {
                (quote!(match self { #(#shared)* }), quote!(match self { #(#exclusive)* }))
            }
        }
        Data::Union(data) => {
            let m = "a union cannot be a module: which of its fields is alive is not known";
            return Err(Error::new(data.union_token.span(), m));
        }
    };
    let bounded = bounded(&input.generics, ident, &types, &root);
    let (impl_generics, type_generics, _) = input.generics.split_for_impl();
    let display = (!options.no_display).then(|| {
        quote! {
            #[automatically_derived]
            impl #impl_generics ::core::fmt::Display for #ident #type_generics #bounded {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::fmt::Display::fmt(&#root::Module::tree(self), f)
                }
            }
        }
    });
    Ok(quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #impl_generics #root::Module for #ident #type_generics #bounded {
            fn visit<'m>(&'m self, visitor: &mut #root::Visitor<'m>) {
                #shared
            }
            fn visit_mut<'m>(&'m mut self, visitor: &mut #root::VisitorMut<'m>) {
                #exclusive
            }
        }
        #display
    })
}

/// The fields that are not skipped, with their names.
fn visited(fields: &Fields) -> Result<Visited<'_>> {
    let mut found: Vec<Field<'_>> = Vec::new();
    let mut renamed = false;
    for (i, field) in fields.iter().enumerate() {
        let options = attributes::of_field(&field.attrs)?;
        if options.skip {
            if let Some(name) = options.rename {
                return Err(Error::new(name.span(), "a skipped field has no name"));
            }
            continue;
        }
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(i)),
        };
        let span = options.rename.as_ref().map_or(field.span(), |n| n.span());
        let name = match (&options.rename, &field.ident) {
            (Some(name), _) => name.value(),
            (None, Some(ident)) => ident.to_string().trim_start_matches("r#").to_owned(),
            (None, None) => i.to_string(),
        };
        renamed |= options.rename.is_some();
        if found.iter().any(|f| f.name == name) {
            return Err(Error::new(span, format!("two fields have the name {name:?}")));
        }
        found.push(Field { member, name, ty: &field.ty });
    }
    let transparent = matches!(fields, Fields::Unnamed(f) if f.unnamed.len() == 1) && found.len() == 1 && !renamed;
    Ok(Visited { fields: found, transparent })
}

/// The variable bound to field `i`. Compile errors about it point at `place`.
fn binding(i: usize, place: Span) -> Ident {
    format_ident!("field_{}", i, span = Span::mixed_site().located_at(place))
}

/// A pattern that binds the visited fields, in a form that works for named, unnamed and no fields.
fn pattern(visited: &Visited<'_>, constructor: TokenStream) -> TokenStream {
    let members = visited.fields.iter().map(|f| &f.member);
    let bindings = visited.fields.iter().enumerate().map(|(i, f)| binding(i, f.ty.span()));
    quote!(#constructor { #(#members: #bindings,)* .. })
}

/// The bodies of `visit` and `visit_mut`, which use the variables that [`pattern`] binds.
fn bodies(visited: &Visited<'_>, kind: &str) -> [TokenStream; 2] {
    if let ([field], true) = (&visited.fields[..], visited.transparent) {
        let (f, span) = (binding(0, field.ty.span()), field.ty.span());
        let wrapped = quote_spanned!(span=> visitor.wrapped(#f););
        return [wrapped.clone(), wrapped];
    }
    let children: Vec<TokenStream> = visited
        .fields
        .iter()
        .enumerate()
        .map(|(i, field)| {
            let (f, name) = (binding(i, field.ty.span()), &field.name);
            quote_spanned!(field.ty.span()=> visitor.child(#name, #f);)
        })
        .collect();
    [quote!(visitor.kind(#kind); #(#children)*), quote!(#(#children)*)]
}

/// The where-clause: each field type that depends on a type parameter must be a module.
///
/// The bounds are on the field types and not on the parameters, so that `PhantomData<T>` requires nothing of `T`. A
/// field whose type contains the type itself gets no bound, because the bound would be circular.
fn bounded(generics: &Generics, ident: &Ident, types: &[&Type], root: &TokenStream) -> Option<WhereClause> {
    let mut generics = generics.clone();
    let parameters: Vec<Ident> = generics.type_params().map(|p| p.ident.clone()).collect();
    let clause = generics.make_where_clause();
    for ty in types {
        let tokens = ty.to_token_stream();
        if mentions(tokens.clone(), &parameters) && !mentions(tokens, &[ident.clone(), format_ident!("Self")]) {
            clause.predicates.push(syn::parse_quote!(#ty: #root::Module));
        }
    }
    (!clause.predicates.is_empty()).then(|| clause.clone())
}

fn mentions(tokens: TokenStream, idents: &[Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(i) => idents.contains(&i),
        TokenTree::Group(g) => mentions(g.stream(), idents),
        _ => false,
    })
}
