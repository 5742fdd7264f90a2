//! Pieces of which every page is made: the screen, text in columns, tables, plots, trees.
//!
//! Guarantees: pure; what to show comes in as parameters, text goes out. Everything that came over
//! the wire passes [`text::safe`] before it is shown.

pub mod plot;
pub mod screen;
pub mod table;
pub mod text;
pub mod tree;
