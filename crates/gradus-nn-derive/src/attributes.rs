//! Parses `#[module(..)]` on types and fields.

use syn::{Attribute, LitStr, Path, Result};

/// The options of `#[module(..)]` on a type.
#[derive(Default)]
pub(crate) struct TypeOptions {
    pub(crate) root: Option<Path>,
    pub(crate) no_display: bool,
}

/// The options of `#[module(..)]` on a field.
#[derive(Default)]
pub(crate) struct FieldOptions {
    pub(crate) skip: bool,
    pub(crate) rename: Option<LitStr>,
}

pub(crate) fn of_type(attributes: &[Attribute]) -> Result<TypeOptions> {
    let mut options = TypeOptions::default();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("crate") {
                options.root = Some(meta.value()?.parse()?);
            } else if meta.path.is_ident("no_display") {
                options.no_display = true;
            } else {
                return Err(meta.error("on a type, #[module(..)] takes `crate = path` or `no_display`"));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

pub(crate) fn of_field(attributes: &[Attribute]) -> Result<FieldOptions> {
    let mut options = FieldOptions::default();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("skip") {
                options.skip = true;
            } else if meta.path.is_ident("rename") {
                let name: LitStr = meta.value()?.parse()?;
                if name.value().is_empty() || name.value().contains('.') {
                    return Err(syn::Error::new(name.span(), "a name is not empty and has no dot in it"));
                }
                options.rename = Some(name);
            } else {
                return Err(meta.error("on a field, #[module(..)] takes `skip` or `rename = \"name\"`"));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

/// Rejects `#[module(..)]` where it has no meaning.
pub(crate) fn refuse(attributes: &[Attribute], place: &str) -> Result<()> {
    match attributes.iter().find(|a| a.path().is_ident("module")) {
        Some(a) => Err(syn::Error::new_spanned(a, format!("#[module(..)] has no meaning on {place}"))),
        None => Ok(()),
    }
}
