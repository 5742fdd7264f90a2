//! Open containers: dicts and lists of a snapshot become events, stacks and segments as soon as the container around
//! them consumes them.
//!
//! Guarantees: a consumed dict or list leaves only what memctl reads and a 4-byte entry in the memo. Dicts and lists
//! under keys that memctl does not read are dropped as they come. A list or dict on the stack belongs only to its
//! stack entry; fetching it from the memo gives its result. (Over 400 lines: the ways in which one container consumes
//! another share two slabs and the rule of single ownership.)

use memctl_model::{Action, BlockUse, FrameId, StackId};

use super::containers::{Content, DictSlot, ListSlot, Slab, TRACES_MAX};
use super::error::SnapshotFault;
use super::events::EventLog;
use super::found::ReadParts;
use super::intern::Tables;
use super::keys;
use super::owners;
use super::shapes::{self, Shape, Skipped};
use super::value::{Kind, Memo, Value};

/// Maximum number of top-level keys that are searched for the one of a list; torch writes six.
const TOP_KEYS_SEARCHED: usize = 64;

/// An error with a container; the machine adds the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// More open containers than any snapshot has.
    TooManyOpen,
    /// A frame or a stack changed after it had been used.
    ChangedAfterUse,
    /// More streams and pools than a log can number.
    TooManyLanes,
}

impl Misuse {
    pub(crate) fn at(self, at: u64) -> SnapshotFault {
        match self {
            Self::TooManyOpen => SnapshotFault::TooDeep { what: "more than 65536 open containers", at },
            Self::ChangedAfterUse => SnapshotFault::Unsupported { what: "a container that changes after its use", at },
            Self::TooManyLanes => SnapshotFault::Unsupported { what: "more than 2^24 streams and pools", at },
        }
    }
}

/// All containers and tables, and the parts found so far.
pub(crate) struct Heap {
    pub(crate) memo: Memo,
    pub(crate) tables: Tables,
    pub(crate) found: ReadParts,
    dicts: Slab<DictSlot>,
    lists: Slab<ListSlot>,
}

impl Heap {
    pub(crate) fn new() -> Self {
        Self {
            memo: Memo::default(),
            tables: Tables::new(),
            found: ReadParts::default(),
            dicts: Slab::default(),
            lists: Slab::default(),
        }
    }

