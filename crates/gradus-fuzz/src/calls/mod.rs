//! Random calls, and the properties that each must satisfy.

mod draw;
pub mod run;
pub mod table;

pub use draw::Draw;
