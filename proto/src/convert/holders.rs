//! Converts and checks answers about holders, which come from an untrusted trainer.
//!
//! Guarantees: an answer that passes [`checked`] has at most the allowed number of parts, and no part is too long. It
//! covers at most the requested blocks. Otherwise the whole answer is refused, because a part of it could name the
//! wrong holder.

use memctl_model::{
    Collector, Fingerprint, Frame, HolderBound, HolderKind, HolderPattern, HoldersAsked, HoldersFound, TensorHolder,
};
use prost::Message as _;

use super::{WireError, at_most};
use crate::v1;

pub use memctl_model::holders::BLOCKS_MAX;

/// Maximum number of stacks of a site in one request.
pub const STACKS_MAX: usize = 4_096;
/// Maximum bytes of an answer.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long a search may pause the trainer by default, in milliseconds.
pub const BUDGET_MS: u32 = 100;
/// The maximum of that time. The other ranks of a training wait meanwhile and give up after minutes.
pub const BUDGET_MS_MAX: u32 = 10_000;

/// Maximum number of holders in an answer.
const HOLDERS_MAX: usize = 8;
/// Maximum number of steps from the root to the tensor.
const CHAIN_MAX: usize = 12;
/// Maximum number of sentences about objects that were not searched.
const NOT_LOOKED_AT_MAX: usize = 32;
/// Maximum bytes of a holder's kind.
const KIND_BYTES_MAX: usize = 32;
/// Maximum bytes of a sentence or a step: 200 characters of any script.
const TEXT_BYTES_MAX: usize = 1_024;

/// Returns the same answer if it is valid.
///
/// # Errors
/// A part is too long or contradictory, or there are too many parts.
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
        let v1::TensorHolder { kind, sentence, chain, blocks, type_name, name, owner, thread, subject, .. } = holder;
        for text in
            [Some(type_name), Some(subject), name.as_ref(), owner.as_ref(), thread.as_ref()].into_iter().flatten()
        {
            at_most("bytes of a holder's name", text.len(), TEXT_BYTES_MAX)?;
        }
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

/// Converts a holder to the wire format.
#[must_use]
pub fn holder_to_wire(holder: &TensorHolder) -> v1::TensorHolder {
    let TensorHolder {
        kind,
        sentence,
        chain,
        blocks,
        bytes,
        tensors,
        holder,
        type_name,
        name,
        owner,
        length,
        bound,
        thread,
        threads,
        collector,
        pattern,
        subject,
        identity,
    } = holder.clone();
    let bound = match bound {
        HolderBound::Unknown => None,
        HolderBound::Unbounded => Some(v1::HolderBound { bounded: false, limit: None }),
        HolderBound::Bounded { limit } => Some(v1::HolderBound { bounded: true, limit }),
    };
    v1::TensorHolder {
        kind,
        sentence,
        chain,
        blocks,
        bytes,
        tensors,
        holder: kind_to_wire(holder) as i32,
        type_name,
        name,
        owner,
        length,
        bound,
        thread,
        threads,
        collector: collector.map_or(v1::Collector::Unspecified, collector_to_wire) as i32,
        pattern: pattern.map_or(v1::HolderPattern::Unspecified, pattern_to_wire) as i32,
        subject,
        identity: identity.0,
    }
}

fn kind_to_wire(kind: HolderKind) -> v1::HolderKind {
    match kind {
        HolderKind::Unknown => v1::HolderKind::Unspecified,
        HolderKind::Container => v1::HolderKind::Container,
        HolderKind::Cache => v1::HolderKind::Cache,
        HolderKind::Cycle => v1::HolderKind::Cycle,
        HolderKind::Frame => v1::HolderKind::Frame,
        HolderKind::Thread => v1::HolderKind::Thread,
        HolderKind::Module => v1::HolderKind::Module,
        HolderKind::Graph => v1::HolderKind::Graph,
        HolderKind::Cpp => v1::HolderKind::Cpp,
        HolderKind::Variable => v1::HolderKind::Variable,
        HolderKind::Object => v1::HolderKind::Object,
    }
}

