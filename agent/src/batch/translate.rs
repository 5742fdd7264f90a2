//! Translates the content of a trainer's region for the batcher. Ticks become times, stack ids of the region become ids
//! of the session, and encoded notes are decoded.
//!
//! Guarantees: a stack enters the session's dictionary before the first event that refers to it. Times of events never
//! run backwards by more than the trainer's clock did.
//! Refuses: to trust ids and bytes of the region. An unknown id becomes "no stack", and an unreadable note is left out.

use std::collections::HashMap;
use std::sync::Arc;

use memctl_model::limits::{SESSION_OWNED_STACKS_MAX, SESSION_STACKS_MAX};
use memctl_model::{Action, Event, Frame, Mark, StackId};

use super::Batcher;
use super::note::Note;
use crate::clock::{self, TickClock};
use crate::python::{lines, names};
use crate::region::dictionary::{self, Entry};
use crate::region::messages::{self, NoteContent};
use crate::region::{Region, State, notes};
use crate::ring::Record;

/// A code object of the region's dictionary.
struct Code {
    file: Arc<str>,
    name: Arc<str>,
    first_line: u32,
    table: Vec<u8>,
}

/// A stack of the region's dictionary.
struct Stack {
    id: StackId,
    frames: Box<[Frame]>,
}

/// Translates between a region and the batcher.
pub(crate) struct Translator {
    python: (u8, u8),
    region: Arc<Region>,
    clock: TickClock,
    notes: notes::Reader,
    dictionary: dictionary::Reader,
    codes: Vec<Code>,
    /// Stacks, indexed by the region's id minus one.
    stacks: Vec<Stack>,
    /// Stacks of annotated blocks, by the block's stack and the annotation's.
    annotated: HashMap<(StackId, StackId), StackId>,
    /// For each of these stacks, the index in `stacks` of the request's stack.
    bases: HashMap<StackId, usize>,
    failure: Option<String>,
    malformed: u64,
    /// Remaining samples of the note that is being passed on.
    samples: Vec<memctl_model::Sample>,
}

