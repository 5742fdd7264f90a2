//! The ring between an allocator hook and the batcher: one producer, one consumer, fixed size.
//!
//! Guarantees: `push` is O(1), takes no lock, makes no system call and never waits; when the ring is
//! full the newest record is dropped and counted, and the next record that gets through carries the
//! count, so the batcher knows where the hole is. `pushed + dropped = produced` at every moment.
//!
//! Refuses: a second producer (events of one device come from under that device's allocator lock) and
//! growing.
//!
//! The protocol between both sides is checked with loom (feature `loom`, test `ring_loom`).

mod record;

use std::sync::Arc;

pub use record::Record;

#[cfg(feature = "loom")]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(not(feature = "loom"))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(feature = "loom"))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Keeps what the producer writes and what the consumer writes on different cache lines (two lines: the prefetcher fetches pairs).
#[repr(C, align(128))]
struct Line<T>(T);

/// What the producer writes.
#[repr(C)]
struct Produced {
    /// Records pushed, ever.
    head: AtomicU64,
    /// Records dropped, ever.
    dropped: AtomicU64,
}

/// What the consumer writes.
#[repr(C)]
struct Consumed {
    /// Records consumed, ever.
    tail: AtomicU64,
    /// The consumer is gone: nobody will make room again.
    closed: AtomicBool,
}

/// The counts of a ring; all zero when new. In a region it lies in front of the slots.
#[repr(C)]
pub struct Control {
    produced: Line<Produced>,
    consumed: Line<Consumed>,
}

impl Control {
    fn new() -> Self {
        Self {
            produced: Line(Produced { head: AtomicU64::new(0), dropped: AtomicU64::new(0) }),
            consumed: Line(Consumed { tail: AtomicU64::new(0), closed: AtomicBool::new(false) }),
        }
    }
}

/// Whose memory a ring lies in; kept for as long as a side of the ring exists.
#[expect(dead_code, reason = "held for its Drop")]
enum Memory {
    Own(Box<Control>, Box<[UnsafeCell<Record>]>),
    Region(Arc<dyn Send + Sync>),
}

struct Shared {
    control: *const Control,
    slots: *const UnsafeCell<Record>,
    /// A power of two.
    capacity: u64,
    _memory: Memory,
}

// SAFETY: a slot is written only by the producer and only while `head - tail < capacity` excludes it from
// what the consumer may read; the consumer reads it only after it saw `head` pass it (Acquire on a Release store).
// The pointers stay valid as long as `_memory` lives.
unsafe impl Sync for Shared {}
// SAFETY: records are plain data.
unsafe impl Send for Shared {}

impl Shared {
    fn own(capacity: u64) -> Self {
        let control = Box::new(Control::new());
        let slots: Box<[UnsafeCell<Record>]> = (0..capacity).map(|_| UnsafeCell::new(Record::default())).collect();
        Self { control: &raw const *control, slots: slots.as_ptr(), capacity, _memory: Memory::Own(control, slots) }
    }

    fn produced(&self) -> &Produced {
        // SAFETY: `control` points into `_memory`.
        unsafe { &(*self.control).produced.0 }
    }

    fn consumed(&self) -> &Consumed {
        // SAFETY: as above.
        unsafe { &(*self.control).consumed.0 }
    }

    #[inline]
    fn slot(&self, position: u64) -> &UnsafeCell<Record> {
        // SAFETY: capacity is a power of two, so the mask keeps the index inside the `capacity` slots of `_memory`.
        unsafe { &*self.slots.add((position & (self.capacity - 1)) as usize) }
    }
}

/// The side of the hook.
pub struct Producer {
    shared: Arc<Shared>,
    head: u64,
    /// The consumer's position when last looked at: it only grows, so room that was there stays there.
    seen_tail: u64,
    /// Drops that the next record has to carry.
    hole: u32,
}

/// The side of the batcher.
pub struct Consumer {
    shared: Arc<Shared>,
    tail: u64,
}

/// Reads the counts of a ring from any thread.
#[derive(Clone)]
pub struct Gauge {
    shared: Arc<Shared>,
}

/// Makes a ring of at least `capacity` records (rounded up to a power of two).
#[must_use]
pub fn ring(capacity: usize) -> (Producer, Consumer) {
    let shared = Arc::new(Shared::own(capacity.max(2).next_power_of_two() as u64));
    (Producer { shared: shared.clone(), head: 0, seen_tail: 0, hole: 0 }, Consumer { shared, tail: 0 })
}

/// The producer of a ring that lies in memory shared with another process.
///
/// # Safety
/// `control` and `slots` (`capacity` records, a power of two) are aligned, began as zeros, stay mapped as long as
/// `memory` lives, and no other producer of this ring exists, here or in another process.
pub unsafe fn producer_in(
    memory: Arc<dyn Send + Sync>,
    control: *const Control,
    slots: *const Record,
    capacity: u64,
) -> Producer {
    let shared = Arc::new(Shared { control, slots: slots.cast(), capacity, _memory: Memory::Region(memory) });
    Producer { shared, head: 0, seen_tail: 0, hole: 0 }
}

