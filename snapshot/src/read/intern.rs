//! Interning: equal strings, frames, stacks and pairs are stored once and referred to by a number.
//!
//! Guarantees: the limits of memctl's model apply. Long names are cut; stacks beyond the limits count as no stack and
//! are counted. Hashing is seeded, so that a file cannot provoke collisions.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;

use memctl_model::limits::{
    NAME_BYTES_MAX, SESSION_FRAMES_MAX, SESSION_OWNED_STACKS_MAX, SESSION_STACKS_MAX, STACK_FRAMES_MAX,
};
use memctl_model::{Frame, FrameId, PoolId, StackId};

use super::keys;

/// Upper estimate of the cost of an interned item besides its content: map entry, vector entry, allocation.
const OVERHEAD_BYTES: u64 = 96;

/// All tables of one recording.
pub(crate) struct Tables {
    texts: Vec<Arc<str>>,
    text_ids: HashMap<Arc<str>, u32>,
    frames: Vec<Frame>,
    frame_ids: HashMap<(u32, u32, u32), u32>,
    stacks: Vec<Vec<FrameId>>,
    stack_ids: HashMap<u64, u32>,
    hasher: RandomState,
    /// Stacks with an owner's name, by the stack without it and the number of the name's text.
    owned: HashMap<(StackId, u32), StackId>,
    /// For each such stack: the stack without the owner's name, and the number of the name's text.
    owners: HashMap<StackId, (StackId, u32)>,
    pairs: Vec<(u64, u64)>,
    pair_ids: HashMap<(u64, u64), u32>,
    held_bytes: u64,
    /// Number of stacks and frames beyond the limits.
    pub(crate) refused: u64,
    /// How often a stack did not get its owner's name because there are too many.
    pub(crate) owners_refused: u64,
}

impl Tables {
    pub(crate) fn new() -> Self {
        let mut tables = Self {
            texts: Vec::new(),
            text_ids: HashMap::new(),
            frames: Vec::new(),
            frame_ids: HashMap::new(),
            stacks: Vec::new(),
            stack_ids: HashMap::new(),
            hasher: RandomState::new(),
            owned: HashMap::new(),
            owners: HashMap::new(),
            pairs: Vec::new(),
            pair_ids: HashMap::new(),
            held_bytes: 0,
            refused: 0,
            owners_refused: 0,
        };
        for word in keys::words() {
            tables.text(word);
        }
        tables
    }

    /// Upper estimate of the bytes held in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The number of a string.
    pub(crate) fn text(&mut self, text: &str) -> u32 {
        if let Some(&id) = self.text_ids.get(text) {
            return id;
        }
        let id = self.texts.len() as u32;
        let text: Arc<str> = text.into();
        self.held_bytes += text.len() as u64 + OVERHEAD_BYTES;
        self.texts.push(Arc::clone(&text));
        self.text_ids.insert(text, id);
        id
    }

    /// The number of a string given as bytes. Only the first [`NAME_BYTES_MAX`] bytes count.
    #[inline]
    pub(crate) fn text_of_bytes(&mut self, bytes: &[u8]) -> u32 {
        if bytes.is_empty() {
            return keys::EMPTY;
        }
        let cut = &bytes[..bytes.len().min(NAME_BYTES_MAX)];
        match std::str::from_utf8(cut) {
            Ok(text) => self.text(text),
            Err(_) => self.text(&String::from_utf8_lossy(cut)),
        }
    }

    /// The string of a number.
    pub(crate) fn text_at(&self, id: u32) -> &Arc<str> {
        // All numbers come from `text`. For any other number the empty word is returned.
        self.texts.get(id as usize).unwrap_or(&self.texts[keys::EMPTY as usize])
    }

    /// The number of a frame; `None` if there are too many.
    pub(crate) fn frame(&mut self, name: u32, file: u32, line: u32) -> Option<u32> {
        if let Some(&id) = self.frame_ids.get(&(name, file, line)) {
            return Some(id);
        }
        if self.frames.len() >= SESSION_FRAMES_MAX {
            self.refused += 1;
            return None;
        }
        let id = self.frames.len() as u32;
        let frame = Frame { function: Arc::clone(self.text_at(name)), file: Arc::clone(self.text_at(file)), line };
        self.held_bytes += OVERHEAD_BYTES;
        self.frames.push(frame);
        self.frame_ids.insert((name, file, line), id);
        Some(id)
    }

    /// The number of a stack of frames, innermost first. Stacks that are too deep are cut at the outer end.
    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> StackId {
        let frames = &frames[..frames.len().min(STACK_FRAMES_MAX)];
        if frames.is_empty() {
            return StackId::NONE;
        }
        let mut hash = self.hasher.hash_one(frames);
        loop {
            match self.stack_ids.entry(hash) {
                Entry::Occupied(entry) if self.stacks[*entry.get() as usize] == frames => {
                    return StackId(*entry.get() + 1);
                }
                // If two stacks have the same hash, the later one is stored at the next free number.
                Entry::Occupied(_) => hash = hash.wrapping_add(1),
                Entry::Vacant(_) if self.stacks.len() >= SESSION_STACKS_MAX => {
                    self.refused += 1;
                    return StackId::NONE;
                }
                Entry::Vacant(entry) => {
                    entry.insert(self.stacks.len() as u32);
                    self.stacks.push(frames.to_vec());
                    self.held_bytes += frames.len() as u64 * 4 + OVERHEAD_BYTES;
                    return StackId(self.stacks.len() as u32);
                }
            }
        }
    }

