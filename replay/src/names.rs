//! Names of blocks: small numbers instead of recorded addresses, so that callers can keep blocks in an array.
//!
//! An address keeps its name when its block is freed: most are used again. Names of unused addresses are given to
//! others once they outnumber the names of live blocks.
//!
//! Guarantees: different live blocks have different names; names are dense, so that the highest follows the largest
//! number of blocks that ever lived at once. Refuses to know what a block is.

use foldhash::HashMap;
use memctl_model::{BlockState, BlockUse, SegmentState};

/// See the module. 0 is no block.
pub type BlockName = u32;

/// Addresses without a live block that keep their names at least.
const IDLE_MIN: usize = 4096;

#[derive(Clone, Debug)]
pub(crate) struct Names {
    by_address: HashMap<u64, BlockName>,
    /// By name, whether its block lives.
    lives: Vec<bool>,
    vacant: Vec<BlockName>,
    live: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self { by_address: HashMap::default(), lives: vec![false], vacant: Vec::new(), live: 0 }
    }
}

/// The blocks that live in these segments, with the names that a recording which begins with them gives them, and their segments;
/// in the order in which they are asked for.
pub fn named(segments: &[SegmentState]) -> impl Iterator<Item = (BlockName, &SegmentState, &BlockState)> {
    let mut names = Names::default();
    let blocks = segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)));
    let live = blocks.filter(|(_, block)| block.usage != BlockUse::Inactive);
    live.map(move |(segment, block)| (names.begin(block.addr), segment, block))
}

impl Names {
    /// With those of the blocks that live in these segments: the same for the same segments.
    pub fn of(segments: &[SegmentState]) -> Self {
        let mut names = Self::default();
        named(segments).for_each(|(_, _, block)| {
            names.begin(block.addr);
        });
        names
    }

    /// A block begins to live at an address. (In a recording with gaps one may still live there: it has the same name.)
    pub fn begin(&mut self, addr: u64) -> BlockName {
        let name = match self.by_address.get(&addr) {
            Some(&name) => name,
            None => {
                if self.by_address.len() > 2 * self.live + IDLE_MIN {
                    self.sweep();
                }
                let name = self.vacant.pop().unwrap_or_else(|| {
                    self.lives.push(false);
                    // (There are never so many.)
                    u32::try_from(self.lives.len() - 1).unwrap_or(u32::MAX)
                });
                self.by_address.insert(addr, name);
                name
            }
        };
        self.live += usize::from(!std::mem::replace(&mut self.lives[name as usize], true));
        name
    }

    /// The block that lives at an address.
    pub fn get(&self, addr: u64) -> Option<BlockName> {
        self.by_address.get(&addr).copied().filter(|&name| self.lives[name as usize])
    }

    /// A block lives no more.
    pub fn end(&mut self, name: BlockName) {
        self.live -= usize::from(std::mem::replace(&mut self.lives[name as usize], false));
    }

    /// Addresses where nothing lives lose their names.
    fn sweep(&mut self) {
        let Self { by_address, lives, vacant, .. } = self;
        by_address.retain(|_, name| {
            let stays = lives[*name as usize];
            if !stays {
                vacant.push(*name);
            }
            stays
        });
        // (So that the names do not depend on the order of a hash table.)
        vacant.sort_unstable_by(|a, b| b.cmp(a));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_their_names_and_memory_follows_what_lives() {
        let mut names = Names::default();
        let (a, b) = (names.begin(512), names.begin(1024));
        assert_eq!((a, b, names.begin(512)), (1, 2, 1));
        names.end(a);
        assert_eq!((names.get(512), names.get(1024), names.get(0)), (None, Some(b), None));
        assert_eq!(names.begin(512), a);
        for addr in 0..100 * IDLE_MIN as u64 {
            let name = names.begin(addr << 20 | 1);
            assert!(name != a && name != b);
            names.end(name);
        }
        assert!(names.lives.len() <= IDLE_MIN + 16, "{}", names.lives.len());
        assert_eq!((names.get(512), names.get(1024)), (Some(a), Some(b)));
    }
}
