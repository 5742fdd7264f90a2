//! Whose memory it is, as the process said: what was set when memory was requested (`user_metadata`, torch 2.10) and what
//! was said of a block afterwards (`annotate`, torch 2.14).
//!
//! Guarantees: behind an annotation the block has the stack of its request with the annotation's name; blocks that live at
//! the end have the name that they were last given. Refuses to keep who annotated, and the earlier of two names.

use std::collections::{HashMap, HashSet};

use memctl_model::{Action, BlockUse, Frame, FrameId, Mark, MarkKind, SegmentState, StackId};

use super::DeviceRecording;
use super::events::EventLog;
use super::intern::Tables;

/// How the notes begin that show annotations among a recording's marks.
pub(crate) const ANNOTATED: &str = "annotated: ";
/// Notes at most: the first annotation of so many names.
const NOTES_MAX: usize = 1_000;

/// Whether the name that an event carries is kept: those that request memory, and annotations.
pub(crate) fn is_owned(action: Action) -> bool {
    matches!(action, Action::Alloc | Action::Oom | Action::SegmentAlloc | Action::SegmentMap | Action::Annotate)
}

/// Follows the blocks of a device through its events: see the module. Each event has the name that it carries itself.
pub(crate) fn settle(events: &mut EventLog, segments: &mut [SegmentState], tables: &mut Tables) {
    // Blocks that live, by address: stacks of those that were requested in this recording or annotated.
    let mut living: HashMap<u64, StackId> = HashMap::new();
    // Stacks of blocks from before the recording, as far as they live at its end.
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

/// Where blocks were annotated: a note for the first of each name.
pub(crate) fn notes(devices: &[DeviceRecording], frames: &[Frame], stacks: &[Vec<FrameId>]) -> Vec<Mark> {
    let mut told: HashSet<&str> = HashSet::new();
    let mut notes = Vec::new();
    let all = devices.iter().flat_map(|device| device.events.iter()).filter(|event| event.action == Action::Annotate);
    for event in all {
        let stack = event.stack.0.checked_sub(1).and_then(|at| stacks.get(at as usize));
        let innermost = stack.and_then(|stack| stack.first()).and_then(|frame| frames.get(frame.0 as usize));
        let Some(name) = innermost.and_then(Frame::owner) else { continue };
        if notes.len() < NOTES_MAX && told.insert(name) {
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
