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

/// The counters that the training loop of a rank read: `rankN.json`.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn truth(name: &str, rank: usize) -> Value {
    let path = folder(name).join(format!("rank{rank}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a truth is JSON")
}

/// Writes the recording without its annotations into a folder below `place`, one file per rank; returns that folder.
///
/// The list of annotations keeps its bytes and loses its name: the key is replaced by an unknown one of the same
/// length.
///
/// # Panics
/// When a recording cannot be read or written, or has no annotations.
#[must_use]
pub fn without_annotations(name: &str, place: &Path) -> PathBuf {
    const KEY: &[u8] = b"external_annotations";
    let to = place.join(name);
    std::fs::create_dir_all(&to).expect("a folder can be made");
    for rank in 0..4 {
        let packed = std::fs::read(folder(name).join(format!("rank{rank}.pickle.zst"))).expect("a recording");
        let mut pickle = zstd::decode_all(&packed[..]).expect("zstd");
        let at: Vec<usize> = (0..pickle.len() - KEY.len()).filter(|&at| pickle[at..].starts_with(KEY)).collect();
        assert_eq!(at.len(), 1, "{name}: one list of annotations");
        pickle[at[0]] = b'X';
        std::fs::write(to.join(format!("rank{rank}.pickle")), pickle).expect("a file can be written");
    }
    to
}