    /// The number of a stack with this owner's name, which replaces the stack's present owner's name.
    pub(crate) fn owned(&mut self, stack: StackId, name: u32) -> StackId {
        let calls = self.owner(stack).map_or(stack, |(calls, _)| calls);
        if name == keys::EMPTY {
            return calls;
        }
        if let Some(&known) = self.owned.get(&(calls, name)) {
            return known;
        }
        if self.owned.len() >= SESSION_OWNED_STACKS_MAX {
            self.owners_refused += 1;
            return calls;
        }
        let Frame { function, file, line } = Frame::of_owner(self.text_at(name));
        let (function, file) = (self.text(&function), self.text(&file));
        let Some(frame) = self.frame(function, file, line) else { return calls };
        let below = calls.0.checked_sub(1).and_then(|at| self.stacks.get(at as usize)).map_or(&[][..], Vec::as_slice);
        let frames: Vec<FrameId> = [FrameId(frame)].iter().chain(below).copied().collect();
        let owned = self.stack(&frames);
        self.held_bytes += 2 * OVERHEAD_BYTES;
        self.owned.insert((calls, name), owned);
        self.owners.insert(owned, (calls, name));
        owned
    }

    /// The stack without its owner's name, and the number of the name's text, if it has one.
    pub(crate) fn owner(&self, stack: StackId) -> Option<(StackId, u32)> {
        self.owners.get(&stack).copied()
    }

    /// Whether any stack has an owner's name.
    pub(crate) fn has_owners(&self) -> bool {
        !self.owned.is_empty()
    }

    /// The number of a pair.
    pub(crate) fn pair(&mut self, pair: (u64, u64)) -> u32 {
        *self.pair_ids.entry(pair).or_insert_with(|| {
            self.held_bytes += OVERHEAD_BYTES;
            self.pairs.push(pair);
            (self.pairs.len() - 1) as u32
        })
    }

    /// The pool that a pair names; `None` if a half is too large.
    pub(crate) fn pool_at(&self, id: u32) -> Option<PoolId> {
        let &(first, second) = self.pairs.get(id as usize)?;
        Some(PoolId { first: u32::try_from(first).ok()?, second: u32::try_from(second).ok()? })
    }

    /// Returns the frames and stacks.
    pub(crate) fn into_stacks(self) -> (Vec<Frame>, Vec<Vec<FrameId>>) {
        (self.frames, self.stacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_thing_has_one_number() {
        let mut tables = Tables::new();
        assert_eq!(tables.text("action"), keys::ACTION);
        let (f, g) = (tables.text("f"), tables.text("g"));
        assert_ne!(f, g);
        let frame = tables.frame(f, g, 3).unwrap();
        assert_eq!(tables.frame(f, g, 3), Some(frame));
        assert_ne!(tables.frame(f, g, 4), Some(frame));
        let stack = tables.stack(&[FrameId(frame), FrameId(frame)]);
        assert_eq!(stack, StackId(1));
        assert_eq!(tables.stack(&[FrameId(frame), FrameId(frame)]), stack);
        assert_eq!(tables.stack(&[FrameId(frame)]), StackId(2));
        assert_eq!(tables.stack(&[]), StackId::NONE);
    }

    #[test]
    fn a_stack_has_one_owner_and_their_number_is_bounded() {
        let mut tables = Tables::new();
        let (f, name, other) = (tables.text("f"), tables.text("KV cache"), tables.text("weights"));
        let frame = tables.frame(f, f, 3).unwrap();
        let stack = tables.stack(&[FrameId(frame)]);
        let owned = tables.owned(stack, name);
        assert_eq!((tables.owned(stack, name), tables.owner(owned)), (owned, Some((stack, name))));
        assert_eq!(
            tables.owned(owned, other),
            tables.owned(stack, other),
            "the later name takes the place of the first"
        );
        assert_eq!(tables.owned(owned, keys::EMPTY), stack);
        let alone = tables.owned(StackId::NONE, name);
        assert_eq!(tables.owner(alone), Some((StackId::NONE, name)));
        for number in 0..SESSION_OWNED_STACKS_MAX + 5 {
            let name = tables.text(&number.to_string());
            tables.owned(stack, name);
        }
        assert_eq!((tables.owned.len(), tables.owners_refused), (SESSION_OWNED_STACKS_MAX, 8));
        let (frames, stacks) = tables.into_stacks();
        let frames_of = |id: StackId| stacks[id.0 as usize - 1].iter().map(|frame| frames[frame.0 as usize].clone());
        assert_eq!(frames_of(owned).collect::<Vec<_>>()[0].owner(), Some("KV cache"));
        assert_eq!(frames_of(owned).count(), 2);
    }

    #[test]
    fn long_names_and_deep_stacks_are_cut() {
        let mut tables = Tables::new();
        let id = tables.text_of_bytes(&vec![b'x'; NAME_BYTES_MAX * 2]);
        assert_eq!(tables.text_at(id).len(), NAME_BYTES_MAX);
        let stack = tables.stack(&vec![FrameId(0); STACK_FRAMES_MAX + 9]);
        let (_, stacks) = tables.into_stacks();
        assert_eq!(stacks[stack.0 as usize - 1].len(), STACK_FRAMES_MAX);
    }
}
