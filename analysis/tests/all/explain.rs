//! Tests of analyses that explain memory, on states of a simulated allocator and on hostile ones: sums are correct,
//! and nothing panics.

use crate::support;

use memctl_analysis::BlockMap;
use memctl_analysis::classes::{Classifier, Shares};
use memctl_analysis::fragmentation::Picture;
use memctl_analysis::fragmentation::judge::{Facts, judge};
use memctl_analysis::ledger::{HeldThen, Ledger};
use memctl_analysis::oom;
use memctl_analysis::rules::PlacementRules;
use memctl_analysis::steady::Steady;
use memctl_model::allocator::segment_bytes;
use memctl_model::{AllocatorSettings, Keyframe, PoolId, Sample, Stack, StackId};
use proptest::prelude::*;
use support::hostile::{hostile_event, hostile_keyframe};
use support::keyframe_of;
use support::requests::{recording, requests, settings};

fn nameless(_: StackId) -> Stack {
    Stack::default()
}

fn steady_over(events: &[memctl_model::Event], map: &mut BlockMap, settings: &AllocatorSettings) -> Steady {
    let mut steady = Steady::new(PlacementRules::new(settings), true);
    for (number, event) in events.iter().enumerate() {
        if number % 7 == 0 {
            steady.step_begins(number as u64, map.levels());
        }
        map.apply(event, memctl_analysis::Birth::default());
        steady.event(number as u64 + 1, event, map.levels());
        if number % 7 == 5 {
            steady.step_ends(map.levels());
        }
    }
    steady
}

fn failed(
    keyframe: &Keyframe,
    settings: &AllocatorSettings,
    rounded_bytes: u64,
    device_free_bytes: u64,
) -> oom::Report {
    let at_request = Picture::of(keyframe, settings.large_segment_size);
    oom::explain(oom::Facts {
        rank: 0,
        device: 0,
        time_ns: 0,
        epoch: None,
        step: None,
        rounded_bytes,
        stream: 0,
        pool: PoolId::DEFAULT,
        stack: Stack::default(),
        device_free_bytes,
        earlier: None,
        input: None,
        demand: oom::demand::Demand::default(),
        failures: 1,
        first_failure: None,
        own_limit_bytes: None,
        reserved_after_bytes: at_request.reserved_bytes - at_request.empty_bytes.min(at_request.reserved_bytes),
        reserved_peak_bytes: at_request.reserved_bytes,
        device_total_bytes: None,
        others_bytes: Some(rounded_bytes),
        classes: Shares::default(),
        sites: Vec::new(),
        stranding_blocks: Vec::new(),
        peers: Vec::new(),
        settings: settings.clone(),
        went_on: false,
        exact: true,
        at_request,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_picture_says_what_the_counters_say(settings in settings(), requests in requests(200)) {
        let events: Vec<_> = recording(&settings, &requests, true).iter().map(|recorded| recorded.event).collect();
        let mut map = BlockMap::new(&settings);
        let steady = steady_over(&events, &mut map, &settings);
        let (keyframe, counters) = (keyframe_of(&map), map.counters());
        let picture = Picture::of(&keyframe, settings.large_segment_size);
        prop_assert_eq!(picture.reserved_bytes, counters.reserved_bytes);
        prop_assert_eq!(picture.active_bytes, counters.active_bytes);
        prop_assert_eq!(picture.allocated_bytes, counters.allocated_bytes);
        prop_assert_eq!(picture.requested_bytes, counters.requested_bytes);
        prop_assert_eq!(picture.largest_free_bytes, counters.largest_free_bytes);
        prop_assert_eq!(picture.segments, counters.segments);
        prop_assert_eq!(picture.reserved_bytes, picture.active_bytes + picture.empty_bytes + picture.stranded_bytes);
        let shares = Classifier::new(&nameless).of_state(&keyframe, Some(3), None);
        prop_assert_eq!(shares.total(), counters.allocated_bytes);
        let of_rows = Classifier::new(&nameless).of_rows(&map.site_rows(), &std::collections::HashMap::new());
        prop_assert_eq!(of_rows.total(), counters.allocated_bytes);
        // Without stacks, steps and phases, only cuBLAS's workspaces are classified.
        prop_assert!(shares.unknown_share().is_none_or(|share| share > 0.0));
        let ledger = Ledger::new(shares, counters.reserved_bytes, None, HeldThen::default());
        prop_assert_eq!(ledger.allocated_bytes() + ledger.cached_bytes, counters.reserved_bytes);
        prop_assert!(steady.highest().bytes <= map.peaks().allocated_bytes);
        prop_assert!(steady.calls.taken_bytes >= steady.calls.returned_bytes.saturating_sub(map.peaks().reserved_bytes));
    }

    #[test]
    fn a_segment_is_never_smaller_than_its_request(settings in settings(), rounded in 1_u64..1 << 40) {
        let rounded = rounded.next_multiple_of(512);
        prop_assert!(segment_bytes(rounded, settings.large_segment_size) >= rounded);
    }

    #[test]
    fn nothing_panics(
        keyframe in hostile_keyframe(),
        events in prop::collection::vec(hostile_event(), 0..60),
        settings in settings(),
        asked in any::<u64>(),
        free in any::<u64>(),
        used in any::<u64>(),
    ) {
        let mut map = BlockMap::new(&settings);
        let steady = steady_over(&events, &mut map, &settings);
        let report = failed(&keyframe, &settings, asked, free);
        prop_assert!(!oom::findings(std::slice::from_ref(&report), 1)[0].title.is_empty());
        let picture = Picture::of(&keyframe, settings.large_segment_size);
        let facts = Facts {
            rank: 0, device: 0, picture: &picture, step: Some(1), epoch: None, steady: &steady, settings: &settings,
            room_bytes: Some(free), peak_bytes: None, failed: None,
        };
        let judged = judge(&facts, &nameless);
        prop_assert_eq!(judged.severity.is_some(), judged.cause.is_some());
        let shares = Classifier::new(&nameless).of_state(&keyframe, None, None);
        let sample = Sample { device_used_bytes: Some(used), process_used_bytes: Some(free), ..Sample::default() };
        prop_assert!(Ledger::new(shares, picture.reserved_bytes, Some(&sample), HeldThen::default()).unexplained_bytes.is_some());
    }
}
