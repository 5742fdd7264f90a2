//! How answers are written: JSON, CSV, folded stacks, and the texts and times in them.
//!
//! Guarantees: pure; everything that came from elsewhere passes [`text::safe`] (or its counterpart in [`json`] and
//! [`csv`]) before it is written.

pub mod csv;
pub mod folded;
pub mod json;
pub mod text;
pub mod time;
