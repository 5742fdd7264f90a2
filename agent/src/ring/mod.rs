//! The ring between an allocator hook and the batcher: one producer, one consumer, fixed size.
//!
//! Guarantees: `push` takes no lock, makes no system call and never waits. When the ring is full, the newest record is
//! dropped and counted. The next record that has room carries the count, so the batcher knows where the hole is.
//! `pushed + dropped = produced` at every moment.
//!
//! The slots of a ring are grouped in pages. At the end of a page the producer continues in the lowest free page: one
//! that is unused, or that the consumer has read completely. A ring that is emptied in time uses few pages and never
//! touches the memory of the others. A ring can therefore be large, for bursts. Its memory footprint is its high-water
//! mark.
//!
//! Refuses: a second producer (the events of one device are pushed under that device's allocator lock), and to grow.
//!
//! Loom checks the protocol between the two sides (test `ring_loom`).

mod pages;
mod position;
mod record;

use std::sync::Arc;

use pages::Pages;
pub use pages::Shape;
pub use position::Position;
pub use record::Record;

use crate::sync::{AtomicBool, AtomicU16, AtomicU64, Ordering, UnsafeCell, zeroed};

/// Default number of events of a device's ring. At the end of a training, a million blocks may be freed at once. That
/// makes two million events, and half of them may arrive before the batcher has taken any. Only the most events that
/// were in the ring at one time take memory: a running training fills 0.2 MiB.
pub const EVENTS: usize = 1 << 20;

/// The addresses of a ring's parts in memory that is shared with another process.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// The counts.
    pub control: *const Control,
    /// One word per page.
    pub order: *const u16,
    /// The records.
    pub slots: *const Record,
    /// The numbers of records and pages.
    pub shape: Shape,
}

/// Keeps the producer's and the consumer's words on different cache lines (two lines: the prefetcher fetches pairs).
#[repr(C, align(128))]
struct Line<T>(T);

/// Written by the producer.
#[repr(C)]
struct Produced {
    /// Total records pushed.
    head: AtomicU64,
    /// Total records dropped.
    dropped: AtomicU64,
}

/// Written by the consumer.
#[repr(C)]
struct Consumed {
    /// Total records consumed.
    tail: AtomicU64,
    /// The consumer is gone: no room will be freed again.
    closed: AtomicBool,
}

/// The counts of a ring; all zero when new. In a region they precede the slots.
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

/// The memory of a ring. It is kept while the producer, the consumer or a gauge exists.
#[expect(dead_code, reason = "held for its Drop")]
enum Memory {
    Own(Box<Control>, Box<[AtomicU16]>, Box<[UnsafeCell<Record>]>),
    Region(Arc<dyn Send + Sync>),
}

struct Shared {
    control: *const Control,
    /// The pages in the order in which they were filled. The entry for a position is at [`Shape::turn`].
    order: *const AtomicU16,
    slots: *const UnsafeCell<Record>,
    shape: Shape,
    _memory: Memory,
}

// SAFETY: only the producer writes a slot, and only in a page that is unused or that the consumer has read completely.
// The consumer reads the slot only after it saw `head` pass it (Acquire on a Release store). The pointers stay valid
// while `_memory` lives.
unsafe impl Sync for Shared {}
// SAFETY: records are plain data.
unsafe impl Send for Shared {}

impl Shared {
    fn own(shape: Shape) -> Self {
        let control = Box::new(Control::new());
        let order: Box<[AtomicU16]> = (0..shape.pages()).map(|_| AtomicU16::new(0)).collect();
        // SAFETY: a zeroed record is the default one.
        let slots = unsafe { zeroed::<Record>(shape.records as usize) };
        Self {
            control: &raw const *control,
            order: order.as_ptr(),
            slots: slots.as_ptr(),
            shape,
            _memory: Memory::Own(control, order, slots),
        }
    }

    fn within(memory: Arc<dyn Send + Sync>, parts: Parts) -> Self {
        let Parts { control, order, slots, shape } = parts;
        Self { control, order: order.cast(), slots: slots.cast(), shape, _memory: Memory::Region(memory) }
    }

    fn produced(&self) -> &Produced {
        // SAFETY: `control` points into `_memory`.
        unsafe { &(*self.control).produced.0 }
    }

    fn consumed(&self) -> &Consumed {
        // SAFETY: as above.
        unsafe { &(*self.control).consumed.0 }
    }

    /// The word of the page order with the number of the position's page.
    fn page(&self, position: u64) -> &AtomicU16 {
        // SAFETY: a turn is below the number of pages, and `_memory` has a word for each.
        unsafe { &*self.order.add(self.shape.turn(position)) }
    }

    /// The slot of a position in the page that begins with slot `first`.
    #[inline]
    fn slot(&self, first: u64, position: u64) -> &UnsafeCell<Record> {
        let Shape { records, page } = self.shape;
        // SAFETY: records are a power of two, so the mask keeps the index inside the slots of `_memory` for any
        // `first`.
        unsafe { &*self.slots.add(((first + (position & (page - 1))) & (records - 1)) as usize) }
    }
}

/// The hook's side.
pub struct Producer {
    shared: Arc<Shared>,
    head: u64,
    /// The first slot of the page that is being filled, and the position at which the page ends.
    first: u64,
    page_end: u64,
    pages: Pages,
    /// Drops that the next record must carry.
    hole: u32,
}

