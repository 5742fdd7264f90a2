//! Asks for what holds some blocks: taken at the end of a step, answered with JSON.
//!
//! Guarantees: neither function waits, and an ask is given once. Refuses: to read the answer; whoever hosts the session does.

use memctl_agent::live::{self, Asked};
use pyo3::prelude::*;

/// An ask's number, addresses and bytes of blocks, and the budget in milliseconds.
type Ask = (u64, Vec<(u64, u64)>, u32);

/// What is asked, if something is.
#[pyfunction]
pub fn holders_asked() -> Option<Ask> {
    let Asked { ask, blocks, budget_ms } = live::current()?.holders_asked()?;
    Some((ask, blocks, budget_ms))
}

/// Answers an ask; whether there was room for the answer.
#[pyfunction]
pub fn holders_answer(ask: u64, answer_json: &str) -> bool {
    live::current().is_some_and(|live| live.holders_answer(ask, answer_json))
}
