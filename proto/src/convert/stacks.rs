//! The session's dictionary of stacks. Strings, frames and stacks are sent once, in the order of their ids.
//!
//! [`StackSender`] is the agent's side, and [`StackDictionary`] is the reader's. A stack shares its outer frames with
//! the previous stack in the batch, because call stacks mostly differ in their innermost frames.
//!
//! Guarantees: a dictionary takes at most [`SESSION_STACK_BYTES_MAX`] for any batches. Frames that stacks share are
//! stored once.
//! Refuses: non-consecutive ids, references to entries that were never sent, and more entries than the limits allow.
//! (Over 400 lines: sender and reader are two sides of one definition and share its limits.)

use std::collections::HashMap;
use std::sync::Arc;

use memctl_model::limits::{
    NAME_BYTES_MAX, SESSION_FRAMES_MAX, SESSION_STACK_BYTES_MAX, SESSION_STACKS_MAX, STACK_FRAMES_MAX,
};
use memctl_model::{Frame, FrameId, Stack, StackId};

use super::{WireError, at_most, even};
use crate::v1;

/// Interns frames and writes new ones into batches.
#[derive(Default)]
pub struct StackSender {
    strings: HashMap<Arc<str>, u32>,
    frames: HashMap<Frame, u32>,
    stacks: u32,
    batch: v1::StackBatch,
    batch_bytes: usize,
    /// Bytes that the receiver's dictionary takes. The receiver refuses more than [`SESSION_STACK_BYTES_MAX`].
    received_bytes: usize,
    previous: Vec<u32>,
}

impl StackSender {
    /// Adds the next stack, innermost frame first, and returns its id. Returns [`StackId::NONE`] once the session's
    /// limit is reached. Frames beyond the depth limit are cut at the outer end, long names at their end.
    pub fn add(&mut self, stack: &[Frame]) -> StackId {
        if self.stacks as usize >= SESSION_STACKS_MAX || self.frames.len() + STACK_FRAMES_MAX > SESSION_FRAMES_MAX {
            return StackId::NONE;
        }
        if self.received_bytes + most_bytes(stack) > SESSION_STACK_BYTES_MAX {
            return StackId::NONE;
        }
        let ids: Vec<u32> = stack.iter().take(STACK_FRAMES_MAX).map(|frame| self.frame(frame)).collect();
        let shared = ids.iter().rev().zip(self.previous.iter().rev()).take_while(|(a, b)| a == b).count();
        self.batch.stack_shared.push(shared as u32);
        self.batch.stack_new.push((ids.len() - shared) as u32);
        self.batch.stack_frames.extend(&ids[..ids.len() - shared]);
        // The varint of a frame's id has at most 5 bytes. The two lengths also have at most 5 bytes each.
        self.batch_bytes += 5 * (ids.len() - shared) + 10;
        self.received_bytes += (ids.len() - shared) * OF_NODE + size_of::<NodeId>();
        self.previous = ids;
        self.stacks += 1;
        StackId(self.stacks)
    }

    /// The batch of everything new since the last call, if there is anything.
    pub fn take(&mut self) -> Option<v1::StackBatch> {
        if self.batch.stack_new.is_empty() {
            return None;
        }
        self.previous.clear();
        self.batch_bytes = 0;
        let next = v1::StackBatch {
            first_string: self.strings.len() as u32,
            first_frame: self.frames.len() as u32,
            first_stack: self.stacks + 1,
            ..Default::default()
        };
        Some(std::mem::replace(&mut self.batch, next)).map(|mut batch| {
            batch.first_stack = batch.first_stack.max(1);
            batch
        })
    }

    /// Number of stacks that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.batch.stack_new.len()
    }

    /// Maximum bytes of the waiting batch.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.batch_bytes
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(&id) = self.frames.get(frame) {
            return id;
        }
        let function = self.string(&frame.function);
        let file = self.string(&frame.file);
        self.batch.frame_functions.push(function);
        self.batch.frame_files.push(file);
        self.batch.frame_lines.push(frame.line);
        self.batch_bytes += 15;
        self.received_bytes += size_of::<Frame>();
        let id = self.frames.len() as u32;
        self.frames.insert(frame.clone(), id);
        id
    }

    fn string(&mut self, text: &Arc<str>) -> u32 {
        if let Some(&id) = self.strings.get(text) {
            return id;
        }
        self.batch.strings.push(text[..text.floor_char_boundary(NAME_BYTES_MAX)].to_owned());
        self.batch_bytes += text.len().min(NAME_BYTES_MAX) + 5;
        self.received_bytes += text.len().min(NAME_BYTES_MAX) + OF_NAME;
        let id = self.strings.len() as u32;
        self.strings.insert(text.clone(), id);
        id
    }
}

