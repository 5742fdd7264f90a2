//! The positions of tiles in time. A tile has [`SLOTS`] slots. The slots of each level are twice as long as those of
//! the level below.
//!
//! Guarantees: a tile's position depends only on its level and index, so its address is the same for every client at
//! any time.
//! Refuses: levels and indexes beyond the range of times.

use crate::job_data::ReadError;

/// Slots per tile.
pub const SLOTS: u64 = 512;
/// The coarsest level, with slots of thirteen days.
pub const LEVEL_MAX: u32 = 50;

/// A tile's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The level; a slot has 2^level nanoseconds.
    pub level: u32,
    /// The number of tiles of this level between the Unix epoch and this tile.
    pub index: u64,
}

impl Place {
    /// The length of a slot in nanoseconds.
    pub fn slot_ns(self) -> u64 {
        1 << self.level
    }

    /// Begin and end (exclusive), in nanoseconds since the Unix epoch.
    ///
    /// # Errors
    /// There is no such level, or the tile is beyond the range of times.
    pub fn times_ns(self) -> Result<(u64, u64), ReadError> {
        if self.level > LEVEL_MAX {
            return Err(ReadError::Invalid(format!("there are levels 0 to {LEVEL_MAX}, not {}", self.level)));
        }
        let length = SLOTS << self.level;
        let start = self.index.checked_mul(length);
        let end = start.and_then(|start| start.checked_add(length));
        start.zip(end).filter(|(_, end)| i64::try_from(*end).is_ok()).ok_or_else(|| {
            ReadError::Invalid(format!("tile {} of level {} lies beyond the year 2262", self.index, self.level))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_a_level_touch_and_two_make_one_of_the_next() {
        for level in 0..LEVEL_MAX {
            let index = (1_700_000_000_000_000_000 / (SLOTS << level)) & !1;
            let [left, right] = [index, index + 1].map(|index| Place { level, index }.times_ns().unwrap());
            let above = Place { level: level + 1, index: index / 2 }.times_ns();
            assert_eq!(left.1, right.0);
            assert_eq!(above.unwrap(), (left.0, right.1));
            assert_eq!((left.1 - left.0) / SLOTS, Place { level, index }.slot_ns());
        }
    }

    #[test]
    fn what_lies_beyond_time_is_refused() {
        for (level, index) in [(51, 0), (u32::MAX, 0), (50, 1 << 13), (0, u64::MAX), (20, u64::MAX >> 20)] {
            assert!(Place { level, index }.times_ns().is_err(), "{level} {index}");
        }
        assert_eq!(Place { level: 0, index: 0 }.times_ns().unwrap(), (0, SLOTS));
    }
}