/// The consumer of a ring that lies in memory shared with another process. What the other process writes is not
/// trusted: counts that cannot be read as "nothing there".
///
/// # Safety
/// As for [`producer_in`], for the consumer.
pub unsafe fn consumer_in(
    memory: Arc<dyn Send + Sync>,
    control: *const Control,
    slots: *const Record,
    capacity: u64,
) -> Consumer {
    let shared = Arc::new(Shared { control, slots: slots.cast(), capacity, _memory: Memory::Region(memory) });
    Consumer { shared, tail: 0 }
}

impl Producer {
    /// Pushes a record, or drops and counts it when the ring is full; says whether it got in.
    #[inline]
    pub fn push(&mut self, mut record: Record) -> bool {
        if !self.has_room() {
            self.hole = self.hole.saturating_add(1);
            // Relaxed: a plain count; who needs it together with `head` reads both after the producer has stopped.
            let dropped = &self.shared.produced().dropped;
            dropped.store(dropped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return false;
        }
        if self.hole > 0 {
            record.set_dropped_before(self.hole);
            self.hole = 0;
        }
        self.shared.slot(self.head).with_mut(|slot| {
            // SAFETY: `has_room` saw that the consumer is done with this slot, and there is one producer.
            unsafe { *slot = record };
        });
        self.head += 1;
        // Release: the consumer that sees the new head sees the record.
        self.shared.produced().head.store(self.head, Ordering::Release);
        self.prepare(self.head + 1);
        true
    }

    /// Asks for the line of a slot ahead of its time. It was last read on another core: without this, the allocator's
    /// unlock, which waits for every store before it, would wait for that line to come back (100 ns and more).
    #[inline(always)]
    fn prepare(&self, position: u64) {
        #[cfg(all(target_arch = "x86_64", not(feature = "loom")))]
        // SAFETY: a hint about memory of ours; where the processor does not know it, it does nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) self.shared.slot(position), options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "x86_64", not(feature = "loom"))))]
        let _ = position;
    }

    /// Whether a record would get in now.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let capacity = self.shared.capacity;
        if self.head.wrapping_sub(self.seen_tail) < capacity {
            return true;
        }
        // Acquire: the consumer's reads of the slots it gave back happen before our writes to them.
        self.seen_tail = self.shared.consumed().tail.load(Ordering::Acquire);
        // A tail beyond the head was written by somebody else than the consumer: as if there were no room.
        self.head.checked_sub(self.seen_tail).is_some_and(|used| used < capacity)
    }

    /// Whether the consumer is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Relaxed: only ends a wait; nothing is read on the strength of it.
        self.shared.consumed().closed.load(Ordering::Relaxed)
    }

    /// Records pushed so far: the position at which a mark made now belongs.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.head
    }

    /// Records dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        // Relaxed: this side alone writes it.
        self.shared.produced().dropped.load(Ordering::Relaxed)
    }

    /// Reads the counts from other threads.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge { shared: self.shared.clone() }
    }
}

impl Gauge {
    /// Records pushed so far.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        // Acquire: whoever reads a position may go on to read what lies before it.
        self.shared.produced().head.load(Ordering::Acquire)
    }

    /// Records dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        // Relaxed: see `push`.
        self.shared.produced().dropped.load(Ordering::Relaxed)
    }
}

impl Consumer {
    /// Records that can be read now.
    #[must_use]
    pub fn available(&self) -> u64 {
        // Acquire: pairs with the producer's Release, makes the records visible.
        let head = self.shared.produced().head.load(Ordering::Acquire);
        // More than the ring holds was written by a broken producer: nothing of it can be read.
        head.checked_sub(self.tail).filter(|&count| count <= self.shared.capacity).unwrap_or(0)
    }

    /// Position of the next record.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.tail
    }

    /// Reads up to `count` records that are available and gives their room back.
    pub fn read(&mut self, count: u64, mut each: impl FnMut(&Record)) -> u64 {
        let count = count.min(self.available());
        for _ in 0..count {
            self.shared.slot(self.tail).with(|slot| {
                // SAFETY: `available` saw the head beyond this slot, and the producer does not touch it before `tail` passes it.
                each(unsafe { &*slot });
            });
            self.tail += 1;
        }
        // Release: our reads happen before the producer writes these slots again.
        self.shared.consumed().tail.store(self.tail, Ordering::Release);
        count
    }

    /// Reads the counts from other threads.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge { shared: self.shared.clone() }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Relaxed: see `is_closed`.
        self.shared.consumed().closed.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