/// The batcher's side.
pub struct Consumer {
    shared: Arc<Shared>,
    tail: u64,
    /// The first slot of the page that is being read. Not valid while the tail is at the beginning of a page.
    first: u64,
}

/// Reads the counts of a ring from any thread.
#[derive(Clone)]
pub struct Gauge {
    shared: Arc<Shared>,
}

/// Makes a ring of at least `capacity` records (rounded up to a power of two).
#[must_use]
pub fn ring(capacity: usize) -> (Producer, Consumer) {
    let shared = Arc::new(Shared::own(Shape::of(capacity as u64)));
    (Producer::new(shared.clone()), Consumer { shared, tail: 0, first: 0 })
}

/// The producer of a ring in memory shared with another process.
///
/// # Safety
/// All parts are aligned, have the shape's size, began as zeros, and stay mapped as long as `memory` lives. No other
/// producer of this ring exists, in this or another process.
pub unsafe fn producer_in(memory: Arc<dyn Send + Sync>, parts: Parts) -> Producer {
    Producer::new(Arc::new(Shared::within(memory, parts)))
}

/// The consumer of a ring in memory shared with another process. The other process's writes are not trusted. Impossible
/// counts are read as "no records", and an invalid page number is mapped to a valid one.
///
/// # Safety
/// The conditions of [`producer_in`] hold, for the consumer instead of the producer.
pub unsafe fn consumer_in(memory: Arc<dyn Send + Sync>, parts: Parts) -> Consumer {
    Consumer { shared: Arc::new(Shared::within(memory, parts)), tail: 0, first: 0 }
}

impl Producer {
    fn new(shared: Arc<Shared>) -> Self {
        let pages = Pages::new(shared.shape);
        Self { shared, head: 0, first: 0, page_end: 0, pages, hole: 0 }
    }

    /// Pushes a record. When the ring is full, the record is dropped and counted. Returns whether there was room.
    #[inline]
    pub fn push(&mut self, mut record: Record) -> bool {
        if !self.has_room() {
            self.hole = self.hole.saturating_add(1);
            // Relaxed: a plain count; a reader that needs it together with `head` reads both after the producer has
            // stopped.
            let dropped = &self.shared.produced().dropped;
            dropped.store(dropped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return false;
        }
        if self.hole > 0 {
            record.set_dropped_before(self.hole);
            self.hole = 0;
        }
        self.shared.slot(self.first, self.head).with_mut(|slot| {
            // SAFETY: `has_room` saw that the consumer is done with this slot, and there is one producer.
            unsafe { *slot = record };
        });
        self.head += 1;
        // Release: a consumer that sees the new head sees the record.
        self.shared.produced().head.store(self.head, Ordering::Release);
        self.prepare(self.head + 1);
        true
    }

    /// Prefetches the cache line of a slot, which was last read on another core. The allocator's unlock waits for all
    /// earlier stores. Without the prefetch it would wait for that line (100 ns and more).
    #[inline(always)]
    fn prepare(&self, position: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint about our own memory; a processor without it ignores it.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) self.shared.slot(self.first, position), options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = position;
    }

    /// Whether there is room for a record now.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.head < self.page_end || self.turn_page()
    }

    /// Continues in the lowest free page. Returns whether there is one.
    #[inline(never)]
    fn turn_page(&mut self) -> bool {
        let shape = self.shared.shape;
        // Acquire: the consumer's reads of the slots that it freed happen before our writes to them.
        let tail = self.shared.consumed().tail.load(Ordering::Acquire);
        // A tail beyond the head was not written by a valid consumer. It is treated as if nothing was freed.
        let read = if tail <= self.head { tail / shape.page } else { 0 };
        while self.pages.back < read {
            // Relaxed: written only by this side.
            let page = self.shared.page(self.pages.back * shape.page).load(Ordering::Relaxed);
            self.pages.put(u64::from(page) & (shape.pages() - 1));
            self.pages.back += 1;
        }
        let Some(page) = self.pages.take() else { return false };
        // Relaxed: the consumer reads this word only after it saw the head beyond the page's beginning.
        self.shared.page(self.head).store(page as u16, Ordering::Relaxed);
        (self.first, self.page_end) = (page * shape.page, self.head + shape.page);
        true
    }

    /// Whether the consumer is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Relaxed: the flag only ends a wait; no read depends on it.
        self.shared.consumed().closed.load(Ordering::Relaxed)
    }

    /// Records pushed so far: the position of a mark made now.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.head
    }

    /// Records dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        // Relaxed: written only by this side.
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
        // Acquire: a thread that reads a position may then read the records before it.
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
        // Acquire: pairs with the producer's Release and makes the records visible.
        let head = self.shared.produced().head.load(Ordering::Acquire);
        // A count larger than the ring comes from a broken producer. None of its records can be read.
        head.checked_sub(self.tail).filter(|&count| count <= self.shared.shape.records).unwrap_or(0)
    }

    /// Position of the next record.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.tail
    }

    /// Reads up to `count` available records and frees their room.
    pub fn read(&mut self, count: u64, mut each: impl FnMut(&Record)) -> u64 {
        let count = count.min(self.available());
        for _ in 0..count {
            if self.tail & (self.shared.shape.page - 1) == 0 {
                // Relaxed: the producer wrote this word before it moved the head that `available` saw.
                self.first = u64::from(self.shared.page(self.tail).load(Ordering::Relaxed)) * self.shared.shape.page;
            }
            self.shared.slot(self.first, self.tail).with(|slot| {
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
