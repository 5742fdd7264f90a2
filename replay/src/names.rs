//! Names of blocks: small numbers instead of recorded addresses, so that callers can keep blocks in an array.
//!
//! An address keeps its name when its block is freed, because most addresses are used again. Names of unused addresses
//! are reassigned once they outnumber the names of live blocks.
//!
//! Guarantees: different live blocks have different names. Names are dense: the highest name is proportional to the
//! largest number of blocks that were ever live at one time.

use foldhash::HashMap;
use memctl_model::{BlockState, BlockUse, SegmentState};

/// The name of a block; 0 is no block. See the module's documentation.
pub type BlockName = u32;

/// Minimum number of addresses without a live block that keep their names.
const IDLE_MIN: usize = 4096;

#[derive(Clone, Debug)]
pub(crate) struct Names {
    by_address: HashMap<u64, BlockName>,
    /// Whether the block of each name is live.
    lives: Vec<bool>,
    vacant: Vec<BlockName>,
    live: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self { by_address: HashMap::default(), lives: vec![false], vacant: Vec::new(), live: 0 }
    }
}

/// The live blocks in these segments, with their segments. Their names are those that a recording which begins with
/// these segments gives them. The order is that of allocation.
pub fn named(segments: &[SegmentState]) -> impl Iterator<Item = (BlockName, &SegmentState, &BlockState)> {
    let mut names = Names::default();
    let blocks = segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)));
    let live = blocks.filter(|(_, block)| block.usage != BlockUse::Inactive);
    live.map(move |(segment, block)| (names.begin(block.addr), segment, block))
}

impl Names {
    /// The names of the live blocks in these segments. The same segments always give the same names.
    pub fn of(segments: &[SegmentState]) -> Self {
        let mut names = Self::default();
        named(segments).for_each(|(_, _, block)| {
            names.begin(block.addr);
        });
        names
    }

    /// Names the block that begins at an address. In a recording with gaps a block may still be live there; then its
    /// name is used.
    pub fn begin(&mut self, addr: u64) -> BlockName {
        let name = match self.by_address.get(&addr) {
            Some(&name) => name,
            None => {
                if self.by_address.len() > 2 * self.live + IDLE_MIN {
                    self.sweep();
                }
                let name = self.vacant.pop().unwrap_or_else(|| {
                    self.lives.push(false);
                    // There are never this many names.
                    u32::try_from(self.lives.len() - 1).unwrap_or(u32::MAX)
                });
                self.by_address.insert(addr, name);
                name
            }
        };
        self.live += usize::from(!std::mem::replace(&mut self.lives[name as usize], true));
        name
    }

    /// The name of the live block at an address.
    pub fn get(&self, addr: u64) -> Option<BlockName> {
        self.by_address.get(&addr).copied().filter(|&name| self.lives[name as usize])
    }

    /// Marks a block as no longer live.
    pub fn end(&mut self, name: BlockName) {
        self.live -= usize::from(std::mem::replace(&mut self.lives[name as usize], false));
    }

    /// Removes the names of addresses without a live block.
    fn sweep(&mut self) {
        let Self { by_address, lives, vacant, .. } = self;
        by_address.retain(|_, name| {
            let stays = lives[*name as usize];
            if !stays {
                vacant.push(*name);
            }
            stays
        });
        // Sorted, so that names do not depend on the order of a hash table.
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
