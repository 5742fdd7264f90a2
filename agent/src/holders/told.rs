//! What a trainer says to an ask for holders: JSON, written by the Python package.
//!
//! Guarantees: whatever bytes come, an answer of bounded size or one sentence that says what is wrong with them. Texts that
//! are too long are cut. Refuses: numbers that contradict each other.

use memctl_proto::convert::holders::checked;
use memctl_proto::v1;
use serde::Deserialize;

use crate::source_paths::SourcePaths;

/// Bytes of a text that are kept.
const TEXT_BYTES_MAX: usize = 1_000;
/// Sentences of what was not looked at that are kept.
const NOT_LOOKED_AT_MAX: usize = 32;

/// The version of the answer that is read.
const VERSION: u32 = 1;

#[derive(Deserialize)]
struct Told {
    version: u32,
    asked_blocks: u32,
    found_blocks: u32,
    objects: u64,
    took_ms: f64,
    complete: bool,
    not_looked_at: Vec<String>,
    holders: Vec<Holder>,
}

#[derive(Deserialize)]
struct Holder {
    kind: String,
    sentence: String,
    chain: Vec<String>,
    blocks: u32,
    bytes: u64,
    tensors: Option<u64>,
}

/// In place of an answer: what went wrong in the trainer.
#[derive(Deserialize)]
struct Fault {
    fault: String,
}

/// Reads an answer to an ask about so many blocks. `paths` decides what may leave the host of the paths in it.
///
/// # Errors
/// One sentence.
pub(super) fn read(json: &[u8], asked_blocks: usize, paths: &SourcePaths) -> Result<v1::HoldersFound, String> {
    if json.is_empty() {
        return Err("the trainer's answer was longer than 64 KiB".to_owned());
    }
    if let Ok(Fault { fault }) = serde_json::from_slice(json) {
        return Err(format!("the search failed in the trainer: {}", cut(paths.text(&fault).into_owned())));
    }
    let told: Told =
        serde_json::from_slice(json).map_err(|error| format!("the trainer's answer cannot be read: {error}"))?;
    if told.version != VERSION {
        return Err(format!("the trainer's answer is of version {}, and this agent reads {VERSION}", told.version));
    }
    if told.asked_blocks as usize != asked_blocks {
        return Err(format!(
            "the trainer's answer is about {} blocks, and it was asked about {asked_blocks}",
            told.asked_blocks
        ));
    }
    let text = |text: String| cut(paths.text(&text).into_owned());
    let holder = |holder: Holder| {
        let Holder { kind, sentence, chain, blocks, bytes, tensors } = holder;
        let chain = chain.into_iter().map(text).collect();
        v1::TensorHolder { kind, sentence: text(sentence), chain, blocks, bytes, tensors }
    };
    let found = v1::HoldersFound {
        live_blocks: 0,
        live_bytes: 0,
        asked_blocks: told.asked_blocks,
        found_blocks: told.found_blocks,
        objects: told.objects,
        // The cast saturates, and makes 0 of what is no number.
        took_us: (told.took_ms * 1_000.0) as u64,
        complete: told.complete,
        not_looked_at: told.not_looked_at.into_iter().take(NOT_LOOKED_AT_MAX).map(text).collect(),
        holders: told.holders.into_iter().map(holder).collect(),
        epoch: None,
    };
    checked(found).map_err(|error| format!("the trainer's answer is refused: {error}"))
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer() -> Value {
        json!({
            "version": 1, "asked_blocks": 4, "found_blocks": 3, "objects": 1_000_000, "took_ms": 81.25, "complete": false,
            "not_looked_at": ["The budget of 80 ms ended the search."],
            "holders": [{
                "kind": "list", "sentence": "list `KEPT` of module `__main__`, 1,440 tensors",
                "chain": ["module `__main__`", "global `KEPT`", "list, 1,440 items", "Tensor"],
                "blocks": 3, "bytes": 3_145_728, "tensors": 1_440
            }]
        })
    }

    fn of(value: &Value) -> Result<v1::HoldersFound, String> {
        read(value.to_string().as_bytes(), 4, &SourcePaths::default())
    }

    fn with(field: &str, value: Value) -> Result<v1::HoldersFound, String> {
        let mut changed = answer();
        changed[field] = value;
        of(&changed)
    }

    #[test]
    fn an_answer_is_read() {
        let found = of(&answer()).unwrap();
        assert_eq!((found.asked_blocks, found.found_blocks, found.objects, found.took_us), (4, 3, 1_000_000, 81_250));
        assert_eq!(found.holders[0].chain.len(), 4);
        assert_eq!((found.holders[0].tensors, found.complete), (Some(1_440), false));
        let none = with("holders", json!([])).unwrap();
        assert!(none.holders.is_empty());
        assert!(with("unknown", json!({"later": "versions"})).is_ok());
    }

    #[test]
    fn whatever_else_comes_is_a_sentence() {
        let wrong = |json: &[u8]| read(json, 4, &SourcePaths::default()).unwrap_err();
        assert!(wrong(b"").contains("64 KiB"));
        for bytes in [&b"{"[..], b"null", b"[1]", b"\xff\xfe", b"{\"version\":1}"] {
            assert!(wrong(bytes).contains("cannot be read"), "{bytes:?}");
        }
        let deep = "[".repeat(60_000);
        assert!(wrong(deep.as_bytes()).contains("cannot be read"));
        assert!(with("version", json!(2)).unwrap_err().contains("version 2"));
        assert!(with("asked_blocks", json!(5)).unwrap_err().contains("about 5 blocks"));
        assert!(with("found_blocks", json!(5)).unwrap_err().contains("refused"));
        assert!(with("found_blocks", json!(-1)).unwrap_err().contains("cannot be read"));
        let holders = vec![answer()["holders"][0].clone(); 9];
        assert!(with("holders", json!(holders)).unwrap_err().contains("holders"));
        let fault = of(&json!({"fault": "TypeError: not JSON"})).unwrap_err();
        assert_eq!(fault, "the search failed in the trainer: TypeError: not JSON");
    }

    #[test]
    fn times_that_are_none_and_long_texts_do_no_harm() {
        assert_eq!(with("took_ms", json!(-5.0)).unwrap().took_us, 0);
        assert_eq!(with("took_ms", json!(1e300)).unwrap().took_us, u64::MAX);
        let found = with("not_looked_at", json!(vec!["é".repeat(2_000); 9])).unwrap();
        assert!(found.not_looked_at.iter().all(|text| text.len() <= TEXT_BYTES_MAX));
    }
}
