//! What a tool answers: a page, data, and the next questions.

use serde_json::Value;

use super::next::Next;
use crate::exit::Failure;
use crate::page::Page;
use crate::render::screen::Screen;

/// A page for an answer: no colours, and lines of this width.
const SCREEN: Screen = Screen { columns: Some(100), unicode: true, colour: false };

/// What a tool answers.
pub struct ToolAnswer {
    /// The page.
    pub page: String,
    /// The data.
    pub data: Value,
    /// The next questions.
    pub next: Vec<Next>,
}

impl ToolAnswer {
    /// An answer with its page.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn new(answer: &impl Page, next: Vec<Next>) -> Result<Self, Failure> {
        let data = serde_json::to_value(answer).map_err(|error| {
            Failure::unreachable(format!("the answer is not JSON: {error}; this is an error of memctl"))
        })?;
        Ok(Self { page: answer.page(&SCREEN), data, next })
    }
}
