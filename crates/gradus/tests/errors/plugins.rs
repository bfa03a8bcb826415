//! Libraries that are no plug-ins. The table of a library is compared with that of the program before anything of it is
//! called; [your backend](../your-backend.md) says how to make one.

use crate::page::page;
use gradus::prelude::*;

page! {
    "Plug-ins":
    there_is_no_such_library,
    the_file_is_no_library,
}

/// The path leads nowhere. A path is taken as it is: no other folder is searched.
///
/// Mend: pass the path of the library that `cargo build` made, such as `target/release/libtiny_plugin.so`.
fn there_is_no_such_library(_: &Device) -> Result<Error> {
    // SAFETY: there is no such file, so nothing is loaded.
    let error = unsafe { Device::load_plugin("target/release/libmissing.so") }.unwrap_err();

    Ok(error)
}

/// The file is no shared library, has no table of Gradus, or was built for another version; the message says which, and
/// `Refusal` is its source, to match on.
///
/// Mend: build the plug-in as a `cdylib` with the version of Gradus that the program uses.
fn the_file_is_no_library(_: &Device) -> Result<Error> {
    std::fs::write("notes.so", "this is text").unwrap();
    // SAFETY: a file of text has no code that could run.
    let error = unsafe { Device::load_plugin("notes.so") }.unwrap_err();

    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref(), Some(&gradus::plugin::Refusal::NotALibrary));
    Ok(error)
}
