//! The session's dictionary of stacks: strings, frames and stacks are sent once, in the order of their ids.
//!
//! [`StackSender`] is the agent's side, [`StackDictionary`] the reader's. A stack shares its outer
//! frames with the stack before it in the batch, because call stacks mostly differ near the leaf.

use std::collections::HashMap;
use std::sync::Arc;

use memctl_model::limits::{NAME_BYTES_MAX, SESSION_FRAMES_MAX, SESSION_STACKS_MAX, STACK_FRAMES_MAX};
use memctl_model::{Frame, FrameId, Stack, StackId};

use super::{WireError, at_most, even};
use crate::v1;

/// Interns frames and writes what is new into batches.
#[derive(Default)]
pub struct StackSender {
    strings: HashMap<Arc<str>, u32>,
    frames: HashMap<Frame, u32>,
    stacks: u32,
    batch: v1::StackBatch,
    batch_bytes: usize,
    previous: Vec<u32>,
}

impl StackSender {
    /// Adds the next stack, innermost frame first, and gives its id; [`StackId::NONE`] once the session's limit is reached. Frames beyond the depth limit are cut at the outer end, long names at their end.
    pub fn add(&mut self, stack: &[Frame]) -> StackId {
        if self.stacks as usize >= SESSION_STACKS_MAX || self.frames.len() + STACK_FRAMES_MAX > SESSION_FRAMES_MAX {
            return StackId::NONE;
        }
        let ids: Vec<u32> = stack.iter().take(STACK_FRAMES_MAX).map(|frame| self.frame(frame)).collect();
        let shared = ids.iter().rev().zip(self.previous.iter().rev()).take_while(|(a, b)| a == b).count();
        self.batch.stack_shared.push(shared as u32);
        self.batch.stack_new.push((ids.len() - shared) as u32);
        self.batch.stack_frames.extend(&ids[..ids.len() - shared]);
        // A varint of a frame's id has at most 5 bytes, so have the two lengths.
        self.batch_bytes += 5 * (ids.len() - shared) + 10;
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

    /// Stacks that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.batch.stack_new.len()
    }

    /// Bytes that the waiting batch takes at most.
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
        let id = self.strings.len() as u32;
        self.strings.insert(text.clone(), id);
        id
    }
}

/// The dictionary as it was received.
#[derive(Clone, Debug, Default)]
pub struct StackDictionary {
    strings: Vec<Arc<str>>,
    frames: Vec<Frame>,
    stacks: Vec<Box<[FrameId]>>,
}

impl StackDictionary {
    /// Adds a batch; batches come in the order in which they were sent. On an error nothing of it is kept.
    ///
    /// # Errors
    /// Ids that do not follow, references to what was never sent, more than the limits.
    pub fn add(&mut self, batch: &v1::StackBatch) -> Result<(), WireError> {
        let (strings, frames, stacks) = (self.strings.len(), self.frames.len(), self.stacks.len());
        let result = self.try_add(batch);
        if result.is_err() {
            self.strings.truncate(strings);
            self.frames.truncate(frames);
            self.stacks.truncate(stacks);
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
        }
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
            let previous: &[FrameId] =
                if self.stacks.len() > first { self.stacks.last().map_or(&[], |s| s) } else { &[] };
            let Some(cut) = previous.len().checked_sub(shared as usize) else {
                return Err(WireError::invalid("stack.shared", shared, "at most the frames of the stack before"));
            };
            let frames = own.iter().map(|&id| FrameId(id)).chain(previous[cut..].iter().copied()).collect();
            self.stacks.push(frames);
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(WireError::Uneven { table: "stack_frames", left: 0, right: rest.len() })
        }
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

    /// The frames of a stack, innermost first; empty for "no stack" and for ids that never came.
    pub fn frames(&self, id: StackId) -> impl DoubleEndedIterator<Item = &Frame> + '_ {
        let ids = (id.0 as usize).checked_sub(1).and_then(|index| self.stacks.get(index));
        ids.into_iter().flatten().map(|frame| &self.frames[frame.0 as usize])
    }

    /// The stack of an id; empty for "no stack" and for ids that never came.
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
    fn a_batch_that_lies_leaves_nothing_behind() {
        let mut sender = StackSender::default();
        sender.add(&[Frame { function: "f".into(), file: "a.py".into(), line: 1 }]);
        let mut batch = sender.take().unwrap();
        batch.stack_frames[0] = 9;
        let mut dictionary = StackDictionary::default();
        assert!(matches!(dictionary.add(&batch), Err(WireError::Invalid { field: "stack.frame", .. })));
        assert!(dictionary.is_empty() && dictionary.frames.is_empty() && dictionary.strings.is_empty());
        batch.first_stack = 5;
        assert!(matches!(dictionary.add(&batch), Err(WireError::OutOfOrder { what: "stack", .. })));
    }
}
