//! The free blocks of one arena, ordered for best fit.
//!
//! Guarantees: [`Bins::best`] is the smallest block that is large enough, of several the one with the
//! lowest address, among the blocks offered. Refuses more than [`CLASS_BLOCKS_MAX`] blocks of
//! one size class (they are simply not offered), which bounds the work that hostile input can cause.

/// Bytes of a granule: every block of PyTorch's allocator is a multiple of it.
pub(super) const GRANULE_BYTES: u64 = 512;
/// Blocks that one size class offers. Enough for the holes of a badly fragmented device; a search looks at all of them.
pub(super) const CLASS_BLOCKS_MAX: usize = 256;
/// Size classes: one an octave of granules. Recordings have 5 to 30 free blocks in an arena, so a class has one or two.
const CLASSES: usize = 32;
/// Position of a block that is not offered.
pub(super) const NOT_OFFERED: u32 = u32::MAX;

/// Stands for "no block".
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// One free block.
#[derive(Clone, Copy)]
pub(super) struct Hole {
    /// Its address.
    pub(super) addr: u64,
    /// Its length in granules.
    pub(super) len: u32,
    /// Its block in the map.
    pub(super) block: u32,
}

/// See the module.
pub(super) struct Bins {
    /// Bit by class.
    occupied: u32,
    holes: [Vec<Hole>; CLASSES],
}

/// The class of a length in granules (at least 1).
#[inline]
pub(super) const fn class_of(len: u32) -> usize {
    (31 - (len | 1).leading_zeros()) as usize
}

impl Bins {
    pub(super) fn new() -> Self {
        Self { occupied: 0, holes: Default::default() }
    }

    /// Forgets every block and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.occupied = 0;
        self.holes.iter_mut().for_each(Vec::clear);
    }

    /// Offers a block; returns its position, [`NOT_OFFERED`] when its class is full.
    #[inline]
    pub(super) fn offer(&mut self, hole: Hole) -> u32 {
        let class = class_of(hole.len);
        let holes = &mut self.holes[class];
        let position = holes.len();
        if position >= CLASS_BLOCKS_MAX {
            return NOT_OFFERED;
        }
        holes.push(hole);
        self.occupied |= 1 << class;
        position as u32
    }

    /// Replaces the block at `position` of a class by one of the same class.
    #[inline]
    pub(super) fn replace(&mut self, position: u32, hole: Hole) {
        self.holes[class_of(hole.len)][position as usize] = hole;
    }

    /// Withdraws the block of length `len` at `position`; returns the block that now has this position, if one moved.
    #[inline]
    pub(super) fn withdraw(&mut self, len: u32, position: u32) -> Option<u32> {
        let class = class_of(len);
        let holes = &mut self.holes[class];
        let last = holes.pop()?;
        if holes.is_empty() {
            self.occupied &= !(1 << class);
        }
        let place = holes.get_mut(position as usize)?;
        *place = last;
        Some(last.block)
    }

    /// Every block on offer.
    pub(super) fn all(&self) -> impl Iterator<Item = Hole> {
        self.holes.iter().flatten().copied()
    }

    /// The best fit for `len` granules.
    #[inline]
    pub(super) fn best(&self, len: u32) -> Option<Hole> {
        let class = class_of(len);
        // The class of the length itself may hold only shorter blocks; every block of the next one fits.
        let mut candidates = self.occupied >> class << class;
        while candidates != 0 {
            let hole = smallest(&self.holes[candidates.trailing_zeros() as usize], len);
            if hole.is_some() {
                return hole;
            }
            candidates &= candidates - 1;
        }
        None
    }
}

/// The least by (length, address) of those that are long enough.
#[inline]
fn smallest(holes: &[Hole], len: u32) -> Option<Hole> {
    let mut best = Hole { addr: u64::MAX, len: u32::MAX, block: NO_BLOCK };
    for hole in holes {
        // Without short-circuits, because which one is best follows no pattern that a branch predictor could learn;
        // and field by field, because loading a hole as a whole would wait for the stores that just wrote its parts.
        let better = (hole.len >= len) & ((hole.len < best.len) | ((hole.len == best.len) & (hole.addr <= best.addr)));
        best.addr = if better { hole.addr } else { best.addr };
        best.len = if better { hole.len } else { best.len };
        best.block = if better { hole.block } else { best.block };
    }
    (best.block != NO_BLOCK).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_and_few() {
        let mut last = 0;
        for len in (1..5000).chain((13..32).map(|bit| 1u32 << bit)).chain([u32::MAX]) {
            let class = class_of(len);
            assert!(class >= last && class < CLASSES, "{len}");
            last = class;
        }
    }

    #[test]
    fn best_fit_is_the_smallest_then_the_lowest() {
        let mut bins = Bins::new();
        for (block, (len, addr)) in [(40, 9), (33, 8), (33, 7), (700, 1), (3, 2)].into_iter().enumerate() {
            bins.offer(Hole { addr, len, block: block as u32 });
        }
        let best = |bins: &Bins, len| bins.best(len).map(|hole| (hole.len, hole.addr));
        assert_eq!(best(&bins, 32), Some((33, 7)));
        assert_eq!(best(&bins, 34), Some((40, 9)));
        assert_eq!(best(&bins, 41), Some((700, 1)));
        assert_eq!(best(&bins, 701), None);
        assert_eq!(best(&bins, 1), Some((3, 2)));
        // 40 and 33 granules share a class: position 0 is withdrawn, the last one moves there.
        assert_eq!(bins.withdraw(40, 0), Some(2));
        assert_eq!(best(&bins, 32), Some((33, 7)));
        assert_eq!(best(&bins, 34), Some((700, 1)));
        bins.clear();
        assert_eq!(best(&bins, 1), None);
    }

    #[test]
    fn a_full_class_takes_no_more() {
        let mut bins = Bins::new();
        for n in 0..CLASS_BLOCKS_MAX as u32 {
            assert_eq!(bins.offer(Hole { addr: 0, len: 5, block: n }), n);
        }
        assert_eq!(bins.offer(Hole { addr: 0, len: 5, block: 0 }), NOT_OFFERED);
    }
}
