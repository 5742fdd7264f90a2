//! The chosen blocks of a step as columns, with the stacks that allocated and freed them.
//!
//! Guarantees: the order is that of the stack, from its bottom. All stacks together have at most [`STACK_FRAMES_MAX`]
//! frames; further ones are cut at the outer end.

use std::collections::HashMap;

use memctl_analysis::classes::Class;
use memctl_analysis::lifetimes::{BlockLife, Lives, OPEN};
use memctl_analysis::step_blocks::Stacked;
use memctl_answers::Frame;
use memctl_answers::blocks::{StackContent, Stacks};
use memctl_answers::step_memory::StepBlocks;
use memctl_model::StackId;
use memctl_proto::StackDictionary;

use crate::event_analysis::classed::Classed;

/// The most frames of all stacks together.
const STACK_FRAMES_MAX: usize = 100_000;

/// The blocks as columns, with their stacks.
pub(super) struct Drawn {
    pub columns: StepBlocks,
    pub stacks: Stacks<StackId>,
}

impl Drawn {
    /// The chosen blocks of a stretch from the event `first` to `last`.
    pub fn new(
        stacked: &Stacked,
        lives: &Lives,
        (first, last): (u64, u64),
        frees: &HashMap<u64, StackId>,
        known: &Classed,
        dictionary: &StackDictionary,
    ) -> Self {
        let mut stacks = Stacks::new(STACK_FRAMES_MAX);
        let mut columns = StepBlocks::default();
        let mut number = |id: StackId| stacks.number(id, || content(dictionary, id));
        let until = |block: &BlockLife| block.freed.min(block.to);
        // The class of a block that lived before the step is looked up at the begin of the step.
        let class = |block: &BlockLife| known.class_at(block.addr, block.from.max(first)).unwrap_or(Class::Unknown);
        let mut blocks: Vec<(&BlockLife, Class)> =
            stacked.blocks.iter().map(|&at| &lives.blocks[at]).map(|block| (block, class(block))).collect();
        // Blocks that are allocated throughout are at the bottom, in any order: so each class of them is one layer.
        let throughout = blocks.partition_point(|(block, _)| block.from <= first && until(block) > last);
        blocks[..throughout].sort_by_key(|(_, class)| *class as u8);
        for (block, class) in blocks {
            let BlockLife { bytes, requested_bytes, stack, birth, from, .. } = *block;
            let until = until(block);
            columns.bytes.push(bytes);
            columns.requested_bytes.push(requested_bytes);
            columns.class.push(class as u8);
            columns.stack.push(number(stack));
            columns.free_stack.push(frees.get(&until).map_or(0, |&stack| number(stack)));
            columns.birth_epoch.push(birth.epoch);
            columns.birth_step.push(birth.step);
            columns.from_event.push((from > first).then_some(from));
            columns.to_event.push((until != OPEN && until <= last).then_some(until));
        }
        Self { columns, stacks }
    }
}

fn content(dictionary: &StackDictionary, id: StackId) -> StackContent {
    let of = |frame: &memctl_model::Frame| Frame::from(frame);
    let stack = dictionary.stack(id);
    StackContent {
        frames: stack.calls().iter().map(of).collect(),
        site: stack.site().map(of),
        owner: stack.owner().map(str::to_owned),
    }
}
