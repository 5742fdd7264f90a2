//! The ring's protocol under loom: every interleaving of one producer and one consumer.
//!
//! `cargo test -p memctl-agent --features loom --test ring_loom --release`
#![cfg(feature = "loom")]

use loom::thread;
use memctl_agent::internals::Ticks;
use memctl_agent::internals::ring::{Record, ring};
use memctl_model::Event;

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
