//! Compares the block map with a simulated allocator: equal counters and layout after every event, for all requests,
//! streams, pools and settings. Also tests the map's invariants with ordinary and hostile events.

use crate::support;

use memctl_analysis::{Anomalies, Birth, BlockMap};
use memctl_model::{AllocatorSettings, Event, Phase};
use proptest::prelude::*;
use support::hostile::{hostile_event, hostile_keyframe};
use support::requests::{recording, requests, settings};
use support::{assert_consistent, counters_of, keyframe_of};

fn birth_at(position: usize) -> Birth {
    Birth { epoch: position as u32 / 50, step: position as u64 / 5, phase: Phase::of_number(position as u32 % 6) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Births are not compared: the simulated allocator has no training loop.
    #[test]
    fn equals_the_allocator_after_every_event(settings in settings(), requests in requests(300)) {
        let mut map = BlockMap::new(&settings);
        let (mut peak_allocated, mut peak_reserved) = (0, 0);
        for recorded in recording(&settings, &requests, true) {
            map.apply(&recorded.event, Birth::default());
            let counters = counters_of(&recorded.segments);
            prop_assert_eq!(map.counters(), counters, "after {:x?}", recorded.event);
            let keyframe = keyframe_of(&map);
            prop_assert_eq!(keyframe.segments, recorded.segments, "after {:x?}", recorded.event);
            prop_assert!(keyframe.loose.is_empty());
            peak_allocated = peak_allocated.max(counters.allocated_bytes);
            peak_reserved = peak_reserved.max(counters.reserved_bytes);
        }
        prop_assert_eq!(map.anomalies(), Anomalies::default());
        prop_assert_eq!((map.peaks().allocated_bytes, map.peaks().reserved_bytes), (peak_allocated, peak_reserved));
        assert_consistent(&map);
    }

    #[test]
    fn a_replay_may_be_cut_anywhere(settings in settings(), requests in requests(300), cut in any::<usize>()) {
        let events: Vec<Event> = recording(&settings, &requests, true).iter().map(|r| r.event).collect();
        let cut = cut % (events.len() + 1);
        let mut whole = BlockMap::new(&settings);
        let mut second_half = BlockMap::new(&settings);
        let mut peaks_of_halves = Default::default();
        for (position, event) in events.iter().enumerate() {
            if position == cut {
                second_half.restore(&keyframe_of(&whole));
                peaks_of_halves = whole.peaks();
            }
            whole.apply(event, birth_at(position));
            if position >= cut {
                second_half.apply(event, birth_at(position));
            }
        }
        if cut == events.len() {
            second_half.restore(&keyframe_of(&whole));
            peaks_of_halves = whole.peaks();
        }
        prop_assert_eq!(keyframe_of(&whole), keyframe_of(&second_half));
        prop_assert_eq!(whole.counters(), second_half.counters());
        prop_assert_eq!(whole.site_rows(), second_half.site_rows());
        prop_assert_eq!(second_half.anomalies(), Anomalies::default());
        peaks_of_halves.raise(&memctl_model::Counters {
            allocated_bytes: second_half.peaks().allocated_bytes,
            reserved_bytes: second_half.peaks().reserved_bytes,
            ..Default::default()
        });
        prop_assert_eq!(whole.peaks(), peaks_of_halves);
    }

    /// Addresses and sizes from few values, so that events collide; some at the end of the address space.
    #[test]
    fn hostile_events_leave_a_consistent_map(
        settings in settings(),
        events in prop::collection::vec(hostile_event(), 1..300),
        restart in any::<bool>(),
    ) {
        let mut map = BlockMap::new(&settings);
        for (position, event) in events.iter().enumerate() {
            map.apply(event, birth_at(position));
            assert_consistent(&map);
            if restart && position % 40 == 39 {
                let (before, anomalies) = (keyframe_of(&map), map.anomalies());
                map.restore(&before);
                prop_assert_eq!(keyframe_of(&map), before);
                prop_assert_eq!(map.anomalies(), anomalies, "its own keyframe contradicts nothing");
            }
        }
    }

    /// Events missing from an ordinary recording may make the map inexact, but never inconsistent. Its segments are
    /// correct again as soon as their events are.
    #[test]
    fn lost_events_leave_a_consistent_map(
        settings in settings(),
        requests in requests(200),
        lost in prop::collection::vec(prop::bool::weighted(0.1), 400),
    ) {
        let recorded = recording(&settings, &requests, true);
        let mut map = BlockMap::new(&settings);
        for (recorded, _) in recorded.iter().zip(lost.iter().cycle()).filter(|&(_, &lost)| !lost) {
            map.apply(&recorded.event, Birth::default());
            assert_consistent(&map);
        }
    }

    #[test]
    fn hostile_keyframes_are_put_right(keyframe in hostile_keyframe()) {
        let mut map = BlockMap::new(&AllocatorSettings::default());
        map.restore(&keyframe);
        assert_consistent(&map);
        let own = keyframe_of(&map);
        map.restore(&own);
        prop_assert_eq!(keyframe_of(&map), own);
    }
}
