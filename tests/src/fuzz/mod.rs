//! What an enemy may send: one function a target, run by the test `fuzz` on every commit and by libFuzzer for longer.
//!
//! Guarantees: a target takes any bytes; it panics where memctl breaks a promise, and says otherwise in a few words what
//! became of the input, by which the driver tells new behaviour from known.
//! Refuses: to hold its breath. Inputs are bounded by [`INPUT_BYTES_MAX`], what a target may allocate by the test.

mod driver;
mod places;
mod ports;
mod targets;

pub use driver::{Crash, corpus, drive, mutations};

/// The longest input that is made.
pub const INPUT_BYTES_MAX: usize = 16 << 10;

/// A door at which bytes from elsewhere come in.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in `tests/fuzz/corpus`.
    pub name: &'static str,
    /// Tries an input and says what became of it.
    pub run: fn(&[u8]) -> String,
    /// Inputs of a test run: a few seconds of an unoptimised build.
    pub inputs: u64,
}

/// All of them.
pub const TARGETS: [Target; 11] = [
    Target { name: "chunk", run: targets::chunk, inputs: 200_000 },
    Target { name: "condition", run: targets::condition, inputs: 200_000 },
    Target { name: "config", run: places::config, inputs: 20_000 },
    Target { name: "http", run: ports::http, inputs: 3_000 },
    Target { name: "http2", run: ports::http2, inputs: 3_000 },
    Target { name: "item", run: targets::item, inputs: 200_000 },
    Target { name: "note", run: places::note, inputs: 100_000 },
    Target { name: "region", run: places::region, inputs: 2_000 },
    Target { name: "rules", run: targets::rules, inputs: 20_000 },
    Target { name: "snapshot", run: targets::snapshot, inputs: 100_000 },
    Target { name: "spool", run: places::spool, inputs: 2_000 },
];

/// The target of a name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no fuzz target {name}"))
}
