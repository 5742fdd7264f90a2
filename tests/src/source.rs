//! A seeded producer: a small allocator whose output can be computed again.
//!
//! Fault tests compare stored events with it one by one, because its events are a pure function of the seed.

use memctl_model::{Action, Event, StackId};

/// Deterministic events: allocations and frees of a few sizes, and an occasional segment.
pub struct Producer {
    state: u64,
    time_ns: u64,
    next_addr: u64,
    live: Vec<(u64, u64, StackId)>,
    /// A free that was requested and will be completed next.
    pending: Option<(u64, u64)>,
}

impl Producer {
    /// A producer of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed | 1,
            time_ns: 1_700_000_000_000_000_000,
            next_addr: 1 << 36,
            live: Vec::new(),
            pending: None,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        // Xorshift64, which is sufficiently random and the same on every machine.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }
}

impl Iterator for Producer {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        // Multiples of the resolution, so that decoded times equal the originals.
        self.time_ns += 100 * (1 + self.draw(50));
        let base = Event { time_ns: self.time_ns, ..Event::default() };
        if let Some((addr, size)) = self.pending.take() {
            return Some(Event { action: Action::FreeCompleted, addr, size, ..base });
        }
        if self.live.len() > 64 || (!self.live.is_empty() && self.draw(2) == 0) {
            let index = self.draw(self.live.len() as u64) as usize;
            let (addr, size, _) = self.live.swap_remove(index);
            self.pending = Some((addr, size));
            return Some(Event { action: Action::FreeRequested, addr, size, ..base });
        }
        let size = 512 * (1 + self.draw(40));
        let stack = StackId(1 + self.draw(8) as u32);
        let addr = self.next_addr;
        self.next_addr += size;
        self.live.push((addr, size, stack));
        Some(Event { action: Action::Alloc, addr, size, stack, ..base })
    }
}
