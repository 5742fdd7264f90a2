//! The byte format of notes in the log of a region. The trainer writes them and the host reads them.
//!
//! Both sides have the same version of memctl, which the region's magic number ensures, so this format is internal.
//! Reading trusts nothing. A malformed note is left out and logged.

use memctl_model::limits::{DEVICES_MAX, NAME_BYTES_MAX};
use memctl_model::{Keyframe, MarkKind, Phase, Sample};
use memctl_proto::convert::holders::ANSWER_BYTES_MAX;
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::ItemKind;

use crate::clock::Ticks;
use crate::ring::Position;

const MARK: u8 = 1;
const SAMPLE: u8 = 2;
const KEYFRAME: u8 = 3;
const FAILURE: u8 = 4;
const SETTLED: u8 = 5;
const HOLDERS: u8 = 6;

/// The content of a note. Its times are still ticks.
#[derive(Clone, Debug, PartialEq)]
pub enum NoteContent {
    /// A mark at its stamp, with each ring's position.
    Mark(Ticks, MarkKind, Box<[Position]>),
    /// Measurements.
    Samples(Vec<Sample>),
    /// The state of a device, with its ring's position; its time is in nanoseconds.
    Keyframe(Box<Keyframe>, Position),
    /// The trainer's own reason for its failure.
    Failure(String),
    /// Gradients were freed, with each ring's position.
    Settled(Box<[Position]>),
    /// The result of a request for holders, as JSON; empty if it was too long.
    Holders(u64, Vec<u8>),
}

fn number(kind: &MarkKind) -> (u8, u64, &str) {
    match kind {
        MarkKind::EpochBegin(epoch) => (1, u64::from(*epoch), ""),
        MarkKind::EpochEnd(epoch) => (2, u64::from(*epoch), ""),
        MarkKind::StepBegin(step) => (3, *step, ""),
        MarkKind::StepEnd(step) => (4, *step, ""),
        MarkKind::PhaseBegin(phase) => (5, *phase as u64, ""),
        MarkKind::PhaseEnd(phase) => (6, *phase as u64, ""),
        MarkKind::RegionBegin(name) => (7, 0, name),
        MarkKind::RegionEnd(name) => (8, 0, name),
        MarkKind::Note(name) => (9, 0, name),
        MarkKind::WindowEnd(window) => (10, *window, ""),
    }
}

/// The mark of a number, as trainers send it. 1 and 2 are an epoch's begin and end, 3 and 4 a step's, 5 and 6 a
/// phase's, 7 and 8 a region's. 9 is a note.
#[must_use]
pub fn mark_kind(kind: u8, number: u64, name: &str) -> Option<MarkKind> {
    let epoch = || u32::try_from(number).ok();
    let phase = || Phase::ALL.into_iter().find(|phase| *phase as u64 == number);
    let name = || name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
    Some(match kind {
        1 => MarkKind::EpochBegin(epoch()?),
        2 => MarkKind::EpochEnd(epoch()?),
        3 => MarkKind::StepBegin(number),
        4 => MarkKind::StepEnd(number),
        5 => MarkKind::PhaseBegin(phase()?),
        6 => MarkKind::PhaseEnd(phase()?),
        7 => MarkKind::RegionBegin(name()),
        8 => MarkKind::RegionEnd(name()),
        9 => MarkKind::Note(name()),
        // The worker makes 10, the end of a window. It is not accepted from a trainer.
        _ => return None,
    })
}

