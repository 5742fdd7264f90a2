//! The pages of a ring: how many of what size, and which of them the producer may fill next.
//!
//! Guarantees: the lowest free page is taken first, so the memory that a ring touches is its high-water mark. This
//! module only computes numbers; slots and synchronisation are the ring's.

/// Records of the largest page, 48 KiB: a few pages hold what a training produces while the batcher sleeps, and fit a
/// core's cache.
const PAGE_RECORDS: u64 = 1_024;
/// Pages of a small ring, at most.
const PAGES: u64 = 64;
/// Pages of the largest ring: their numbers are words of 16 bits.
const PAGES_MAX: u64 = 1 << 16;
/// Records that a ring may have.
pub const RECORDS_MAX: u64 = PAGES_MAX * PAGE_RECORDS;

/// How a ring is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Records, a power of two.
    pub(crate) records: u64,
    /// Records of a page, a power of two.
    pub(crate) page: u64,
}

impl Shape {
    /// The shape of a ring of at least `records` records.
    #[must_use]
    pub fn of(records: u64) -> Self {
        let records = records.clamp(2, RECORDS_MAX).next_power_of_two();
        Self { records, page: (records / PAGES).clamp(1, PAGE_RECORDS) }
    }

    /// Records of all pages.
    #[must_use]
    pub const fn records(self) -> u64 {
        self.records
    }

    /// Words of the page order: one per page.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.records / self.page
    }

    /// Index in the page order of the page that contains a position.
    pub(super) const fn turn(self, position: u64) -> usize {
        ((position / self.page) & (self.pages() - 1)) as usize
    }
}

/// The producer's view of the pages.
pub(super) struct Pages {
    /// One bit per page, set if it may be filled.
    free: Box<[u64]>,
    /// Pages freed by the consumer so far: the next one to be freed is the page of this turn.
    pub(super) back: u64,
    /// Below this word all pages are in use.
    lowest: usize,
}

impl Pages {
    pub(super) fn new(shape: Shape) -> Self {
        let pages = shape.pages();
        let words = (0..pages.div_ceil(64)).map(|word| u64::MAX >> (64 - (pages - word * 64).min(64)));
        Self { free: words.collect(), back: 0, lowest: 0 }
    }

    /// Frees a page.
    pub(super) fn put(&mut self, page: u64) {
        let word = (page / 64) as usize;
        self.free[word] |= 1 << (page % 64);
        self.lowest = self.lowest.min(word);
    }

    /// Takes the lowest free page.
    pub(super) fn take(&mut self) -> Option<u64> {
        let word = (self.lowest..self.free.len()).find(|&word| self.free[word] != 0);
        self.lowest = word.unwrap_or(self.free.len());
        let bits = &mut self.free[word?];
        let bit = u64::from(bits.trailing_zeros());
        *bits &= *bits - 1;
        Some(word? as u64 * 64 + bit)
    }
}
