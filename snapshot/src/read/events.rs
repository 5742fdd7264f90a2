//! A log of events in chunks of fixed size: 32 bytes per event, and no copying when it grows.
//!
//! Guarantees: the order is kept. Events can be read in both directions. The consuming iterator frees each chunk as
//! soon as it is read. An event that would need more than 2^24 distinct pairs of stream and pool is returned to the
//! caller.

use std::collections::HashMap;

use memctl_model::{Action, Event, PoolId, StackId};

/// Events of one chunk: 512 KiB, so that the spare capacity of the last chunk is small.
pub const LOG_CHUNK_EVENTS: usize = 1 << 14;
/// Bits of [`Packed::lane_and_action`] that hold the action.
const ACTION_BITS: u32 = 8;
/// Maximum number of distinct pairs of stream and pool in a log.
const LANES_MAX: usize = 1 << (32 - ACTION_BITS);

/// An event with the number of its stream and pool instead of these, because few events differ from the previous one
/// in them.
#[derive(Clone, Copy)]
struct Packed {
    time_ns: u64,
    addr: u64,
    size: u64,
    stack: StackId,
    lane_and_action: u32,
}

/// A stream and a pool.
type Lane = (u64, PoolId);

/// The events of one device, in their order.
#[derive(Clone, Default)]
pub struct EventLog {
    chunks: Vec<Vec<Packed>>,
    lanes: Vec<Lane>,
    lane_ids: HashMap<Lane, u32>,
    last_lane: u32,
    len: usize,
}

impl EventLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an event.
    ///
    /// # Errors Returns the event if its stream and pool would be the 2^24-th distinct pair.
    #[inline]
    pub fn push(&mut self, event: Event) -> Result<(), Event> {
        let lane = match self.lanes.get(self.last_lane as usize) {
            Some(&lane) if lane == (event.stream, event.pool) => self.last_lane,
            _ => self.lane((event.stream, event.pool)).ok_or(event)?,
        };
        let packed = Packed {
            time_ns: event.time_ns,
            addr: event.addr,
            size: event.size,
            stack: event.stack,
            lane_and_action: lane << ACTION_BITS | event.action as u32,
        };
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < LOG_CHUNK_EVENTS => chunk.push(packed),
            // The first chunk grows as needed, because most logs are of idle devices. Later chunks are allocated
            // whole.
            Some(_) => {
                let mut chunk = Vec::with_capacity(LOG_CHUNK_EVENTS);
                chunk.push(packed);
                self.chunks.push(chunk);
            }
            None => self.chunks.push(vec![packed]),
        }
        self.len += 1;
        Ok(())
    }

    #[cold]
    fn lane(&mut self, lane: Lane) -> Option<u32> {
        let id = match self.lane_ids.get(&lane) {
            Some(&id) => id,
            None if self.lanes.len() >= LANES_MAX => return None,
            None => {
                let id = self.lanes.len() as u32;
                self.lanes.push(lane);
                self.lane_ids.insert(lane, id);
                id
            }
        };
        self.last_lane = id;
        Some(id)
    }

    /// The first event.
    #[must_use]
    pub fn first(&self) -> Option<Event> {
        self.iter().next()
    }

    /// The last event.
    #[must_use]
    pub fn last(&self) -> Option<Event> {
        self.iter().next_back()
    }

    /// The events by value; the iterator can be read from both ends.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Event> + '_ {
        self.chunks.iter().flatten().map(|packed| packed.unpack(&self.lanes))
    }

    /// Changes the stacks of events, in their order: `stack_of` returns the stack of each event.
    pub(crate) fn restack(&mut self, mut stack_of: impl FnMut(&Event) -> StackId) {
        for packed in self.chunks.iter_mut().flatten() {
            packed.stack = stack_of(&packed.unpack(&self.lanes));
        }
    }

    /// Changes the pools of events, from the last to the first: `pool_of` returns the pool of each event.
    pub(crate) fn repool_backwards(&mut self, mut pool_of: impl FnMut(&Event) -> PoolId) {
        for chunk in (0..self.chunks.len()).rev() {
            for at in (0..self.chunks[chunk].len()).rev() {
                let event = self.chunks[chunk][at].unpack(&self.lanes);
                let pool = pool_of(&event);
                if pool != event.pool
                    && let Some(lane) = self.lane((event.stream, pool))
                {
                    self.chunks[chunk][at].lane_and_action = lane << ACTION_BITS | event.action as u32;
                }
            }
        }
    }
}

