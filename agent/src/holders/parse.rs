//! Parses a trainer's answer to a request for holders. It is JSON that the Python package writes.
//!
//! Guarantees: any bytes give an answer of bounded size or one sentence with the fault. Texts that are too long are
//! cut.
//! Refuses: figures that contradict each other.

use memctl_model::{Collector, Fingerprint, HolderBound, HolderKind, HolderPattern, TensorHolder};
use memctl_proto::convert::holders::{checked, holder_to_wire};
use memctl_proto::v1;
use serde::Deserialize;

use crate::source_paths::SourcePaths;

/// Maximum bytes of a text that are kept.
const TEXT_BYTES_MAX: usize = 1_000;
/// Maximum number of sentences about objects that were not searched.
const NOT_LOOKED_AT_MAX: usize = 32;

/// The version of the answer that this agent reads.
const VERSION: u32 = 2;

#[derive(Deserialize)]
struct Parsed {
    version: u32,
    asked_blocks: u32,
    found_blocks: u32,
    objects: u64,
    took_ms: f64,
    complete: bool,
    not_looked_at: Vec<String>,
    holders: Vec<Holder>,
    slices: u32,
    longest_ms: f64,
    /// Whether the program has epochs. Without any, all its time is epoch 0, which says nothing.
    has_epochs: bool,
}

#[derive(Deserialize)]
struct Holder {
    kind: String,
    sentence: String,
    /// The sentence and the chain without counts.
    subject: String,
    identity: Vec<String>,
    chain: Vec<String>,
    blocks: u32,
    bytes: u64,
    tensors: Option<u64>,
    holder: String,
    #[serde(rename = "type")]
    type_name: String,
    name: Option<String>,
    owner: Option<String>,
    length: Option<u64>,
    is_bounded: Option<bool>,
    limit: Option<u64>,
    thread: Option<String>,
    threads: u32,
    collector: Option<String>,
    pattern: Option<String>,
    /// Indices of the holder's blocks, which may no longer be live.
    numbers: Vec<usize>,
}

impl Holder {
    /// Removes blocks that are no longer live or whose address now belongs to another site's block. The trainer cannot
    /// see either. Returns the number of removed blocks.
    fn without_dead(&mut self, alive: &[Option<u64>]) -> u32 {
        let dead = self.numbers.iter().filter(|number| alive.get(**number).is_none_or(Option::is_none)).count();
        let dead = u32::try_from(dead).unwrap_or(u32::MAX).min(self.blocks);
        if dead > 0 {
            self.blocks -= dead;
            self.bytes = self.numbers.iter().filter_map(|number| alive.get(*number).copied().flatten()).sum();
        }
        dead
    }
}

/// The value with a name that the package uses; `None` if this agent does not know the name.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, wanted: Option<&str>) -> Option<T> {
    all.iter().copied().find(|one| wanted == Some(name(*one)))
}

/// The message that is sent in place of an answer when the search failed in the trainer.
#[derive(Deserialize)]
struct Fault {
    fault: String,
}

