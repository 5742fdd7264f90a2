//! The formats of answers: JSON, CSV, folded stacks, escaping for HTML and Markdown, and texts and times in them.
//!
//! Guarantees: pure; external text passes [`text::safe`] (or its counterpart in [`json`], [`csv`], [`html`] and
//! [`markdown`]) before it is written.

pub mod csv;
pub mod folded;
pub mod html;
pub mod id;
pub mod json;
pub mod markdown;
pub mod text;
pub mod time;
