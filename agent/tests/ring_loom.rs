//! Tests the ring's protocol under loom, with every interleaving of one producer and one consumer.
//!
//! The ring's own sources are compiled into this test. They use loom's atomics and cells in place of the standard
//! library's (`sync`). A model ends when every interleaving was tested.

use loom::thread;
use memctl_agent::internals::Ticks;
use memctl_model::Event;
use ring::{Record, ring};

#[path = "../src/ring/mod.rs"]
#[expect(dead_code, unused_imports, reason = "what the model does not need")]
mod ring;

/// The module has the name that the ring's sources use.
mod clock {
    pub use memctl_agent::internals::Ticks;
}

/// The types have the names of the agent's `sync`.
mod sync {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

    /// Like the agent's function.
    ///
    /// # Safety
    /// A `T` of zeros is a value.
    pub unsafe fn zeroed<T>(count: usize) -> Box<[UnsafeCell<T>]> {
        // SAFETY: promised by the caller.
        (0..count).map(|_| UnsafeCell::new(unsafe { std::mem::zeroed() })).collect()
    }
}

fn numbered(number: u64) -> Record {
    Record::new(&Event { time_ns: number, ..Event::default() })
}

#[test]
fn every_interleaving_keeps_order_and_counts() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let gauge = consumer.gauge();
        let pushing = thread::spawn(move || (1..=4).filter(|&number| producer.push(numbered(number))).count() as u64);
        let (mut last, mut read) = (0, 0);
        for _ in 0..3 {
            read += consumer.read(u64::MAX, |record| {
                assert_eq!(record.event(Ticks::as_ns).time_ns, last + 1 + u64::from(record.dropped_before()));
                last = record.event(Ticks::as_ns).time_ns;
            });
            thread::yield_now();
        }
        let pushed = pushing.join().unwrap();
        read += consumer.read(u64::MAX, |record| {
            assert_eq!(record.event(Ticks::as_ns).time_ns, last + 1 + u64::from(record.dropped_before()));
            last = record.event(Ticks::as_ns).time_ns;
        });
        assert_eq!(read, pushed);
        assert_eq!(pushed + gauge.dropped(), 4);
    });
}
