//! The live blocks behind a ledger, one by one, for checking the classes or looking at single blocks.
//!
//! Guarantees: at most [`BLOCKS_MAX`] per rank and [`ANSWER_BLOCKS_MAX`] per response, the largest ones, by address, with
//! the number of omitted ones. Sites are named once per rank.

use std::cmp::Reverse;
use std::collections::HashMap;

use memctl_analysis::classes::Class;
use memctl_model::{BlockState, Frame, Stack, StackId};
use memctl_proto::v1;

use crate::query::answer::frame;

/// The most blocks of one rank; a training process has some thousands, rarely tens of thousands.
const BLOCKS_MAX: usize = 200_000;
/// The most blocks in one response: about fifty bytes each, and a response may have 64 MiB.
pub(super) const ANSWER_BLOCKS_MAX: usize = 800_000;

/// Adds the blocks to a rank's ledger, up to `room`, which is reduced accordingly.
pub(super) fn list(
    ledger: &mut v1::RankLedger,
    mut blocks: Vec<(Class, &BlockState)>,
    resolve: &dyn Fn(StackId) -> Stack,
    room: &mut usize,
) {
    let most = BLOCKS_MAX.min(*room);
    if blocks.len() > most {
        ledger.blocks_left_out = (blocks.len() - most) as u64;
        blocks.sort_unstable_by_key(|(_, block)| (Reverse(block.size), block.addr));
        blocks.truncate(most);
    }
    *room -= blocks.len();
    blocks.sort_unstable_by_key(|(_, block)| block.addr);
    let mut sites = Sites {
        resolve,
        of_stack: HashMap::new(),
        of_frame: HashMap::new(),
        frames: Vec::new(),
        of_owner: HashMap::new(),
        owners: Vec::new(),
    };
    ledger.blocks = blocks
        .into_iter()
        .map(|(class, block)| v1::LiveBlock {
            address: block.addr,
            bytes: block.size,
            requested_bytes: block.requested,
            class: class.name().to_owned(),
            birth_epoch: block.birth_epoch,
            birth_step: block.birth_step,
            birth_phase: block.birth_phase.map_or_else(String::new, |phase| phase.name().to_owned()),
            site: sites.number(block.stack).0,
            owner: sites.number(block.stack).1,
        })
        .collect();
    (ledger.sites, ledger.owner_names) = (sites.frames, sites.owners);
}

struct Sites<'a> {
    resolve: &'a dyn Fn(StackId) -> Stack,
    of_stack: HashMap<StackId, (u32, u32)>,
    of_frame: HashMap<Frame, u32>,
    frames: Vec<v1::Frame>,
    of_owner: HashMap<String, u32>,
    owners: Vec<String>,
}

impl Sites<'_> {
    /// The numbers of site and owner, from 1 on; 0 without a stack or a name.
    fn number(&mut self, stack: StackId) -> (u32, u32) {
        if let Some(&known) = self.of_stack.get(&stack) {
            return known;
        }
        let resolved = (self.resolve)(stack);
        let owner = resolved.owner().map_or(0, |owner| match self.of_owner.get(owner) {
            Some(&known) => known,
            None => {
                self.owners.push(owner.to_owned());
                let number = self.owners.len() as u32;
                self.of_owner.insert(owner.to_owned(), number);
                number
            }
        });
        let site = resolved.site().map_or(0, |site| match self.of_frame.get(site) {
            Some(&known) => known,
            None => {
                self.frames.push(frame(site));
                let number = self.frames.len() as u32;
                self.of_frame.insert(site.clone(), number);
                number
            }
        });
        self.of_stack.insert(stack, (site, owner));
        (site, owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::BlockUse;

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
    fn the_largest_are_told_by_address_and_the_rest_is_counted() {
        let blocks = [block(9, 512, 1), block(7, 1024, 2), block(5, 2048, 0), block(3, 256, 1)];
        let classed = || blocks.iter().map(|block| (Class::Activations, block)).collect();
        let mut ledger = v1::RankLedger::default();
        let mut room = 3;
        list(&mut ledger, classed(), &resolve, &mut room);
        let told: Vec<(u64, u32)> = ledger.blocks.iter().map(|block| (block.address, block.site)).collect();
        assert_eq!((told, ledger.blocks_left_out, room), (vec![(5, 0), (7, 1), (9, 1)], 1, 0));
        assert_eq!(ledger.sites.len(), 1, "one line, named once");
        let owners: Vec<u32> = ledger.blocks.iter().map(|block| block.owner).collect();
        assert_eq!((owners, ledger.owner_names), (vec![0, 1, 0], vec!["KV cache".to_owned()]));
        let mut next = v1::RankLedger::default();
        list(&mut next, classed(), &resolve, &mut room);
        assert_eq!((next.blocks.len(), next.blocks_left_out), (0, 4));
    }
}