impl std::fmt::Debug for EventLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLog").field("len", &self.len).field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}

impl Packed {
    #[inline]
    fn unpack(self, lanes: &[Lane]) -> Event {
        let (stream, pool) = lanes[(self.lane_and_action >> ACTION_BITS) as usize];
        // The byte was made from an `Action`. Any other byte would give the first action.
        let action = Action::from_number(self.lane_and_action as u8).unwrap_or_default();
        Event { time_ns: self.time_ns, addr: self.addr, size: self.size, stream, pool, stack: self.stack, action }
    }
}

impl IntoIterator for EventLog {
    type Item = Event;
    type IntoIter = Drain;

    fn into_iter(self) -> Drain {
        let len = self.len;
        Drain {
            front: Vec::new().into_iter(),
            chunks: self.chunks.into_iter(),
            back: Vec::new().into_iter(),
            lanes: self.lanes,
            len,
        }
    }
}

/// Consumes a log from either end. A chunk's memory is freed when its last event is taken.
pub struct Drain {
    front: std::vec::IntoIter<Packed>,
    chunks: std::vec::IntoIter<Vec<Packed>>,
    back: std::vec::IntoIter<Packed>,
    lanes: Vec<Lane>,
    len: usize,
}

impl Iterator for Drain {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let packed = loop {
            if let Some(packed) = self.front.next() {
                break packed;
            }
            match self.chunks.next() {
                Some(chunk) => self.front = chunk.into_iter(),
                None => break self.back.next()?,
            }
        };
        self.len -= 1;
        Some(packed.unpack(&self.lanes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl DoubleEndedIterator for Drain {
    fn next_back(&mut self) -> Option<Event> {
        let packed = loop {
            if let Some(packed) = self.back.next_back() {
                break packed;
            }
            match self.chunks.next_back() {
                Some(chunk) => self.back = chunk.into_iter(),
                None => break self.front.next_back()?,
            }
        };
        self.len -= 1;
        Some(packed.unpack(&self.lanes))
    }
}

impl ExactSizeIterator for Drain {}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: u64) -> Event {
        Event {
            time_ns: n,
            addr: n * 512,
            size: n + 1,
            stream: n % 3,
            pool: PoolId { first: 0, second: (n % 2) as u32 },
            stack: StackId(n as u32),
            action: Action::from_number((n % 10) as u8).unwrap(),
        }
    }

    fn log(n: u64) -> EventLog {
        let mut log = EventLog::new();
        (0..n).for_each(|i| log.push(event(i)).unwrap());
        log
    }

    #[test]
    fn a_record_is_32_bytes() {
        assert_eq!(std::mem::size_of::<Packed>(), 32);
    }

    #[test]
    fn what_went_in_comes_out_both_ways() {
        let n = LOG_CHUNK_EVENTS as u64 * 2 + 17;
        let log = log(n);
        assert_eq!(log.len() as u64, n);
        assert!(log.iter().eq((0..n).map(event)));
        assert!(log.iter().rev().eq((0..n).rev().map(event)));
        assert_eq!((log.first(), log.last()), (Some(event(0)), Some(event(n - 1))));
        assert!(log.clone().into_iter().rev().eq((0..n).rev().map(event)));
        assert!(log.into_iter().eq((0..n).map(event)));
    }

    #[test]
    fn taking_from_both_ends_meets_in_the_middle() {
        let n = LOG_CHUNK_EVENTS as u64 + 5;
        let mut drain = log(n).into_iter();
        let (mut low, mut high) = (0, n);
        while low < high {
            assert_eq!(drain.len() as u64, high - low);
            assert_eq!(drain.next(), Some(event(low)));
            low += 1;
            if low < high {
                high -= 1;
                assert_eq!(drain.next_back(), Some(event(high)));
            }
        }
        assert_eq!((drain.next(), drain.next_back(), drain.len()), (None, None, 0));
    }

    #[test]
    fn pools_can_be_named_afterwards() {
        let mut log = log(10);
        let private = PoolId { first: 0, second: 7 };
        log.repool_backwards(|event| if event.addr >= 512 * 5 { private } else { event.pool });
        assert!(log.iter().skip(5).all(|event| event.pool == private));
        assert!(log.iter().take(5).eq((0..5).map(event)));
    }
}