fn collector_to_wire(collector: Collector) -> v1::Collector {
    match collector {
        Collector::On => v1::Collector::On,
        Collector::Off => v1::Collector::Off,
        Collector::Rare => v1::Collector::Rare,
    }
}

fn pattern_to_wire(pattern: HolderPattern) -> v1::HolderPattern {
    match pattern {
        HolderPattern::CreateGraph => v1::HolderPattern::CreateGraph,
        HolderPattern::AutocastCache => v1::HolderPattern::AutocastCache,
    }
}

/// Converts a holder from the wire format. Values that are unknown to this version become `Unknown` or `None`.
#[must_use]
pub fn holder_from_wire(holder: v1::TensorHolder) -> TensorHolder {
    let (what, collector, pattern) = (holder.holder(), holder.collector(), holder.pattern());
    let v1::TensorHolder { kind, sentence, chain, blocks, bytes, tensors, type_name, name, owner, .. } = holder;
    // Older agents send neither: then holders whose counts differ count as different ones.
    let subject = if holder.subject.is_empty() { sentence.clone() } else { holder.subject };
    let identity = match holder.identity {
        0 => Fingerprint::of([kind.as_str()].into_iter().chain(chain.iter().map(String::as_str))),
        known => Fingerprint(known),
    };
    TensorHolder {
        subject,
        identity,
        kind,
        sentence,
        chain,
        blocks,
        bytes,
        tensors,
        holder: HolderKind::ALL.into_iter().find(|kind| kind_to_wire(*kind) == what).unwrap_or_default(),
        type_name,
        name,
        owner,
        length: holder.length,
        bound: match holder.bound {
            None => HolderBound::Unknown,
            Some(v1::HolderBound { bounded: false, limit: _ }) => HolderBound::Unbounded,
            Some(v1::HolderBound { bounded: true, limit }) => HolderBound::Bounded { limit },
        },
        thread: holder.thread,
        threads: holder.threads,
        collector: Collector::ALL.into_iter().find(|one| collector_to_wire(*one) == collector),
        pattern: HolderPattern::ALL.into_iter().find(|one| pattern_to_wire(*one) == pattern),
    }
}

/// A stored request and its outcome, for a process whose name and rank the caller knows.
///
/// # Errors
/// A part is missing, or [`checked`] refuses the answer.
pub fn from_kept(
    kept: v1::HoldersAsked,
    (rank, process): (u32, String),
    asked_ns: u64,
) -> Result<HoldersAsked, WireError> {
    use v1::holders_asked::Outcome;
    let v1::HoldersAsked { function, file, line, mut lines, finding, unasked, budget_ms, outcome } = kept;
    let outcome = match outcome.ok_or(WireError::Missing("holders.outcome"))? {
        Outcome::Found(found) => Ok(from_wire(checked(found)?)),
        Outcome::Failure(why) => Err(why),
    };
    let site = Frame { function: function.into(), file: file.into(), line };
    if lines.is_empty() {
        lines.push(line);
    }
    Ok(HoldersAsked { rank, process, asked_ns, unasked, budget_ms, site, lines, finding, outcome })
}

