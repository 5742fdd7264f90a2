//! Answers about holders: as the trainer wrote them, whoever that is.
//!
//! Guarantees: what passes [`checked`] has as many parts as an answer may have, none longer than it may be, and holds for
//! no more blocks than were asked about. Refuses the whole answer otherwise: half of it could name the wrong holder.

use prost::Message as _;

use super::{WireError, at_most};
use crate::v1;

/// Blocks that are asked about at a time.
pub const BLOCKS_MAX: usize = 256;
/// Stacks that a site may have in an ask.
pub const STACKS_MAX: usize = 4_096;
/// Bytes of an answer.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long a search may stop the trainer, unless somebody says otherwise.
pub const BUDGET_MS: u32 = 100;
/// And at most: the other ranks of a training wait meanwhile, and give up after minutes.
pub const BUDGET_MS_MAX: u32 = 10_000;

/// Holders in an answer.
const HOLDERS_MAX: usize = 8;
/// Steps from the root to the tensor.
const CHAIN_MAX: usize = 12;
/// Sentences of what was not looked at.
const NOT_LOOKED_AT_MAX: usize = 32;
/// Bytes of a holder's kind,
const KIND_BYTES_MAX: usize = 32;
/// and of a sentence or a step: 200 characters of any script.
const TEXT_BYTES_MAX: usize = 1_024;

/// The same answer, if it is one.
///
/// # Errors
/// What is too many, too long or contradicts itself.
pub fn checked(found: v1::HoldersFound) -> Result<v1::HoldersFound, WireError> {
    at_most("bytes of an answer about holders", found.encoded_len(), ANSWER_BYTES_MAX)?;
    at_most("blocks asked about", found.asked_blocks as usize, BLOCKS_MAX)?;
    at_most("blocks found", found.found_blocks as usize, found.asked_blocks as usize)?;
    at_most("holders", found.holders.len(), HOLDERS_MAX)?;
    at_most("sentences of what was not looked at", found.not_looked_at.len(), NOT_LOOKED_AT_MAX)?;
    for text in &found.not_looked_at {
        at_most("bytes of a sentence", text.len(), TEXT_BYTES_MAX)?;
    }
    for holder in &found.holders {
        let v1::TensorHolder { kind, sentence, chain, blocks, bytes: _, tensors: _ } = holder;
        if kind.is_empty() || !kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            let shown: String = kind.chars().take(KIND_BYTES_MAX).collect();
            return Err(WireError::invalid("holder.kind", shown, "a name in small letters"));
        }
        at_most("bytes of a holder's kind", kind.len(), KIND_BYTES_MAX)?;
        at_most("bytes of a sentence", sentence.len(), TEXT_BYTES_MAX)?;
        at_most("steps of a chain", chain.len(), CHAIN_MAX)?;
        at_most("blocks of a holder", *blocks as usize, found.asked_blocks as usize)?;
        for step in chain {
            at_most("bytes of a step", step.len(), TEXT_BYTES_MAX)?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> v1::TensorHolder {
        let chain = vec!["module `__main__`".to_owned(), "global `KEPT`".to_owned()];
        let (kind, sentence) = ("list".to_owned(), "list `KEPT` of module `__main__`, 1,440 tensors".to_owned());
        v1::TensorHolder { kind, sentence, chain, blocks: 2, bytes: 1_024, tensors: Some(1_440) }
    }

    fn found() -> v1::HoldersFound {
        v1::HoldersFound { asked_blocks: 2, found_blocks: 2, holders: vec![holder()], ..Default::default() }
    }

    #[test]
    fn an_answer_passes_as_it_is() {
        assert_eq!(checked(found()), Ok(found()));
        assert_eq!(checked(v1::HoldersFound::default()), Ok(v1::HoldersFound::default()));
    }

    #[test]
    fn what_is_too_much_or_contradicts_itself_is_refused() {
        let of = |holder: v1::TensorHolder| v1::HoldersFound { holders: vec![holder], ..found() };
        let long = || "x".repeat(TEXT_BYTES_MAX + 1);
        for (what, wrong) in [
            ("more found than asked", v1::HoldersFound { found_blocks: 3, ..found() }),
            ("more asked than may be", v1::HoldersFound { asked_blocks: 257, ..found() }),
            ("too many holders", v1::HoldersFound { holders: vec![holder(); 9], ..found() }),
            ("too many sentences", v1::HoldersFound { not_looked_at: vec![String::new(); 33], ..found() }),
            ("a long sentence beside", v1::HoldersFound { not_looked_at: vec![long()], ..found() }),
            ("no kind", of(v1::TensorHolder { kind: String::new(), ..holder() })),
            ("a kind with a control character", of(v1::TensorHolder { kind: "li\u{1b}st".into(), ..holder() })),
            ("a long kind", of(v1::TensorHolder { kind: "x".repeat(33), ..holder() })),
            ("a long sentence", of(v1::TensorHolder { sentence: long(), ..holder() })),
            ("a long chain", of(v1::TensorHolder { chain: vec![String::new(); 13], ..holder() })),
            ("a long step", of(v1::TensorHolder { chain: vec![long()], ..holder() })),
            ("more blocks than asked", of(v1::TensorHolder { blocks: 3, ..holder() })),
        ] {
            assert!(checked(wrong).is_err(), "{what}");
        }
        let wide = v1::TensorHolder { chain: vec!["x".repeat(TEXT_BYTES_MAX); 12], ..holder() };
        let whole = v1::HoldersFound { holders: vec![wide; 8], ..found() };
        assert!(matches!(checked(whole), Err(WireError::TooMany { what: "bytes of an answer about holders", .. })));
    }
}
