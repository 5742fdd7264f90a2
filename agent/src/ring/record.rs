//! What lies in the ring: an event and, in its spare bytes, how many were dropped just before it.

use memctl_model::{Action, Event, PoolId, StackId};

/// One slot of the ring, 48 bytes: the fields of [`Event`] with the action and the hole in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Record {
    time: u64,
    addr: u64,
    size: u64,
    stream: u64,
    pool: PoolId,
    stack: StackId,
    /// Low byte: action. Upper 24 bits: records dropped just before this one, saturating.
    action_and_hole: u32,
}

const HOLE_MAX: u32 = (1 << 24) - 1;

impl Record {
    /// Packs an event.
    #[inline]
    #[must_use]
    pub fn new(event: &Event) -> Self {
        let Event { time_ns, addr, size, stream, pool, stack, action } = *event;
        Self { time: time_ns, addr, size, stream, pool, stack, action_and_hole: action as u32 }
    }

    /// The event; a number that is no action (only a broken hook writes one) reads as an annotation, which changes nothing.
    #[inline]
    #[must_use]
    pub fn event(&self) -> Event {
        let Self { time, addr, size, stream, pool, stack, action_and_hole } = *self;
        let action = Action::from_number(action_and_hole as u8).unwrap_or(Action::Annotate);
        Event { time_ns: time, addr, size, stream, pool, stack, action }
    }

    /// Records dropped just before this one; 2^24 - 1 means "at least".
    #[inline]
    #[must_use]
    pub fn dropped_before(&self) -> u32 {
        self.action_and_hole >> 8
    }

    pub(super) fn set_dropped_before(&mut self, count: u32) {
        self.action_and_hole = (self.action_and_hole & 0xff) | (count.min(HOLE_MAX) << 8);
    }
}
