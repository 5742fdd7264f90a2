//! Owners of memory, as named by the process: at the request (`user_metadata`, torch 2.10) or for a block afterwards
//! (`annotate`, torch 2.14).
//!
//! Guarantees: after an annotation, the block has the stack of its request with the annotation's name. Blocks that are
//! live at the end have the last name that was set. The stack of the annotation and earlier names are not kept.

use std::collections::{HashMap, HashSet};

use memctl_model::{Action, BlockUse, Frame, FrameId, Mark, MarkKind, SegmentState, StackId};

use super::DeviceRecording;
use super::events::EventLog;
use super::intern::Tables;

/// Prefix of the notes that show annotations among a recording's marks.
pub(crate) const ANNOTATED: &str = "annotated: ";
/// Maximum number of notes: one for the first annotation with each name.
const NOTES_MAX: usize = 1_000;

/// Whether the name that an event carries is kept: it is for events that request memory, and for annotations.
pub(crate) fn is_owned(action: Action) -> bool {
    matches!(action, Action::Alloc | Action::Oom | Action::SegmentAlloc | Action::SegmentMap | Action::Annotate)
}

/// Follows the blocks of a device through its events; see the module's documentation. Each event already has its own
/// name.
pub(crate) fn settle(events: &mut EventLog, segments: &mut [SegmentState], tables: &mut Tables) {
    // Stacks of live blocks that were requested or annotated in this recording, by address.
    let mut living: HashMap<u64, StackId> = HashMap::new();
    // Stacks of blocks from before the recording that are live at its end.
    let mut before: HashMap<u64, StackId> = blocks(segments).map(|(addr, stack)| (addr, *stack)).collect();
    events.iter().filter(|event| event.action == Action::Alloc).for_each(|event| _ = before.remove(&event.addr));
    events.restack(|event| {
        match event.action {
            Action::Alloc => _ = living.insert(event.addr, event.stack),
            Action::FreeCompleted => _ = living.remove(&event.addr),
            Action::Annotate => {
                let Some((_, name)) = tables.owner(event.stack) else { return event.stack };
                let stack =
                    living.entry(event.addr).or_insert_with(|| before.get(&event.addr).copied().unwrap_or_default());
                *stack = tables.owned(*stack, name);
                return *stack;
            }
            _ => {}
        }
        event.stack
    });
    for (addr, stack) in blocks(segments) {
        if let Some((_, name)) = living.get(&addr).and_then(|living| tables.owner(*living)) {
            *stack = tables.owned(*stack, name);
        }
    }
}

/// Notes of annotated blocks: one for the first annotation with each name.
pub(crate) fn notes(devices: &[DeviceRecording], frames: &[Frame], stacks: &[Vec<FrameId>]) -> Vec<Mark> {
    let mut reported: HashSet<&str> = HashSet::new();
    let mut notes = Vec::new();
    let all = devices.iter().flat_map(|device| device.events.iter()).filter(|event| event.action == Action::Annotate);
    for event in all {
        let stack = event.stack.0.checked_sub(1).and_then(|at| stacks.get(at as usize));
        let innermost = stack.and_then(|stack| stack.first()).and_then(|frame| frames.get(frame.0 as usize));
        let Some(name) = innermost.and_then(Frame::owner) else { continue };
        if notes.len() < NOTES_MAX && reported.insert(name) {
            notes.push(Mark { time_ns: event.time_ns, kind: MarkKind::Note(format!("{ANNOTATED}{name}")) });
        }
    }
    notes.sort_by_key(|mark| mark.time_ns);
    notes
}

fn blocks(segments: &mut [SegmentState]) -> impl Iterator<Item = (u64, &mut StackId)> {
    let blocks = segments.iter_mut().flat_map(|segment| &mut segment.blocks);
    blocks.filter(|block| block.usage != BlockUse::Inactive).map(|block| (block.addr, &mut block.stack))
}
