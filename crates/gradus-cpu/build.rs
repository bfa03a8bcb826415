//! Sets the cfg `unoptimized` if the crate is compiled without optimisation. `debug_assertions` cannot be used for
//! this, because it is a separate setting of the profile.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(unoptimized)");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo::rustc-cfg=unoptimized");
    }
}
