//! A session's sequence of items as a pure state machine: new, duplicate or missing.

use crate::store::Gap;

/// The arrival of an item within the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The item is the next one.
    Next,
    /// The item arrived before and is ignored.
    Duplicate,
    /// Items between the last and this one are missing.
    AfterGap(Gap),
}

/// The state of one session's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    last: u64,
}

impl Sequence {
    /// A sequence that continues after the stored items.
    #[must_use]
    pub const fn after(durable_seq: u64) -> Self {
        Self { last: durable_seq }
    }

    /// Takes the number of an item.
    pub fn arrive(&mut self, seq: u64) -> Arrival {
        if seq <= self.last {
            return Arrival::Duplicate;
        }
        let gap = Gap { first: self.last + 1, last: seq - 1 };
        self.last = seq;
        if gap.first > gap.last { Arrival::Next } else { Arrival::AfterGap(gap) }
    }

    /// The highest number that arrived.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_again_and_missing() {
        let mut sequence = Sequence::after(3);
        assert_eq!(sequence.arrive(3), Arrival::Duplicate);
        assert_eq!(sequence.arrive(4), Arrival::Next);
        assert_eq!(sequence.arrive(4), Arrival::Duplicate);
        assert_eq!(sequence.arrive(8), Arrival::AfterGap(Gap { first: 5, last: 7 }));
        assert_eq!(sequence.arrive(6), Arrival::Duplicate);
        assert_eq!(sequence.last(), 8);
    }
}