impl Translator {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self {
            python: (0, 0),
            clock: TickClock::start(),
            notes: region.notes_reader(),
            dictionary: dictionary::Reader::new(region.clone()),
            codes: Vec::new(),
            stacks: Vec::new(),
            annotated: HashMap::new(),
            bases: HashMap::new(),
            failure: None,
            malformed: 0,
            samples: Vec::new(),
            region,
        }
    }

    /// Adds the time and the stack to an event of the `place`th device.
    #[inline]
    pub(crate) fn event(&mut self, record: &Record, place: usize, batcher: &mut Batcher) -> Event {
        let mut event = record.event(|ticks| self.clock.ns(ticks));
        if event.stack.is_some() {
            let id = event.stack;
            event.stack = self.stack(id, batcher);
            if event.action == Action::Annotate {
                event.stack = self.annotated(id, batcher.block_stack(place, event.addr), batcher);
            }
        }
        event
    }

    /// The stack of a block with an annotation's name: the request's stack, with any earlier name replaced.
    #[cold]
    fn annotated(&mut self, annotation: StackId, block: StackId, batcher: &mut Batcher) -> StackId {
        if let Some(&known) = self.annotated.get(&(block, annotation)) {
            return known;
        }
        let name = self.frames(annotation.0).first().filter(|frame| frame.owner().is_some()).cloned();
        let known = self.bases.get(&block).copied();
        let base = known.or_else(|| self.stacks.iter().position(|stack| stack.id == block && block.is_some()));
        let calls = base.and_then(|at| self.stacks.get(at)).map_or(&[][..], |stack| &stack.frames);
        let Some(name) = name.filter(|_| self.annotated.len() < SESSION_OWNED_STACKS_MAX) else { return block };
        let calls = calls.iter().filter(|frame| frame.owner().is_none()).cloned();
        let frames: Vec<Frame> = std::iter::once(name).chain(calls).collect();
        let id = batcher.stack(&frames);
        self.annotated.insert((block, annotation), id);
        self.bases.extend(base.map(|base| (id, base)));
        id
    }

    #[inline]
    fn stack(&mut self, id: StackId, batcher: &mut Batcher) -> StackId {
        let place = id.0 as usize - 1;
        if place >= self.stacks.len() {
            self.read_dictionary(batcher);
        }
        self.stacks.get(place).map_or(StackId::NONE, |stack| stack.id)
    }

    #[cold]
    fn read_dictionary(&mut self, batcher: &mut Batcher) {
        self.python = self.region.python().unwrap_or_default();
        while let Some(entry) = self.dictionary.pop() {
            let frames = match entry {
                Entry::Code { first_line, file, name, table } => {
                    self.codes.push(Code { file: file.into(), name: name.into(), first_line, table });
                    continue;
                }
                Entry::Stack(frames) => frames
                    .into_iter()
                    .filter(|&(code, _)| !self.is_ours(code))
                    .map(|(code, lasti)| self.frame(code, lasti))
                    .collect(),
                Entry::Node { forward, type_name } => self.node(forward, &type_name),
                Entry::Owner { stack, name } => std::iter::once(Frame::of_owner(&name))
                    .chain(self.frames(stack).iter().filter(|frame| frame.owner().is_none()).cloned())
                    .collect(),
            };
            self.add(frames, batcher);
        }
    }

    fn add(&mut self, frames: Box<[Frame]>, batcher: &mut Batcher) {
        let id = match self.stacks.len() < SESSION_STACKS_MAX {
            true => batcher.stack(&frames),
            false => StackId::NONE,
        };
        self.stacks.push(Stack { id, frames });
    }

    /// Whether a code object is one of memctl's own wrappers (of `backward`, `DataLoader.__iter__`, …). Their frames
    /// are between the user's frames and torch's frames and are left out.
    fn is_ours(&self, code: u32) -> bool {
        self.codes.get(code as usize).is_some_and(|code| code.file.contains("/memctl_agent/"))
    }

    fn frame(&self, code: u32, lasti: u32) -> Frame {
        match self.codes.get(code as usize) {
            Some(code) => Frame {
                function: code.name.clone(),
                file: code.file.clone(),
                line: lines::line(self.python, code.first_line, &code.table, lasti).unwrap_or(code.first_line),
            },
            None => Frame { function: "?".into(), file: "".into(), line: 0 },
        }
    }

    /// The frames of an allocation in the backward pass: the node, then the forward call that made it.
    fn node(&self, forward: u32, type_name: &str) -> Box<[Frame]> {
        let node = Frame { function: names::node_name(type_name).into(), file: "<autograd>".into(), line: 0 };
        std::iter::once(node).chain(self.frames(forward).iter().cloned()).collect()
    }

    /// The frames of a stack of the region; empty if the id is 0 or unknown.
    fn frames(&self, id: u32) -> &[Frame] {
        self.stacks.get((id as usize).wrapping_sub(1)).map_or(&[][..], |stack| &stack.frames)
    }

    /// The next note of the trainer.
    pub(crate) fn next_note(&mut self) -> Option<Note> {
        loop {
            if let Some(sample) = self.samples.pop() {
                return Some(Note::Sample(Box::new(sample)));
            }
            let bytes = self.notes.pop()?;
            match messages::read(&bytes) {
                Some(NoteContent::Mark(ticks, kind, positions)) => {
                    return Some(Note::Mark(Mark { time_ns: self.clock.ns(ticks), kind }, positions));
                }
                Some(NoteContent::Samples(samples)) => self.samples = samples,
                Some(NoteContent::Keyframe(keyframe, position)) => return Some(Note::Keyframe(keyframe, position)),
                Some(NoteContent::Holders(ask, json)) => return Some(Note::Holders(ask, json)),
                Some(NoteContent::Settled(positions)) => return Some(Note::Settled(positions)),
                Some(NoteContent::Failure(text)) => self.failure = Some(text),
                None => self.malformed(),
            }
        }
    }

    fn malformed(&mut self) {
        if self.malformed == 0 {
            tracing::warn!("a note of the trainer cannot be read and is left out");
        }
        self.malformed += 1;
    }

    /// The failure that the trainer reported, if it did.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// The current time on the events' clock.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.ns(clock::ticks())
    }

    /// Whether the trainer has reported that it is ending.
    pub(crate) fn goes_down(&self) -> bool {
        self.region.state() != State::Running
    }

    /// Refines the clock's rate.
    pub(crate) fn refine(&mut self) {
        self.clock.refine();
    }
}
