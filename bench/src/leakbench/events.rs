//! A base with its added blocks, event by event.
//!
//! Guarantees: added blocks are placed as by the caching allocator ([`Arena`]).

use super::arena::Arena;
use super::base::{Base, Passing};
use super::overlay::Overlay;

/// Passes every event of a base and of its added blocks to `sink`, in order. Each event has the position after which it
/// occurs.
pub fn pass(base: &Base, overlay: Overlay, sink: &mut dyn FnMut(usize, &Passing)) {
    let mut arena = Arena::default();
    let changes = overlay.sorted();
    let mut waiting = changes.iter().peekable();
    let mut time_ns = 0;
    for (at, moment) in base.moments.iter().enumerate() {
        time_ns = match moment {
            Passing::Event(event) => event.time_ns,
            Passing::Mark(mark) => mark.time_ns.max(time_ns),
        };
        sink(at, moment);
        while let Some(&(_, block, change)) = waiting.next_if(|&&(place, ..)| place <= at) {
            arena.change(block, change, time_ns, &mut |event| sink(at, &Passing::Event(event)));
        }
    }
}