/// Memory overhead of a name beyond its bytes (`OF_NAME`), and memory of a frame within a stack (`OF_NODE`), here and
/// at the receiver.
const OF_NAME: usize = 48;
const OF_NODE: usize = 40;

/// Maximum memory of a stack whose frames are all new to a dictionary.
fn most_bytes(stack: &[Frame]) -> usize {
    let name = |text: &str| text.len().min(NAME_BYTES_MAX) + OF_NAME;
    let of = |frame: &Frame| name(&frame.function) + name(&frame.file) + size_of::<Frame>() + OF_NODE;
    size_of::<NodeId>() + stack.iter().take(STACK_FRAMES_MAX).map(of).sum::<usize>()
}

/// The dictionary as received.
#[derive(Clone, Debug, Default)]
pub struct StackDictionary {
    strings: Vec<Arc<str>>,
    /// Bytes of all strings.
    name_bytes: usize,
    frames: Vec<Frame>,
    /// Frames within stacks. Stacks share their outer frames.
    nodes: Vec<Node>,
    /// The innermost frame of each stack.
    stacks: Vec<NodeId>,
}

/// A frame within a stack, with its caller: an index into the nodes.
#[derive(Clone, Copy, Debug)]
struct Node {
    frame: FrameId,
    caller: NodeId,
    /// Number of frames: this one and its callers.
    depth: u32,
}

/// Index of a node; [`OUTSIDE`] for a frame without a caller.
type NodeId = u32;

const OUTSIDE: NodeId = NodeId::MAX;

impl StackDictionary {
    /// Adds a batch. Batches must be added in the order in which they were sent. After an error nothing of the batch is
    /// kept.
    ///
    /// # Errors
    /// Non-consecutive ids, references to entries that were never sent, or more entries than the limits allow.
    pub fn add(&mut self, batch: &v1::StackBatch) -> Result<(), WireError> {
        let (strings, frames) = (self.strings.len(), self.frames.len());
        let (nodes, stacks, name_bytes) = (self.nodes.len(), self.stacks.len(), self.name_bytes);
        let result = self.try_add(batch);
        if result.is_err() {
            self.strings.truncate(strings);
            self.frames.truncate(frames);
            self.nodes.truncate(nodes);
            self.stacks.truncate(stacks);
            self.name_bytes = name_bytes;
        }
        result
    }

    fn try_add(&mut self, batch: &v1::StackBatch) -> Result<(), WireError> {
        follows("string", batch.first_string, self.strings.len())?;
        follows("frame", batch.first_frame, self.frames.len())?;
        follows("stack", batch.first_stack, self.stacks.len() + 1)?;
        at_most("stacks of a session", self.stacks.len() + batch.stack_new.len(), SESSION_STACKS_MAX)?;
        at_most("frames of a session", self.frames.len() + batch.frame_lines.len(), SESSION_FRAMES_MAX)?;
        let rows = batch.frame_lines.len();
        even("frames", rows, &[batch.frame_functions.len(), batch.frame_files.len()])?;
        even("stacks", batch.stack_new.len(), &[batch.stack_shared.len()])?;
        for text in &batch.strings {
            at_most("bytes of a name", text.len(), NAME_BYTES_MAX)?;
            self.strings.push(text.as_str().into());
            self.name_bytes += text.len();
            self.within_bytes(0)?;
        }
        self.within_bytes(rows * size_of::<Frame>() + batch.stack_new.len() * size_of::<NodeId>())?;
        let string = |id: u32| {
            self.strings
                .get(id as usize)
                .cloned()
                .ok_or_else(|| WireError::invalid("frame.name", id, "a string that was sent"))
        };
        let new: Vec<Frame> = (0..rows)
            .map(|row| {
                Ok(Frame {
                    function: string(batch.frame_functions[row])?,
                    file: string(batch.frame_files[row])?,
                    line: batch.frame_lines[row],
                })
            })
            .collect::<Result<_, WireError>>()?;
        self.frames.extend(new);
        self.add_stacks(batch)
    }

