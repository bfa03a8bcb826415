//! What goes wrong with drivers, devices, caches and memory is an error that says what to do, and what was there before is
//! still there. Tested over the library of `gradus-ptx`, which stands in for the driver and fails on request.

mod blas;
mod cache;
mod device;
mod graphs;
mod library;
mod memory;
mod staging;
mod stand_in;
mod together;
