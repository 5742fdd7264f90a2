//! Pieces of which every page and every data format is made: text, times, tables, plots, trees, JSON, CSV.
//!
//! Guarantees: pure; what to show comes in as parameters, text goes out. Everything that came over
//! the wire passes [`text::safe`] (or its counterpart in [`json`] and [`csv`]) before it is shown.

pub mod csv;
pub mod folded;
pub mod json;
pub mod plot;
pub mod screen;
pub mod table;
pub mod text;
pub mod time;
pub mod tree;