/// Reads an answer about some blocks. `alive` has the size of each block that is still live. `paths` decides how paths
/// in the answer are treated before they leave the host.
///
/// # Errors
/// The fault, in one sentence.
pub(super) fn read(
    json: &[u8],
    alive: &[Option<u64>],
    epoch: Option<u32>,
    paths: &SourcePaths,
) -> Result<v1::HoldersFound, String> {
    let asked_blocks = alive.len();
    if json.is_empty() {
        return Err("the trainer's answer was longer than 64 KiB".to_owned());
    }
    if let Ok(Fault { fault }) = serde_json::from_slice(json) {
        return Err(format!("the search failed in the trainer: {}", cut(paths.text(&fault).into_owned())));
    }
    let mut answer: Parsed =
        serde_json::from_slice(json).map_err(|error| format!("the trainer's answer cannot be read: {error}"))?;
    if answer.version != VERSION {
        return Err(format!("the trainer's answer is of version {}, and this agent reads {VERSION}", answer.version));
    }
    if answer.asked_blocks as usize != asked_blocks {
        return Err(format!(
            "the trainer's answer is about {} blocks, and it was asked about {asked_blocks}",
            answer.asked_blocks
        ));
    }
    for holder in &mut answer.holders {
        answer.found_blocks = answer.found_blocks.saturating_sub(holder.without_dead(alive));
    }
    answer.holders.retain(|holder| holder.blocks > 0);
    let text = |text: String| cut(paths.text(&text).into_owned());
    let holder = |holder: Holder| {
        let Holder { kind, sentence, chain, blocks, bytes, tensors, type_name, name, owner, length, threads, .. } =
            holder;
        let bound = match holder.is_bounded {
            None => HolderBound::Unknown,
            Some(false) => HolderBound::Unbounded,
            Some(true) => HolderBound::Bounded { limit: holder.limit },
        };
        let identity = Fingerprint::of([kind.as_str()].into_iter().chain(holder.identity.iter().map(String::as_str)));
        holder_to_wire(&TensorHolder {
            kind,
            sentence: text(sentence),
            chain: chain.into_iter().map(text).collect(),
            blocks,
            bytes,
            tensors,
            holder: named(&HolderKind::ALL, HolderKind::name, Some(&holder.holder)).unwrap_or_default(),
            type_name: text(type_name),
            name: name.map(text),
            owner: owner.map(text),
            length,
            bound,
            thread: holder.thread.map(text),
            threads,
            collector: named(&Collector::ALL, Collector::name, holder.collector.as_deref()),
            pattern: named(&HolderPattern::ALL, HolderPattern::name, holder.pattern.as_deref()),
            subject: text(holder.subject),
            identity,
        })
    };
    let found = v1::HoldersFound {
        live_blocks: 0,
        live_bytes: 0,
        asked_blocks: answer.asked_blocks,
        found_blocks: answer.found_blocks,
        objects: answer.objects,
        // The cast saturates, and turns NaN into 0.
        took_us: (answer.took_ms * 1_000.0) as u64,
        complete: answer.complete,
        not_looked_at: answer.not_looked_at.into_iter().take(NOT_LOOKED_AT_MAX).map(text).collect(),
        holders: answer.holders.into_iter().map(holder).collect(),
        epoch: epoch.filter(|_| answer.has_epochs),
        slices: answer.slices,
        longest_us: (answer.longest_ms * 1_000.0) as u64,
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
            "version": 2, "slices": 41, "longest_ms": 2.5, "asked_blocks": 4, "found_blocks": 3, "objects": 1_000_000, "took_ms": 81.25, "complete": false, "has_epochs": true,
            "not_looked_at": ["The budget of 80 ms ended the search."],
            "holders": [{
                "kind": "list", "sentence": "list `KEPT` of module `__main__`, 1,440 tensors",
                "subject": "list `KEPT` of module `__main__`", "identity": ["module `__main__`", "global `KEPT`", "list", "Tensor"],
                "chain": ["module `__main__`", "global `KEPT`", "list, 1,440 items", "Tensor"],
                "blocks": 3, "bytes": 3_145_728, "tensors": 1_440, "holder": "container", "type": "list", "name": "KEPT",
                "owner": "__main__", "length": 1_440, "is_bounded": false, "limit": null, "thread": null, "threads": 0,
                "collector": null, "pattern": null, "numbers": [0, 1, 2]
            }]
        })
    }

    fn of(value: &Value) -> Result<v1::HoldersFound, String> {
        read(value.to_string().as_bytes(), &[Some(1 << 20); 4], Some(7), &SourcePaths::default())
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
        assert_eq!(found.holders[0].subject, "list `KEPT` of module `__main__`");
        let mut longer = answer();
        longer["holders"][0]["chain"][2] = json!("list, 1,441 items");
        assert_eq!(of(&longer).unwrap().holders[0].identity, found.holders[0].identity);
        longer["holders"][0]["identity"][1] = json!("global `OTHER`");
        assert_ne!(of(&longer).unwrap().holders[0].identity, found.holders[0].identity);
        assert_eq!((found.holders[0].tensors, found.complete), (Some(1_440), false));
        assert_eq!((found.slices, found.longest_us), (41, 2_500));
        assert_eq!(found.holders[0].holder(), v1::HolderKind::Container);
        assert_eq!(found.holders[0].bound, Some(v1::HolderBound { bounded: false, limit: None }));
        // All of a program without epochs is epoch 0, which says nothing.
        assert_eq!((found.epoch, with("has_epochs", json!(false)).unwrap().epoch), (Some(7), None));
        let none = with("holders", json!([])).unwrap();
        assert!(none.holders.is_empty());
        assert!(with("unknown", json!({"later": "versions"})).is_ok());
    }

    #[test]
    fn whatever_else_comes_is_a_sentence() {
        let wrong = |json: &[u8]| read(json, &[None; 4], None, &SourcePaths::default()).unwrap_err();
        assert!(wrong(b"").contains("64 KiB"));
        for bytes in [&b"{"[..], b"null", b"[1]", b"\xff\xfe", b"{\"version\":1}"] {
            assert!(wrong(bytes).contains("cannot be read"), "{bytes:?}");
        }
        let deep = "[".repeat(60_000);
        assert!(wrong(deep.as_bytes()).contains("cannot be read"));
        assert!(with("version", json!(3)).unwrap_err().contains("version 3"));
        assert!(with("asked_blocks", json!(5)).unwrap_err().contains("about 5 blocks"));
        assert!(with("found_blocks", json!(5)).unwrap_err().contains("refused"));
        assert!(with("found_blocks", json!(-1)).unwrap_err().contains("cannot be read"));
        let holders = vec![answer()["holders"][0].clone(); 9];
        assert!(with("holders", json!(holders)).unwrap_err().contains("holders"));
        let fault = of(&json!({"fault": "TypeError: not JSON"})).unwrap_err();
        assert_eq!(fault, "the search failed in the trainer: TypeError: not JSON");
    }

    #[test]
    fn what_has_been_freed_is_held_by_nothing() {
        let mut value = answer();
        value["holders"][0]["numbers"] = json!([0, 2, 3]);
        let of =
            |alive: &[Option<u64>]| read(value.to_string().as_bytes(), alive, None, &SourcePaths::default()).unwrap();
        let found = of(&[Some(5), None, None, Some(7)]);
        assert_eq!((found.found_blocks, found.holders[0].blocks, found.holders[0].bytes), (2, 2, 12));
        assert_eq!(of(&[Some(5), None, Some(6), Some(7)]).holders[0].bytes, 3_145_728, "as it says");
        let none = of(&[None, Some(9), None, None]);
        assert!(none.holders.is_empty() && none.found_blocks == 0);
    }

    #[test]
    fn times_that_are_none_and_long_texts_do_no_harm() {
        assert_eq!(with("took_ms", json!(-5.0)).unwrap().took_us, 0);
        assert_eq!(with("took_ms", json!(1e300)).unwrap().took_us, u64::MAX);
        let found = with("not_looked_at", json!(vec!["é".repeat(2_000); 9])).unwrap();
        assert!(found.not_looked_at.iter().all(|text| text.len() <= TEXT_BYTES_MAX));
    }
}
