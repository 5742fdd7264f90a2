//! The type of a dict, determined only by its keys, and the parts of it that memctl keeps.
//!
//! The order of keys and unknown keys do not matter. A missing key gets the value that torch versions without this key
//! imply. Entries that are not understood are counted, never guessed.

use memctl_model::{Action, BlockState, BlockUse, Event, PoolId, SegmentKind, SegmentState, StackId};

use super::containers::{Annotation, DictSlot};
use super::intern::Tables;
use super::keys;
use super::value::{Kind, Value};

/// The type of a dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Event,
    Annotation,
    Frame,
    Segment,
    Block,
    Other,
}

const fn bits(keys: &[u32]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < keys.len() {
        bits |= 1 << keys[at];
        at += 1;
    }
    bits
}

impl Shape {
    /// The type of a dict, by its keys.
    #[inline]
    pub(crate) fn of(dict: &DictSlot) -> Self {
        const EVENT: u64 = bits(&[keys::ACTION]);
        const FRAME: u64 = bits(&[keys::NAME, keys::FILENAME]);
        const ANNOTATION: u64 = bits(&[keys::NAME, keys::STAGE]);
        const SEGMENT: u64 = bits(&[keys::ADDRESS, keys::TOTAL_SIZE]);
        const BLOCK: u64 = bits(&[keys::SIZE, keys::STATE]);
        let has = |keys: u64| dict.seen & keys == keys;
        match () {
            () if has(EVENT) => Self::Event,
            () if has(FRAME) => Self::Frame,
            () if has(ANNOTATION) => Self::Annotation,
            () if has(SEGMENT) => Self::Segment,
            () if has(BLOCK) => Self::Block,
            () => Self::Other,
        }
    }
}

/// Why a trace entry did not become an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// An action that this version of memctl does not know.
    UnknownAction,
    /// A field that every entry has is missing or is not a number.
    Malformed,
}

/// Nanoseconds of a time in microseconds.
fn time_ns(value: Value) -> Option<u64> {
    value.as_u64()?.checked_mul(1000)
}

fn stack_of(value: Value) -> StackId {
    value.id(Kind::Stack).map_or(StackId::NONE, StackId)
}

fn pool_of(value: Value, tables: &Tables) -> PoolId {
    value.id(Kind::Pair).and_then(|pair| tables.pool_at(pair)).unwrap_or(PoolId::DEFAULT)
}

/// An event, with time 0 if the entry has none (torch 2.1).
#[inline]
pub(crate) fn event(dict: &DictSlot, tables: &Tables) -> Result<Event, Skipped> {
    let word = dict.get(keys::ACTION).id(Kind::Str).ok_or(Skipped::Malformed)?;
    let action = keys::action_of(word).ok_or(Skipped::UnknownAction)?;
    let addr = if dict.has(keys::ADDR) { dict.get(keys::ADDR) } else { dict.get(keys::DEVICE_FREE) };
    let addr = match addr.as_u64() {
        Some(addr) => addr,
        None if matches!(action, Action::Oom | Action::Snapshot) => 0,
        None => return Err(Skipped::Malformed),
    };
    let size = match dict.get(keys::SIZE).as_u64() {
        Some(size) => size,
        None if action == Action::Annotate => 0,
        None => return Err(Skipped::Malformed),
    };
    let time_ns = match dict.has(keys::TIME_US) {
        true => time_ns(dict.get(keys::TIME_US)).ok_or(Skipped::Malformed)?,
        false => 0,
    };
    Ok(Event {
        time_ns,
        addr,
        size,
        stream: dict.get(keys::STREAM).as_u64().unwrap_or(0),
        pool: pool_of(dict.get(keys::POOL_ID), tables),
        stack: stack_of(dict.get(keys::FRAMES)),
        action,
    })
}

/// The name of the owner of an entry's or a block's memory, or the empty one if the process set none. An entry that
/// frees memory has no name.
#[inline]
pub(crate) fn owner(dict: &DictSlot) -> u32 {
    dict.get(keys::USER_METADATA).id(Kind::Str).unwrap_or(keys::EMPTY)
}