/// An answer of a process.
#[must_use]
pub fn from_wire(found: v1::HoldersFound) -> HoldersFound {
    let v1::HoldersFound {
        live_blocks,
        live_bytes,
        asked_blocks,
        found_blocks,
        objects,
        took_us,
        complete,
        not_looked_at,
        holders,
        epoch,
        slices,
        longest_us,
    } = found;
    HoldersFound {
        live_blocks,
        live_bytes,
        asked_blocks,
        found_blocks,
        objects,
        took_us,
        complete,
        not_looked_at,
        holders: holders.into_iter().map(holder_from_wire).collect(),
        epoch,
        slices,
        longest_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> v1::TensorHolder {
        let chain = vec!["module `__main__`".to_owned(), "global `KEPT`".to_owned()];
        let (kind, sentence) = ("list".to_owned(), "list `KEPT` of module `__main__`, 1,440 tensors".to_owned());
        v1::TensorHolder {
            kind,
            sentence,
            chain,
            blocks: 2,
            bytes: 1_024,
            tensors: Some(1_440),
            holder: v1::HolderKind::Container as i32,
            type_name: "list".into(),
            name: Some("KEPT".into()),
            owner: Some("__main__".into()),
            length: Some(1_440),
            bound: Some(v1::HolderBound { bounded: false, limit: None }),
            subject: "list `KEPT` of module `__main__`".into(),
            identity: 7,
            ..Default::default()
        }
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
    fn what_was_kept_comes_back() {
        let full = v1::HoldersFound { live_blocks: 9, epoch: Some(3), not_looked_at: vec!["x".into()], ..found() };
        let kept = |outcome| v1::HoldersAsked {
            function: "keep".into(),
            file: "train.py".into(),
            line: 17,
            lines: Vec::new(),
            finding: "id".into(),
            unasked: true,
            budget_ms: 100,
            outcome,
        };
        let who = || (2, "rank 2".to_owned());
        let asked = from_kept(kept(Some(v1::holders_asked::Outcome::Found(full.clone()))), who(), 7).unwrap();
        assert_eq!((asked.rank, &*asked.process, asked.site.line, &*asked.finding), (2, "rank 2", 17, "id"));
        assert_eq!((asked.asked_ns, asked.unasked), (7, true));
        let known = asked.outcome.unwrap();
        assert_eq!((known.live_blocks, known.epoch, &*known.not_looked_at), (9, Some(3), &["x".to_owned()][..]));
        assert_eq!(known.holders.iter().map(holder_to_wire).collect::<Vec<_>>(), full.holders);
        let failed = from_kept(kept(Some(v1::holders_asked::Outcome::Failure("gone".into()))), who(), 7).unwrap();
        assert_eq!(failed.outcome, Err("gone".to_owned()));
        assert!(from_kept(kept(None), who(), 7).is_err());
        let odd = v1::HoldersFound { found_blocks: 3, ..found() };
        assert!(from_kept(kept(Some(v1::holders_asked::Outcome::Found(odd))), who(), 7).is_err());
    }

    #[test]
    fn without_a_subject_and_an_identity_the_words_identify_a_holder() {
        let older = |chain: &str| {
            let chain = vec![chain.to_owned()];
            holder_from_wire(v1::TensorHolder { subject: String::new(), identity: 0, chain, ..holder() })
        };
        assert_eq!(older("a").subject, "list `KEPT` of module `__main__`, 1,440 tensors");
        assert_eq!(older("a").identity, older("a").identity);
        assert_ne!(older("a").identity, older("b").identity);
    }

    #[test]
    fn kinds_and_bounds_come_back() {
        let bounds = [
            HolderBound::Unknown,
            HolderBound::Unbounded,
            HolderBound::Bounded { limit: None },
            HolderBound::Bounded { limit: Some(64) },
        ];
        let collectors = Collector::ALL.map(Some).into_iter().chain([None]);
        for (at, kind) in HolderKind::ALL.into_iter().enumerate() {
            let made = TensorHolder {
                holder: kind,
                bound: bounds[at % bounds.len()],
                collector: collectors.clone().nth(at % 4).flatten(),
                pattern: HolderPattern::ALL.get(at % 2).copied(),
                thread: Some("thread `t`".into()),
                threads: 3,
                ..holder_from_wire(holder())
            };
            assert_eq!(holder_from_wire(holder_to_wire(&made)), made);
        }
        let later = v1::TensorHolder { holder: 99, collector: 99, pattern: 99, ..holder() };
        let later = holder_from_wire(later);
        assert_eq!((later.holder, later.collector, later.pattern), (HolderKind::Unknown, None, None));
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
            ("a long name", of(v1::TensorHolder { name: Some(long()), ..holder() })),
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
