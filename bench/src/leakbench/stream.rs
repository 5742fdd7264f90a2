//! The site tables of a rank, in order, each with its position. Detectors receive them.
//!
//! Guarantees: few tables are in memory at a time. The tables of a long epoch are computed on demand, in order.

use std::borrow::Cow;
use std::sync::Arc;

use memctl_model::SiteTable;

use super::long_stream::LongStream;
use super::replay::{Replayed, Settled};

/// The tables of a rank; see the module's documentation.
pub enum Stream {
    /// All tables are in memory.
    Kept(Arc<Replayed>),
    /// The tables are computed on demand.
    Long(LongStream),
}

impl Stream {
    /// The number of tables.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Kept(replayed) => replayed.tables.len(),
            Self::Long(long) => long.len(),
        }
    }

    /// A table by its number.
    pub fn table(&self, number: usize) -> Option<Cow<'_, SiteTable>> {
        match self {
            Self::Kept(replayed) => replayed.tables.get(number).map(Cow::Borrowed),
            Self::Long(long) => long.table(number).map(Cow::Owned),
        }
    }

    /// The position of a table.
    #[must_use]
    pub fn at(&self, number: usize) -> Option<usize> {
        match self {
            Self::Kept(replayed) => replayed.at.get(number).copied(),
            Self::Long(long) => (number < long.len()).then_some(number),
        }
    }

    /// Scalene's samples in order.
    #[must_use]
    pub fn settled(&self) -> &[Settled] {
        match self {
            Self::Kept(replayed) => &replayed.settled,
            Self::Long(_) => &[],
        }
    }

    /// Whether detectors are queried after a table. They are always queried, except in a long epoch.
    #[must_use]
    pub fn asks_after(&self, number: usize) -> bool {
        match self {
            Self::Kept(_) => true,
            Self::Long(long) => long.asks_after(number),
        }
    }

    /// The number of contradictions that the block map found.
    #[must_use]
    pub fn contradictions(&self) -> u64 {
        match self {
            Self::Kept(replayed) => replayed.anomalies.contradictions,
            Self::Long(_) => 0,
        }
    }
}
