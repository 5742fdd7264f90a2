//! A slot of the ring: an event and, in otherwise unused bytes, the number of records dropped just before it.
//!
//! Guarantees: only [`Record::event`] converts a stamp to a time, with the clock that the reader passes. A hook stamps
//! with ticks, a [`crate::Recorder`] with nanoseconds.

use memctl_model::{Action, Event, PoolId, StackId};

use crate::clock::Ticks;

/// One slot of the ring (48 bytes): the fields of [`Event`], with the action and a count of drops in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Record {
    stamp: Ticks,
    addr: u64,
    size: u64,
    stream: u64,
    pool: PoolId,
    stack: StackId,
    /// The low byte is the action. The upper 24 bits are the number of records dropped just before this one,
    /// saturating.
    action_and_dropped: u32,
}

const DROPPED_MAX: u32 = (1 << 24) - 1;

impl Record {
    /// Packs an event that has its time.
    #[inline]
    #[must_use]
    pub fn new(event: &Event) -> Self {
        Self::stamped(Ticks(event.time_ns), event)
    }

    /// Packs an event with a stamp instead of a time. Its `time_ns` is ignored.
    #[inline]
    #[must_use]
    pub fn stamped(stamp: Ticks, event: &Event) -> Self {
        let Event { time_ns: _, addr, size, stream, pool, stack, action } = *event;
        Self { stamp, addr, size, stream, pool, stack, action_and_dropped: action as u32 }
    }

    /// The event. `time_ns` converts its stamp to a time: [`Ticks::as_ns`], or a clock's function. An invalid action,
    /// which only a broken hook writes, is read as an annotation, which changes nothing.
    #[inline]
    #[must_use]
    pub fn event(&self, time_ns: impl FnOnce(Ticks) -> u64) -> Event {
        let Self { stamp, addr, size, stream, pool, stack, action_and_dropped } = *self;
        let action = Action::from_number(action_and_dropped as u8).unwrap_or(Action::Annotate);
        Event { time_ns: time_ns(stamp), addr, size, stream, pool, stack, action }
    }

    /// Number of records dropped just before this one. 2^24 - 1 means "at least that many".
    #[inline]
    #[must_use]
    pub fn dropped_before(&self) -> u32 {
        self.action_and_dropped >> 8
    }

    pub(super) fn set_dropped_before(&mut self, count: u32) {
        self.action_and_dropped = (self.action_and_dropped & 0xff) | (count.min(DROPPED_MAX) << 8);
    }
}