/// Whether an entry contains metadata of the allocator or a compile context.
#[inline]
pub(crate) fn has_metadata(dict: &DictSlot) -> bool {
    const KEYS: [u32; 2] = [keys::COMPILE_CONTEXT, keys::INTERNAL_METADATA];
    const ANY: u64 = bits(&KEYS);
    dict.seen & ANY != 0
        && KEYS.into_iter().any(|key| {
            let empty = [Value::UNSET, Value::NONE].contains(&dict.get(key))
                || [Some(keys::EMPTY), Some(keys::NOT_COMPILED)].contains(&dict.get(key).id(Kind::Str));
            !empty
        })
}

/// The number of a frame; `None` if there are too many.
pub(crate) fn frame(dict: &DictSlot, tables: &mut Tables) -> Option<u32> {
    let text = |key| dict.get(key).id(Kind::Str).unwrap_or(keys::EMPTY);
    let line = dict.get(keys::LINE).as_u64().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
    if dict.has(keys::FX_ORIGINAL_TRACE)
        && let Some((file, line, function)) = original(&tables.text_at(text(keys::FX_ORIGINAL_TRACE)).clone())
    {
        let (function, file) = (tables.text(function), tables.text(file));
        return tables.frame(function, file, line);
    }
    tables.frame(text(keys::NAME), text(keys::FILENAME), line)
}

/// The innermost line of the traceback that PyTorch stores for a line of a generated graph: file, line, function.
fn original(trace: &str) -> Option<(&str, u32, &str)> {
    trace.lines().rev().find_map(|line| {
        let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let (line, function) = rest.split_once(", in ")?;
        Some((file, line.parse().ok()?, function.trim_end()))
    })
}

/// An annotation; `None` if it has no time or no stage.
pub(crate) fn annotation(dict: &DictSlot, tables: &Tables) -> Option<Annotation> {
    let begins = match dict.get(keys::STAGE).id(Kind::Str)? {
        keys::START => true,
        keys::END => false,
        _ => return None,
    };
    let name = tables.text_at(dict.get(keys::NAME).id(Kind::Str)?);
    Some(Annotation { time_ns: time_ns(dict.get(keys::TIME_US))?, name: name.clone(), begins })
}

/// A block; its address is 0 if the file has none (before torch 2.1).
pub(crate) fn block(dict: &DictSlot) -> Option<BlockState> {
    let usage = match dict.get(keys::STATE).id(Kind::Str)? {
        keys::ACTIVE_ALLOCATED => BlockUse::Allocated,
        keys::ACTIVE_PENDING_FREE | keys::ACTIVE_AWAITING_FREE => BlockUse::PendingFree,
        _ => BlockUse::Inactive,
    };
    let size = dict.get(keys::SIZE).as_u64()?;
    let requested = match usage {
        // A free block still contains the bytes that were last requested of it.
        BlockUse::Inactive => 0,
        _ => dict.get(keys::REQUESTED_SIZE).as_u64().unwrap_or(size),
    };
    let stack = if usage == BlockUse::Inactive { StackId::NONE } else { stack_of(dict.get(keys::FRAMES)) };
    let addr = dict.get(keys::ADDRESS).as_u64().unwrap_or(0);
    Some(BlockState { addr, size, requested, usage, stack, birth_epoch: 0, birth_step: 0, birth_phase: None })
}

/// A segment and its device, with its blocks as they are in the file.
pub(crate) fn segment(dict: &mut DictSlot, tables: &Tables) -> Option<(u64, SegmentState)> {
    let device = dict.get(keys::DEVICE).as_u64().unwrap_or(0);
    let state = SegmentState {
        addr: dict.get(keys::ADDRESS).as_u64()?,
        size: dict.get(keys::TOTAL_SIZE).as_u64()?,
        stream: dict.get(keys::STREAM).as_u64().unwrap_or(0),
        pool: pool_of(dict.get(keys::SEGMENT_POOL_ID), tables),
        kind: match dict.get(keys::SEGMENT_TYPE).id(Kind::Str) {
            Some(keys::SMALL) => SegmentKind::Small,
            _ => SegmentKind::Large,
        },
        expandable: dict.get(keys::IS_EXPANDABLE).as_bool().unwrap_or(false),
        blocks: std::mem::take(&mut dict.blocks),
    };
    Some((device, state))
}
