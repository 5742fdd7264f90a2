//! The bundled recordings of real 4-GPU training, with the counters that the training loop itself read.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The nine recordings.
pub const NAMES: [&str; 9] = [
    "cnn_cache_saturates",
    "cnn_rank0_cache",
    "gpt_clean",
    "gpt_curriculum",
    "gpt_ema_step_up",
    "gpt_val_graph_leak",
    "gpt_varlen_fragmentation",
    "lstm_hidden_chain",
    "oom_by_fragmentation",
];

/// The folder of a recording.
#[must_use]
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/recordings").join(name)
}

/// What the training loop of a rank read: `rankN.json`.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn truth(name: &str, rank: usize) -> Value {
    let path = folder(name).join(format!("rank{rank}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a truth is JSON")
}
