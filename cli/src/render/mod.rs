//! Building blocks of every page: the screen, text in columns, tables, plots, trees.
//!
//! Guarantees: pure functions from parameters to text. Everything that came over the wire passes [`text::safe`] before
//! it is shown.

pub mod plot;
pub mod screen;
pub mod table;
pub mod text;
pub mod tree;