    fn add_stacks(&mut self, batch: &v1::StackBatch) -> Result<(), WireError> {
        let mut rest = batch.stack_frames.as_slice();
        let first = self.stacks.len();
        for (&new, &shared) in batch.stack_new.iter().zip(&batch.stack_shared) {
            at_most("frames of a stack", new as usize + shared as usize, STACK_FRAMES_MAX)?;
            let Some((own, others)) = rest.split_at_checked(new as usize) else {
                return Err(WireError::Uneven { table: "stack_frames", left: new as usize, right: rest.len() });
            };
            rest = others;
            if let Some(id) = own.iter().find(|&&id| id as usize >= self.frames.len()) {
                return Err(WireError::invalid("stack.frame", id, "a frame that was sent"));
            }
            let previous = if self.stacks.len() > first { self.stacks.last().copied() } else { None };
            let Some(mut innermost) = self.outer(previous.unwrap_or(OUTSIDE), shared) else {
                return Err(WireError::invalid("stack.shared", shared, "at most the frames of the stack before"));
            };
            self.within_bytes(own.len() * OF_NODE)?;
            for &id in own.iter().rev() {
                let depth = self.depth(innermost) + 1;
                self.nodes.push(Node { frame: FrameId(id), caller: innermost, depth });
                innermost = (self.nodes.len() - 1) as NodeId;
            }
            self.stacks.push(innermost);
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(WireError::Uneven { table: "stack_frames", left: 0, right: rest.len() })
        }
    }

    /// Bytes of the dictionary's content.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.name_bytes
            + self.strings.len() * OF_NAME
            + self.frames.len() * size_of::<Frame>()
            + self.nodes.len() * OF_NODE
            + self.stacks.len() * size_of::<NodeId>()
    }

    /// Bytes that the dictionary takes, including the unused room of its lists. This may be twice the content.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.name_bytes
            + self.strings.capacity() * OF_NAME
            + self.frames.capacity() * size_of::<Frame>()
            + self.nodes.capacity() * OF_NODE
            + self.stacks.capacity() * size_of::<NodeId>()
    }

    fn within_bytes(&self, more: usize) -> Result<(), WireError> {
        at_most("bytes of a session's stacks", self.bytes() + more, SESSION_STACK_BYTES_MAX)
    }

    /// The frames in the order in which they were sent.
    #[must_use]
    pub fn all_frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Frames within stacks from index `from` on. Each has the frame's id and the index of its caller (`u32::MAX`
    /// without a caller). A caller precedes the frames that it calls.
    pub fn nodes(&self, from: usize) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.nodes.iter().skip(from).map(|node| (node.frame.0, node.caller))
    }

    /// Indices of the innermost frames of stacks, from stack index `from` on. A stack's index is its id minus one.
    #[must_use]
    pub fn innermost(&self, from: usize) -> &[u32] {
        self.stacks.get(from..).unwrap_or_default()
    }

    /// The innermost of the `count` outermost frames of a stack; `None` when the stack has fewer. Takes one step for
    /// each inner frame that is skipped.
    fn outer(&self, innermost: NodeId, count: u32) -> Option<NodeId> {
        let inner = self.depth(innermost).checked_sub(count)?;
        Some((0..inner).fold(innermost, |node, _| self.nodes[node as usize].caller))
    }

    fn depth(&self, node: NodeId) -> u32 {
        self.nodes.get(node as usize).map_or(0, |node| node.depth)
    }

    /// A frame and its callers, innermost first.
    fn chain(&self, innermost: NodeId) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = innermost;
        std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            next = node.caller;
            Some(node.frame)
        })
    }

    /// Number of stacks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether no stack was received.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The frames of a stack, innermost first; empty for "no stack" and for unknown ids.
    pub fn frames(&self, id: StackId) -> impl Iterator<Item = &Frame> + '_ {
        let innermost = (id.0 as usize).checked_sub(1).and_then(|index| self.stacks.get(index));
        self.chain(innermost.copied().unwrap_or(OUTSIDE)).map(|frame| &self.frames[frame.0 as usize])
    }

    /// The stack of an id; empty for "no stack" and for unknown ids.
    #[must_use]
    pub fn stack(&self, id: StackId) -> Stack {
        Stack { frames: self.frames(id).cloned().collect() }
    }

    /// The allocation site: see [`memctl_model::site_of`].
    #[must_use]
    pub fn site(&self, id: StackId) -> Option<&Frame> {
        memctl_model::site_of(self.frames(id))
    }
}

