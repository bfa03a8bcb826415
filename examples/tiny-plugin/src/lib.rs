//! [`TinyBackend`](tiny_backend::TinyBackend) as a plug-in: `Device::load_plugin("libtiny_plugin.so")`.

gradus_backend::export_plugin!(tiny_backend::TinyBackend::new);
