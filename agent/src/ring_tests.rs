//! Tests the ring against a model: a queue of fixed length that drops the newest records.
//!
//! This file is next to the ring's folder and not in it, because `ring_loom` compiles that folder as a part of a test.

use std::collections::VecDeque;

use memctl_model::Event;
use proptest::prelude::*;

use crate::clock::Ticks;
use crate::ring::*;

fn numbered(number: u64) -> Record {
    Record::new(&Event { time_ns: number, ..Event::default() })
}

#[derive(Clone, Debug)]
enum Do {
    Push(u8),
    Read(u8),
}

proptest! {
    #[test]
    fn it_is_a_bounded_queue_that_drops_the_newest(
        capacity in 1_usize..9,
        steps in proptest::collection::vec(
            prop_oneof![(0_u8..12).prop_map(Do::Push), (0_u8..12).prop_map(Do::Read)], 0..60),
    ) {
        let (mut producer, mut consumer) = ring(capacity);
        let capacity = capacity.max(2).next_power_of_two();
        let (mut model, mut next, mut dropped, mut hole) = (VecDeque::new(), 0, 0, 0);
        for step in steps {
            match step {
                Do::Push(count) => for _ in 0..count {
                    next += 1;
                    let room = model.len() < capacity;
                    prop_assert_eq!(producer.push(numbered(next)), room);
                    if room {
                        model.push_back((next, std::mem::take(&mut hole)));
                    } else {
                        dropped += 1;
                        hole += 1;
                    }
                },
                Do::Read(count) => {
                    let read = consumer.read(u64::from(count), |record| {
                        let (number, hole) = model.pop_front().expect("the model has as many");
                        assert_eq!((record.event(Ticks::as_ns).time_ns, record.dropped_before()), (number, hole));
                    });
                    prop_assert!(read <= u64::from(count));
                }
            }
            let gauge = producer.gauge();
            prop_assert_eq!(gauge.pushed() + gauge.dropped(), next);
            prop_assert_eq!(gauge.dropped(), dropped);
            prop_assert_eq!(consumer.available(), model.len() as u64);
        }
    }
}

proptest! {
    #[test]
    fn pages_change_nothing_but_when_it_is_full(
        capacity in 128_usize..3_000,
        steps in proptest::collection::vec((any::<bool>(), 0_u64..900), 0..60),
    ) {
        let (mut producer, mut consumer) = ring(capacity);
        let shape = Shape::of(capacity as u64);
        prop_assert!(shape.page > 1 && shape.records >= capacity as u64);
        let (mut model, mut next, mut hole) = (VecDeque::new(), 0, 0);
        for (push, count) in steps {
            if !push {
                let before = model.len() as u64;
                let read = consumer.read(count, |record| {
                    let (number, hole) = model.pop_front().expect("the model has as many");
                    assert_eq!((record.event(Ticks::as_ns).time_ns, record.dropped_before()), (number, hole));
                });
                prop_assert_eq!(read, count.min(before));
                continue;
            }
            for _ in 0..count {
                next += 1;
                let waiting = model.len() as u64;
                if producer.push(numbered(next)) {
                    prop_assert!(waiting < shape.records);
                    model.push_back((next, std::mem::take(&mut hole)));
                } else {
                    // The page that is being read has not been freed yet.
                    prop_assert!(waiting > shape.records - shape.page);
                    hole += 1;
                }
            }
        }
    }
}

#[test]
fn two_threads_lose_nothing_but_what_was_counted() {
    const EVENTS: u64 = 200_000;
    let (mut producer, mut consumer) = ring(256);
    let gauge = producer.gauge();
    let pushing = std::thread::spawn(move || (1..=EVENTS).filter(|&number| producer.push(numbered(number))).count());
    let (mut last, mut read, mut holes) = (0, 0, 0);
    while !pushing.is_finished() || consumer.available() > 0 {
        read += consumer.read(u64::MAX, |record| {
            let number = record.event(Ticks::as_ns).time_ns;
            holes += u64::from(record.dropped_before());
            assert_eq!(number, last + 1 + u64::from(record.dropped_before()), "a record is late or its hole is wrong");
            last = number;
        });
    }
    assert_eq!(read, pushing.join().unwrap() as u64);
    assert_eq!(read + gauge.dropped(), EVENTS);
    assert_eq!(holes, last - read, "every hole before the last record was announced");
}

#[test]
fn a_gone_consumer_is_noticed() {
    let (producer, consumer) = ring(4);
    assert!(!producer.is_closed());
    drop(consumer);
    assert!(producer.is_closed());
}