    /// Upper estimate of the bytes held in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.memo.held_bytes() + self.tables.held_bytes() + self.found.held_bytes()
    }

    #[inline]
    pub(crate) fn new_dict(&mut self, is_root: bool) -> Result<Value, Misuse> {
        self.dicts.open(is_root).map(|slot| Value::refer(Kind::Dict, slot)).ok_or(Misuse::TooManyOpen)
    }

    #[inline]
    pub(crate) fn new_list(&mut self) -> Result<Value, Misuse> {
        self.lists.open().map(|slot| Value::refer(Kind::List, slot)).ok_or(Misuse::TooManyOpen)
    }

    /// Whether this value is a dict that can be read as an item: an event, a frame, a segment, …
    pub(crate) fn is_complete_item(&self, value: Value) -> bool {
        value.id(Kind::Dict).is_some_and(|slot| Shape::of(self.dicts.at(slot)) != Shape::Other)
    }

    /// Puts a value on the stack into the memo.
    #[inline]
    pub(crate) fn memoize(&mut self, value: Value, index: u64) {
        let memo = match value.kind() {
            Kind::Dict => &mut self.dicts.at_mut(value.id(Kind::Dict).unwrap_or(0)).memo,
            Kind::List => &mut self.lists.at_mut(value.id(Kind::List).unwrap_or(0)).memo,
            _ => return self.memo.put(index, value),
        };
        if memo.is_none() {
            *memo = Some(index);
            self.memo.put(index, value);
        } else {
            // The container is in the memo already. A slot has only one index, so the second index gets the result.
            let shared = self.share(value);
            self.memo.put(index, shared);
        }
    }

    /// The value for a second reference. This fixes the result of a frame or a stack. Other containers stay with their
    /// only owner.
    #[inline]
    pub(crate) fn share(&mut self, value: Value) -> Value {
        match value.kind() {
            Kind::Dict => value.id(Kind::Dict).map_or(Value::OPAQUE, |slot| self.share_dict(slot)),
            Kind::List => value.id(Kind::List).map_or(Value::OPAQUE, |slot| self.share_list(slot)),
            _ => value,
        }
    }

    fn share_dict(&mut self, slot: u32) -> Value {
        let dict = self.dicts.at_mut(slot);
        if dict.shared.is_none() && Shape::of(dict) == Shape::Frame {
            dict.shared = Some(frame_value(dict, &mut self.tables));
        }
        dict.shared.unwrap_or(Value::OPAQUE)
    }

    fn share_list(&mut self, slot: u32) -> Value {
        let list = self.lists.at_mut(slot);
        if list.shared.is_none() && matches!(list.content, Content::Frames) {
            list.shared = Some(stack_value(&list.frames, &mut self.tables));
        }
        list.shared.unwrap_or(Value::OPAQUE)
    }

    /// Consumes a value of any kind. The result needs no slot.
    #[inline]
    pub(crate) fn close(&mut self, value: Value) -> Value {
        match value.kind() {
            Kind::Dict => value.id(Kind::Dict).map_or(Value::OPAQUE, |slot| {
                let settled = self.share_dict(slot);
                self.release_dict(slot, settled);
                settled
            }),
            Kind::List => value.id(Kind::List).map_or(Value::OPAQUE, |slot| {
                let settled = self.share_list(slot);
                self.release_list(slot, settled);
                settled
            }),
            _ => value,
        }
    }

    #[inline]
    fn release_dict(&mut self, slot: u32, settled: Value) {
        if let Some(index) = self.dicts.at(slot).memo {
            self.settle(index, Value::refer(Kind::Dict, slot), settled);
        }
        self.dicts.release(slot);
    }

    #[inline]
    fn release_list(&mut self, slot: u32, settled: Value) {
        let list = self.lists.at_mut(slot);
        list.content = Content::Empty;
        if let Some(index) = list.memo {
            self.settle(index, Value::refer(Kind::List, slot), settled);
        }
        self.lists.release(slot);
    }

    /// Replaces the memo's entry of an open container, unless the entry has been set to another value since.
    #[inline]
    fn settle(&mut self, index: u64, open: Value, settled: Value) {
        if self.memo.get(index) == Some(open) {
            self.memo.put(index, settled);
        }
    }

    /// Adds `key: value` pairs to a value on the stack, if it is a dict.
    #[inline]
    pub(crate) fn set_items(&mut self, dict: Value, pairs: &[Value]) -> Result<(), Misuse> {
        for pair in pairs.chunks_exact(2) {
            match dict.id(Kind::Dict) {
                Some(slot) => self.set_item(slot, pair[0], pair[1])?,
                None => pair.iter().for_each(|&value| _ = self.close(value)),
            }
        }
        Ok(())
    }

    #[inline]
    fn set_item(&mut self, slot: u32, key: Value, value: Value) -> Result<(), Misuse> {
        if self.dicts.at(slot).shared.is_some() {
            return Err(Misuse::ChangedAfterUse);
        }
        let Some(word) = key.id(Kind::Str) else {
            self.close(key);
            self.close(value);
            return Ok(());
        };
        if self.dicts.at(slot).is_root {
            self.set_top(word, value);
        } else if (word as usize) < keys::DICT_KEYS {
            let settled = match value.kind() {
                Kind::List if word == keys::BLOCKS => self.take_blocks(slot, value),
                Kind::Dict if word == keys::ROUNDUP_DIVISIONS => self.take_roundups(slot, value),
                Kind::Dict | Kind::List => self.close(value),
                _ => value,
            };
            self.dicts.at_mut(slot).set(word, settled);
        } else {
            self.close(value);
        }
        Ok(())
    }

    fn take_blocks(&mut self, slot: u32, value: Value) -> Value {
        if let Some(list) = value.id(Kind::List)
            && let Content::Blocks(blocks) = &mut self.lists.at_mut(list).content
        {
            self.dicts.at_mut(slot).blocks = std::mem::take(blocks);
        }
        self.close(value)
    }

    /// Copies the sixteen divisions into the settings themselves.
    fn take_roundups(&mut self, slot: u32, value: Value) -> Value {
        if let Some(inner) = value.id(Kind::Dict) {
            for key in (keys::ROUNDUP_FIRST..).take(keys::ROUNDUPS) {
                let division = self.dicts.at(inner).get(key);
                self.dicts.at_mut(slot).set(key, division);
            }
        }
        self.close(value)
    }

    /// Handles a top-level key of the snapshot.
    fn set_top(&mut self, word: u32, value: Value) {
        self.found.note_key(self.tables.text_at(word));
        let content =
            value.id(Kind::List).map(|slot| std::mem::replace(&mut self.lists.at_mut(slot).content, Content::Empty));
        match (word, content) {
            (keys::DEVICE_TRACES, Some(Content::Traces(traces))) => self.found.traces = Some(traces),
            (keys::DEVICE_TRACES, Some(Content::Empty)) => self.found.traces = Some(Vec::new()),
            (keys::SEGMENTS, Some(Content::Segments(segments))) => self.found.segments = segments,
            (keys::EXTERNAL_ANNOTATIONS, Some(Content::Annotations(annotations))) => {
                self.found.annotations = annotations;
            }
            (keys::ALLOCATOR_SETTINGS, None) => {
                if let Some(slot) = value.id(Kind::Dict) {
                    self.found.take_settings(self.dicts.at(slot), &self.tables);
                }
            }
            _ => {}
        }
        self.close(value);
    }

    /// Appends items to a value on the stack, if it is a list. `below` is the stack below the list.
    #[inline]
    pub(crate) fn extend(&mut self, list: Value, items: &[Value], below: &[Value]) -> Result<(), Misuse> {
        let Some(slot) = list.id(Kind::List) else {
            items.iter().for_each(|&item| _ = self.close(item));
            return Ok(());
        };
        if self.lists.at(slot).shared.is_some() && !items.is_empty() {
            return Err(Misuse::ChangedAfterUse);
        }
        for &item in items {
            match item.kind() {
                Kind::Frame => self.push_frame(slot, FrameId(item.id(Kind::Frame).unwrap_or(0))),
                Kind::Dict => self.push_dict(slot, item, below)?,
                Kind::List => self.push_list(slot, item),
                // An empty list that is used twice is opaque.
                Kind::Opaque => self.push_trace(slot, None),
                _ => self.not_of_interest(slot),
            }
        }
        Ok(())
    }

    fn not_of_interest(&mut self, slot: u32) {
        let content = &mut self.lists.at_mut(slot).content;
        if matches!(content, Content::Empty) {
            *content = Content::Other;
        }
    }

    #[inline]
    fn push_frame(&mut self, slot: u32, frame: FrameId) {
        let list = self.lists.at_mut(slot);
        if matches!(list.content, Content::Empty) {
            list.content = Content::Frames;
        }
        if matches!(list.content, Content::Frames) {
            list.frames.push(frame);
        }
    }

    #[inline]
    fn push_dict(&mut self, slot: u32, item: Value, below: &[Value]) -> Result<(), Misuse> {
        let Some(dict) = item.id(Kind::Dict) else { return Ok(()) };
        let shape = Shape::of(self.dicts.at(dict));
        if shape == Shape::Frame {
            match self.close(item).id(Kind::Frame) {
                Some(frame) => self.push_frame(slot, FrameId(frame)),
                None => self.not_of_interest(slot),
            }
            return Ok(());
        }
        if matches!(self.lists.at(slot).content, Content::Empty) {
            self.lists.at_mut(slot).content = match shape {
                _ if !self.is_read(below) => Content::Other,
                Shape::Event => Content::Events(Box::new(EventLog::new())),
                Shape::Block => Content::Blocks(Vec::new()),
                Shape::Segment => Content::Segments(Vec::new()),
                Shape::Annotation => Content::Annotations(Vec::new()),
                Shape::Frame | Shape::Other => Content::Other,
            };
        }
        let result = self.store(slot, dict, shape);
        self.release_dict(dict, Value::OPAQUE);
        result
    }

    /// Stores a dict's content in the list that consumes it.
    #[inline]
    fn store(&mut self, slot: u32, dict: u32, shape: Shape) -> Result<(), Misuse> {
        let (list, dict, found) = (self.lists.at_mut(slot), self.dicts.at_mut(dict), &mut self.found);
        match (&mut list.content, shape) {
            (Content::Events(log), Shape::Event) => {
                found.event_keys |= dict.seen;
                found.remarks.events_with_metadata += u64::from(shapes::has_metadata(dict));
                match shapes::event(dict, &self.tables) {
                    Ok(mut event) => {
                        let owner = shapes::owner(dict);
                        if owner != keys::EMPTY && owners::is_owned(event.action) {
                            event.stack = self.tables.owned(event.stack, owner);
                        } else if event.action == Action::Annotate {
                            // The annotation has no name, and its own stack did not request the block.
                            event.stack = StackId::NONE;
                        }
                        found.order_in_time(&mut event, &mut list.last_ns, dict.has(keys::TIME_US));
                        log.push(event).map_err(|_| Misuse::TooManyLanes)?;
                        found.events += 1;
                    }
                    Err(Skipped::UnknownAction) => found.remarks.unknown_actions += 1,
                    Err(Skipped::Malformed) => found.remarks.malformed_entries += 1,
                }
            }
            (Content::Blocks(blocks), Shape::Block) => match shapes::block(dict) {
                Some(mut block) => {
                    let owner = shapes::owner(dict);
                    if owner != keys::EMPTY && block.usage != BlockUse::Inactive {
                        block.stack = self.tables.owned(block.stack, owner);
                    }
                    found.blocks += 1;
                    blocks.push(block);
                }
                None => found.remarks.malformed_entries += 1,
            },
            (Content::Segments(segments), Shape::Segment) => match shapes::segment(dict, &self.tables) {
                Some(segment) => {
                    found.blocks += 1;
                    segments.push(segment);
                }
                None => found.remarks.malformed_entries += 1,
            },
            (Content::Annotations(annotations), Shape::Annotation) => match shapes::annotation(dict, &self.tables) {
                Some(annotation) => {
                    found.blocks += 1;
                    annotations.push(annotation);
                }
                None => found.remarks.malformed_entries += 1,
            },
            _ => {}
        }
        Ok(())
    }

    fn push_list(&mut self, slot: u32, item: Value) {
        let Some(inner) = item.id(Kind::List) else { return };
        match std::mem::replace(&mut self.lists.at_mut(inner).content, Content::Empty) {
            Content::Events(log) => self.push_trace(slot, Some(log)),
            Content::Empty => self.push_trace(slot, None),
            content => {
                self.lists.at_mut(inner).content = content;
                self.not_of_interest(slot);
            }
        }
        self.close(item);
    }

    fn push_trace(&mut self, slot: u32, log: Option<Box<EventLog>>) {
        let list = self.lists.at_mut(slot);
        if matches!(list.content, Content::Empty) {
            list.content = Content::Traces(Vec::new());
        }
        match &mut list.content {
            Content::Traces(traces) if traces.len() < TRACES_MAX => traces.push(log),
            Content::Traces(_) => self.found.traces_refused += u64::from(log.is_some()),
            _ => {}
        }
    }

    /// Whether memctl reads the top-level key to which the top of the stack belongs.
    fn is_read(&self, below: &[Value]) -> bool {
        let is_root = |&top: &Value| top.id(Kind::Dict).is_some_and(|slot| self.dicts.at(slot).is_root);
        if !below.first().is_some_and(is_root) {
            return true;
        }
        let mut key = None;
        for &value in below[1..].iter().step_by(2).take(TOP_KEYS_SEARCHED) {
            match value.id(Kind::Str) {
                Some(word) => key = Some(word),
                None => break,
            }
        }
        key.is_none_or(keys::is_read_at_top)
    }

    /// A description of the value in words.
    pub(crate) fn describe(&self, value: Value) -> String {
        match value.kind() {
            Kind::Dict if self.found.top_keys.is_empty() => "an empty dict".into(),
            Kind::Dict => format!("a dict with the keys {}", self.found.top_keys.join(", ")),
            Kind::List => match value.id(Kind::List).map(|slot| &self.lists.at(slot).content) {
                Some(Content::Segments(segments)) => {
                    format!("a list of {} segments, as torch.cuda.memory_snapshot() gives it", segments.len())
                }
                Some(Content::Events(log)) => format!("a bare list of {} trace entries", log.len()),
                Some(Content::Empty) => "an empty list".into(),
                _ => "a list".into(),
            },
            Kind::Str => "a string".into(),
            Kind::Int => "a number".into(),
            Kind::None => "None".into(),
            _ => "another object".into(),
        }
    }
}

fn frame_value(dict: &DictSlot, tables: &mut Tables) -> Value {
    shapes::frame(dict, tables).map_or(Value::OPAQUE, |frame| Value::refer(Kind::Frame, frame))
}

fn stack_value(frames: &[FrameId], tables: &mut Tables) -> Value {
    let stack = tables.stack(frames);
    if stack.is_some() { Value::refer(Kind::Stack, stack.0) } else { Value::OPAQUE }
}