fn follows(what: &'static str, found: u32, due: usize) -> Result<(), WireError> {
    let expected = due as u32;
    if found == expected { Ok(()) } else { Err(WireError::OutOfOrder { what, found, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        ("[ab]{1,2}", "[xy]{1,2}", 0_u32..3).prop_map(|(function, file, line)| Frame {
            function: function.as_str().into(),
            file: file.as_str().into(),
            line,
        })
    }

    proptest! {
        #[test]
        fn stacks_arrive_as_they_were(
            stacks in proptest::collection::vec(proptest::collection::vec(any_frame(), 0..6), 0..20),
            cut in 1_usize..5,
        ) {
            let (mut sender, mut dictionary) = (StackSender::default(), StackDictionary::default());
            for (index, stack) in stacks.iter().enumerate() {
                prop_assert_eq!(sender.add(stack), StackId(index as u32 + 1));
                if index % cut == 0 {
                    dictionary.add(&sender.take().unwrap()).unwrap();
                }
            }
            if let Some(batch) = sender.take() {
                dictionary.add(&batch).unwrap();
            }
            prop_assert!(sender.take().is_none());
            for (index, stack) in stacks.iter().enumerate() {
                prop_assert_eq!(&dictionary.stack(StackId(index as u32 + 1)).frames, stack);
            }
        }
    }

    #[test]
    fn a_million_stacks_that_share_their_frames_take_no_more_than_their_bytes() {
        let mut sender = StackSender::default();
        let deep: Vec<Frame> = (0..STACK_FRAMES_MAX as u32)
            .map(|line| Frame { function: "f".into(), file: "a.py".into(), line })
            .collect();
        sender.add(&deep);
        let mut batch = sender.take().unwrap();
        batch.stack_shared.resize(SESSION_STACKS_MAX, STACK_FRAMES_MAX as u32);
        batch.stack_new.resize(SESSION_STACKS_MAX, 0);
        let mut dictionary = StackDictionary::default();
        dictionary.add(&batch).unwrap();
        assert_eq!((dictionary.len(), dictionary.nodes.len()), (SESSION_STACKS_MAX, STACK_FRAMES_MAX));
        assert_eq!(dictionary.stack(StackId(SESSION_STACKS_MAX as u32)).frames, deep);
    }

    /// Empty names and frames take two bytes each on the wire, but they take memory as well.
    #[test]
    fn a_session_of_many_batches_stays_within_its_bytes() {
        let names = v1::StackBatch { first_stack: 1, strings: vec![String::new(); 1 << 20], ..Default::default() };
        let mut dictionary = StackDictionary::default();
        let mut added = 0;
        while dictionary.add(&v1::StackBatch { first_string: added << 20, ..names.clone() }).is_ok() {
            added += 1;
            assert!(dictionary.bytes() <= SESSION_STACK_BYTES_MAX);
        }
        assert_eq!(added, 1, "two million empty names are too many");
        let mut sender = StackSender::default();
        let deep = vec![Frame { function: "f".into(), file: "a.py".into(), line: 1 }; STACK_FRAMES_MAX];
        sender.add(&deep);
        let mut batch = sender.take().unwrap();
        let many = 10_000;
        batch.stack_shared.resize(many, 0);
        batch.stack_new.resize(many, STACK_FRAMES_MAX as u32);
        batch.stack_frames.resize(many * STACK_FRAMES_MAX, 0);
        let mut dictionary = StackDictionary::default();
        let error = dictionary.add(&batch).expect_err("five million frames");
        assert!(error.to_string().contains("bytes of a session's stacks"), "{error}");
        assert_eq!(dictionary.bytes(), 0);
    }

    /// A correct program with an unlimited number of stacks keeps its session. Stacks beyond the limit have no frames.
    #[test]
    fn a_sender_ends_where_its_receiver_would_refuse() {
        let (mut sender, mut dictionary) = (StackSender::default(), StackDictionary::default());
        let frame = |line| Frame { function: "f".into(), file: "a.py".into(), line };
        let mut sent = 0;
        for first in (0..).step_by(STACK_FRAMES_MAX) {
            let stack: Vec<Frame> =
                (first..first + STACK_FRAMES_MAX as u32).map(|line| frame(line % 100_000)).collect();
            if sender.add(&stack) == StackId::NONE {
                break;
            }
            sent += 1;
            dictionary.add(&sender.take().expect("a new stack")).expect("what the sender sends fits");
            assert_eq!(dictionary.bytes(), sender.received_bytes);
        }
        assert!(sent > 1_000 && SESSION_STACK_BYTES_MAX - dictionary.bytes() < STACK_FRAMES_MAX * 1024, "{sent}");
    }

    #[test]
    fn a_batch_that_lies_leaves_nothing_behind() {
        let mut sender = StackSender::default();
        sender.add(&[Frame { function: "f".into(), file: "a.py".into(), line: 1 }]);
        let mut batch = sender.take().unwrap();
        batch.stack_frames[0] = 9;
        let mut dictionary = StackDictionary::default();
        assert!(matches!(dictionary.add(&batch), Err(WireError::Invalid { field: "stack.frame", .. })));
        assert!(
            dictionary.is_empty()
                && dictionary.nodes.is_empty()
                && dictionary.frames.is_empty()
                && dictionary.strings.is_empty()
        );
        batch.first_stack = 5;
        assert!(matches!(dictionary.add(&batch), Err(WireError::OutOfOrder { what: "stack", .. })));
    }
}
