//! The pages of a ring: their number and size, and which page the producer fills next.
//!
//! Guarantees: the lowest free page is taken first, so the memory that a ring touches is its high-water mark. This
//! module only computes numbers. The ring has the slots and the synchronisation.

/// Records of the largest page (48 KiB). A few pages hold what a training produces while the batcher sleeps, and these
/// pages fit into a core's cache.
const PAGE_RECORDS: u64 = 1_024;
/// Maximum number of pages of a ring whose pages have fewer than [`PAGE_RECORDS`] records.
const PAGES: u64 = 64;
/// Pages of the largest ring. Page numbers are words of 16 bits.
const PAGES_MAX: u64 = 1 << 16;
/// Maximum number of records of a ring.
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

    /// Number of records of all pages.
    #[must_use]
    pub const fn records(self) -> u64 {
        self.records
    }

    /// Number of pages, which is also the number of words in the page order.
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
    /// Number of pages that the consumer has freed so far. This is also the turn of the page that is freed next.
    pub(super) back: u64,
    /// Index of a word of `free`. All pages of lower words are in use.
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