/// Encodes a mark.
#[must_use]
pub fn mark(ticks: Ticks, kind: &MarkKind, positions: &[Position]) -> Vec<u8> {
    let (kind, number, name) = number(kind);
    let mut bytes = vec![MARK, kind];
    bytes.extend(ticks.0.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    put_positions(&mut bytes, positions);
    bytes.extend(name.as_bytes());
    bytes
}

/// Encodes that gradients were freed.
#[must_use]
pub fn settled(positions: &[Position]) -> Vec<u8> {
    let mut bytes = vec![SETTLED];
    put_positions(&mut bytes, positions);
    bytes
}

fn put_positions(bytes: &mut Vec<u8>, positions: &[Position]) {
    let positions = &positions[..positions.len().min(DEVICES_MAX)];
    bytes.push(positions.len() as u8);
    for position in positions {
        bytes.extend(position.pushed.to_le_bytes());
        bytes.extend(position.dropped.to_le_bytes());
    }
}

/// Encodes measurements.
#[must_use]
pub fn samples(samples: &[Sample]) -> Vec<u8> {
    packed(vec![SAMPLE], &Packed::samples(samples))
}

/// Encodes the state of a device.
#[must_use]
pub fn keyframe(keyframe: &Keyframe, position: Position) -> Vec<u8> {
    let mut bytes = vec![KEYFRAME];
    bytes.extend(position.pushed.to_le_bytes());
    bytes.extend(position.dropped.to_le_bytes());
    packed(bytes, &Packed::keyframe(keyframe))
}

/// Encodes the result of a request for holders.
#[must_use]
pub fn holders(ask: u64, json: &str) -> Vec<u8> {
    let mut bytes = vec![HOLDERS];
    bytes.extend(ask.to_le_bytes());
    if json.len() <= ANSWER_BYTES_MAX {
        bytes.extend(json.as_bytes());
    }
    bytes
}

/// Encodes the reason of a trainer's failure.
#[must_use]
pub fn failure(text: &str) -> Vec<u8> {
    let mut bytes = vec![FAILURE];
    bytes.extend(&text.as_bytes()[..text.floor_char_boundary(NAME_BYTES_MAX)]);
    bytes
}

fn packed(mut bytes: Vec<u8>, packed: &Packed) -> Vec<u8> {
    bytes.extend(packed.unpacked_bytes.to_le_bytes());
    bytes.extend(&packed.payload);
    bytes
}

/// Reads a note; `None` when it is malformed.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<NoteContent> {
    let (&tag, rest) = bytes.split_first()?;
    match tag {
        MARK => read_mark(rest),
        SAMPLE => match open(ItemKind::Samples, rest)? {
            Content::Samples(samples) => Some(NoteContent::Samples(samples)),
            _ => None,
        },
        KEYFRAME => {
            let (position, rest) = read_position(rest)?;
            match open(ItemKind::Keyframe, rest)? {
                Content::Keyframe(keyframe) => Some(NoteContent::Keyframe(Box::new(keyframe), position)),
                _ => None,
            }
        }
        SETTLED => Some(NoteContent::Settled(read_positions(rest)?.0)),
        HOLDERS => {
            let (ask, json) = take_u64(rest)?;
            (json.len() <= ANSWER_BYTES_MAX).then(|| NoteContent::Holders(ask, json.to_vec()))
        }
        FAILURE => Some(NoteContent::Failure(String::from_utf8_lossy(rest).into_owned())),
        _ => None,
    }
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), rest))
}

fn read_position(bytes: &[u8]) -> Option<(Position, &[u8])> {
    let (pushed, rest) = take_u64(bytes)?;
    let (dropped, rest) = take_u64(rest)?;
    Some((Position { pushed, dropped }, rest))
}

fn read_mark(bytes: &[u8]) -> Option<NoteContent> {
    let (&kind, rest) = bytes.split_first()?;
    let (ticks, rest) = take_u64(rest)?;
    let (number, rest) = take_u64(rest)?;
    let (positions, rest) = read_positions(rest)?;
    let kind = mark_kind(kind, number, std::str::from_utf8(rest).ok()?)?;
    Some(NoteContent::Mark(Ticks(ticks), kind, positions))
}

fn read_positions(bytes: &[u8]) -> Option<(Box<[Position]>, &[u8])> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut positions = Vec::with_capacity(usize::from(count).min(DEVICES_MAX));
    for _ in 0..count {
        let (position, after) = read_position(rest)?;
        positions.push(position);
        rest = after;
    }
    Some((positions.into(), rest))
}

fn open(kind: ItemKind, bytes: &[u8]) -> Option<Content> {
    let (size, payload) = bytes.split_first_chunk::<4>()?;
    let packed = Packed { kind, payload: payload.to_vec().into(), unpacked_bytes: u32::from_le_bytes(*size) };
    packed.open().ok()
}
