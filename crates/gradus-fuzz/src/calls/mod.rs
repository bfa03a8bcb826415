//! Random calls, and what must hold of each.

mod draw;
pub mod run;
pub mod table;

pub use draw::Draw;
