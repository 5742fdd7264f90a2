//! How answers are written: JSON, CSV, folded stacks, what HTML and Markdown escape, and the texts and times in them.
//!
//! Guarantees: pure; everything that came from elsewhere passes [`text::safe`] (or its counterpart in [`json`], [`csv`],
//! [`html`] and [`markdown`]) before it is written.

pub mod csv;
pub mod folded;
pub mod html;
pub mod id;
pub mod json;
pub mod markdown;
pub mod text;
pub mod time;
