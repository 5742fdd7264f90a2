//! The log of notes in a region. It passes marks, measurements and states from the trainer to the host, in order.
//!
//! Guarantees: a note is visible completely or not at all, also when the writer dies while it writes. `push` never
//! waits. A full log refuses the note and counts it.
//! Requires one writer at a time (the trainer's threads use one lock). The reader checks each length before it uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Region;

/// Counts of the log: the total bytes written and read.
#[repr(C)]
pub struct Control {
    head: AtomicU64,
    tail: AtomicU64,
    /// Number of notes that were dropped because the log was full.
    dropped: AtomicU64,
}

#[cfg(test)]
impl Control {
    /// Acts like a broken trainer.
    pub(super) fn set_head_for_test(&self, head: u64) {
        self.head.store(head, Ordering::Release);
    }

    /// Acts like a broken trainer, which maps the same memory.
    pub(super) fn set_tail_for_test(&self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }
}

/// Notes begin at multiples of this, so that a length field never crosses the end of the log.
const ALIGN: u64 = 8;
/// A value in place of a length. It means that the rest of the log up to its end is unused.
const SKIP: u64 = u64::MAX;

/// The trainer's side.
pub struct Writer {
    region: Arc<Region>,
}

/// The host's side.
pub struct Reader {
    region: Arc<Region>,
    broken: bool,
}

impl Writer {
    pub(super) fn new(region: Arc<Region>) -> Self {
        Self { region }
    }

    /// Appends a note that consists of `parts`. Returns `false` when there is no room.
    pub fn push(&mut self, parts: &[&[u8]]) -> bool {
        let control = self.region.notes_control();
        let (base, capacity) = self.region.notes_bytes();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let needed = (length as u64 + 8).next_multiple_of(ALIGN);
        // Relaxed: written only by this side.
        let head = control.head.load(Ordering::Relaxed);
        // Acquire: the host's reads of the room that it freed happen before our writes.
        let tail = control.tail.load(Ordering::Acquire);
        let used = head.wrapping_sub(tail);
        let at = head % capacity as u64;
        let to_end = capacity as u64 - at;
        let skipped = if needed > to_end { to_end } else { 0 };
        if used > capacity as u64 || skipped + needed > capacity as u64 - used {
            // Relaxed: a plain count.
            control.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // SAFETY: `at`, or the beginning if the rest was skipped, has room for `needed` bytes that the host has freed;
        // one writer.
        unsafe {
            let mut to = base.add(at as usize);
            if skipped > 0 {
                to.cast::<u64>().write(SKIP);
                to = base;
            }
            to.cast::<u64>().write(length as u64);
            to = to.add(8);
            for part in parts {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        // Release: a reader that sees the new head sees the note.
        control.head.store(head.wrapping_add(skipped + needed), Ordering::Release);
        true
    }

    /// Number of notes that were dropped because the log was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        // Relaxed: a plain count.
        self.region.notes_control().dropped.load(Ordering::Relaxed)
    }
}

impl Reader {
    pub(super) fn new(region: Arc<Region>) -> Self {
        Self { region, broken: false }
    }

    /// The next note, if there is one.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        if self.broken {
            return None;
        }
        let control = self.region.notes_control();
        let (base, capacity) = self.region.notes_bytes();
        loop {
            // Relaxed: written only by this side.
            let tail = control.tail.load(Ordering::Relaxed);
            // Acquire: makes the notes before the head visible.
            let head = control.head.load(Ordering::Acquire);
            let used = head.wrapping_sub(tail);
            if used == 0 {
                return None;
            }
            let at = tail % capacity as u64;
            let to_end = capacity as u64 - at;
            if used > capacity as u64 || !at.is_multiple_of(ALIGN) {
                return self.give_up();
            }
            // SAFETY: aligned and inside the log.
            let length = unsafe { base.add(at as usize).cast::<u64>().read() };
            if length == SKIP && to_end <= used {
                // Release: the skipped room may be written again.
                control.tail.store(tail.wrapping_add(to_end), Ordering::Release);
                continue;
            }
            let needed = length.saturating_add(8).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
            if needed > used || needed > to_end {
                return self.give_up();
            }
            // SAFETY: the `length` bytes after the length field are before the head and inside the log.
            let note = unsafe { std::slice::from_raw_parts(base.add(at as usize + 8), length as usize) }.to_vec();
            // Release: our read happens before the writer uses the room again.
            control.tail.store(tail.wrapping_add(needed), Ordering::Release);
            return Some(note);
        }
    }

    fn give_up(&mut self) -> Option<Vec<u8>> {
        tracing::error!("the log of notes is damaged: all later notes of the trainer are lost");
        self.broken = true;
        None
    }

    /// Number of notes that were dropped because the log was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        // Relaxed: a plain count.
        self.region.notes_control().dropped.load(Ordering::Relaxed)
    }
}
