//! Open containers: dicts and lists that the pickle has not completed yet.
//!
//! A slot is reused as soon as the container around it consumes its container. So the number of slots is that of the
//! values which are open at the same time. CPython's pickles have about a thousand, because CPython fills lists in
//! batches of that size.

use std::sync::Arc;

use memctl_model::{BlockState, FrameId, SegmentState};

use super::events::EventLog;
use super::keys::DICT_KEYS;
use super::value::Value;

/// Maximum number of open containers of one kind: sixty times as many as CPython's batches need.
pub(crate) const OPEN_MAX: usize = 1 << 16;
/// Maximum number of devices with a trace in one recording, with or without events. The model numbers them in 8 bits.
pub(crate) const TRACES_MAX: usize = 256;

/// An open dict. Only the values of keys that are read are kept.
pub(crate) struct DictSlot {
    /// Index in the memo, if it has one.
    pub memo: Option<u64>,
    /// Which of `values` are set.
    pub seen: u64,
    /// Whether it is the top-level value of the pickle.
    pub is_root: bool,
    /// Its result, if it was shared before it was consumed.
    pub shared: Option<Value>,
    /// The blocks of a segment.
    pub blocks: Vec<BlockState>,
    values: [Value; DICT_KEYS],
}

impl DictSlot {
    /// The value of a key, or [`Value::UNSET`] if the dict does not have it.
    #[inline]
    pub(crate) fn get(&self, key: u32) -> Value {
        if self.has(key) { self.values[key as usize] } else { Value::UNSET }
    }

    #[inline]
    pub(crate) fn has(&self, key: u32) -> bool {
        self.seen >> key & 1 != 0
    }

    /// Sets one of the keys below [`DICT_KEYS`].
    #[inline]
    pub(crate) fn set(&mut self, key: u32, value: Value) {
        self.values[key as usize] = value;
        self.seen |= 1 << key;
    }
}

/// The content of an open list. Its first item of a known type determines the variant.
pub(crate) enum Content {
    /// No items yet.
    Empty,
    /// Frames, in [`ListSlot::frames`].
    Frames,
    /// Trace entries.
    Events(Box<EventLog>),
    /// Lists of trace entries; `None` for an empty list.
    Traces(Vec<Option<Box<EventLog>>>),
    /// Blocks.
    Blocks(Vec<BlockState>),
    /// Segments with their devices.
    Segments(Vec<(u64, SegmentState)>),
    /// Annotations.
    Annotations(Vec<Annotation>),
    /// Content that is not used.
    Other,
}

/// The begin or end of a `record_function` range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Annotation {
    pub time_ns: u64,
    pub name: Arc<str>,
    pub begins: bool,
}

/// An open list.
pub(crate) struct ListSlot {
    /// Index in the memo, if it has one.
    pub memo: Option<u64>,
    /// Its result, if it was shared before it was consumed.
    pub shared: Option<Value>,
    pub content: Content,
    /// The frames of [`Content::Frames`]. They are stored separately so that their memory is reused.
    pub frames: Vec<FrameId>,
    /// Time of the last event of [`Content::Events`].
    pub last_ns: u64,
}

/// A pool of reusable slots.
pub(crate) struct Slab<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &T {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }
}

impl Slab<DictSlot> {
    /// Opens a dict; `None` if too many are open.
    #[inline]
    pub(crate) fn open(&mut self, is_root: bool) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            let dict = &mut self.slots[slot as usize];
            (dict.memo, dict.seen, dict.is_root, dict.shared) = (None, 0, is_root, None);
            dict.blocks = Vec::new();
            return Some(slot);
        }
        if self.slots.len() >= OPEN_MAX {
            return None;
        }
        let values = [Value::UNSET; DICT_KEYS];
        self.slots.push(DictSlot { memo: None, seen: 0, is_root, shared: None, blocks: Vec::new(), values });
        Some((self.slots.len() - 1) as u32)
    }
}

impl Slab<ListSlot> {
    /// Opens a list; `None` if too many are open.
    #[inline]
    pub(crate) fn open(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            let list = &mut self.slots[slot as usize];
            (list.memo, list.shared, list.last_ns) = (None, None, 0);
            list.content = Content::Empty;
            list.frames.clear();
            return Some(slot);
        }
        if self.slots.len() >= OPEN_MAX {
            return None;
        }
        let list = ListSlot { memo: None, shared: None, content: Content::Empty, frames: Vec::new(), last_ns: 0 };
        self.slots.push(list);
        Some((self.slots.len() - 1) as u32)
    }
}
