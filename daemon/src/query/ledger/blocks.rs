//! Lists the live blocks of a ledger one by one, for checking the classes or looking at single blocks.
//!
//! Guarantees: at most [`ANSWER_BLOCKS_MAX`] blocks per response, the largest ones, by address, with the number of
//! omitted blocks.

use std::cmp::Reverse;
use std::collections::HashMap;

use memctl_analysis::classes::Class;
use memctl_answers::Frame;
use memctl_answers::ledger::Block;
use memctl_model::{BlockState, Stack, StackId};

/// The most blocks in one response. A block takes about 350 bytes, and a response may have 64 MiB. A training process
/// has some thousands of blocks, rarely tens of thousands.
pub(super) const ANSWER_BLOCKS_MAX: usize = 150_000;

/// Blocks by address.
pub(super) struct Blocks {
    pub blocks: Vec<Block>,
    /// The number of omitted blocks, which are the smallest.
    pub left_out: u64,
}

/// Lists at most `room` blocks of a rank, and reduces `room` by their number.
pub(super) fn list(
    mut blocks: Vec<(Class, &BlockState)>,
    resolve: &dyn Fn(StackId) -> Stack,
    room: &mut usize,
) -> Blocks {
    let left_out = blocks.len().saturating_sub(*room);
    if left_out > 0 {
        blocks.sort_unstable_by_key(|(_, block)| (Reverse(block.size), block.addr));
        blocks.truncate(*room);
    }
    *room -= blocks.len();
    blocks.sort_unstable_by_key(|(_, block)| block.addr);
    let mut places: HashMap<StackId, (Option<Frame>, Option<String>)> = HashMap::new();
    let block = |(class, block): (Class, &BlockState)| {
        let (site, owner) = places.entry(block.stack).or_insert_with(|| {
            let stack = resolve(block.stack);
            (stack.site().map(Frame::from), stack.owner().map(str::to_owned))
        });
        Block {
            address: block.addr,
            bytes: block.size,
            requested_bytes: block.requested,
            class: class.name().to_owned(),
            birth_epoch: block.birth_epoch,
            birth_step: block.birth_step,
            birth_phase: block.birth_phase.map(|phase| phase.name().to_owned()),
            site: site.clone(),
            owner: owner.clone(),
        }
    };
    Blocks { blocks: blocks.into_iter().map(block).collect(), left_out: left_out as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::{BlockUse, Frame};

    fn resolve(id: StackId) -> Stack {
        // Stacks 1 and 2 share one line of user code.
        let frame = |function: &str, file: &str| Frame { function: function.into(), file: file.into(), line: 3 };
        let inner = frame(if id.0 == 1 { "relu" } else { "gelu" }, "/env/site-packages/torch/nn/functional.py");
        let mut frames = if id.is_some() { vec![inner, frame("forward", "model.py")] } else { Vec::new() };
        frames.splice(..0, (id.0 == 2).then(|| Frame::of_owner("KV cache")));
        Stack { frames }
    }

    fn block(addr: u64, size: u64, stack: u32) -> BlockState {
        BlockState {
            addr,
            size,
            requested: size,
            usage: BlockUse::Allocated,
            stack: StackId(stack),
            ..Default::default()
        }
    }

    #[test]
    fn the_largest_are_listed_by_address_and_the_rest_is_counted() {
        let blocks = [block(9, 512, 1), block(7, 1024, 2), block(5, 2048, 0), block(3, 256, 1)];
        let classed = || blocks.iter().map(|block| (Class::Activations, block)).collect();
        let mut room = 3;
        let listed = list(classed(), &resolve, &mut room);
        let place = |block: &Block| block.site.as_ref().map(|site| site.function.clone());
        let places: Vec<_> = listed.blocks.iter().map(|block| (block.address, place(block))).collect();
        let forward = || Some("forward".to_owned());
        assert_eq!(places, [(5, None), (7, forward()), (9, forward())]);
        assert_eq!((listed.left_out, room), (1, 0));
        let owners: Vec<Option<&str>> = listed.blocks.iter().map(|block| block.owner.as_deref()).collect();
        assert_eq!(owners, [None, Some("KV cache"), None]);
        let next = list(classed(), &resolve, &mut room);
        assert_eq!((next.blocks.len(), next.left_out), (0, 4));
    }
}
