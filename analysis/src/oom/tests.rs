//! Tests that each cause follows from its arithmetic, and tests of the sentences.

use memctl_model::{
    BlockState, BlockUse, DeviceIndex, EvidenceValue, Finding, FindingKind, Frame, Keyframe, KeyframeReason,
    SegmentKind, SegmentState, Severity, StackId,
};
use proptest::prelude::*;

use super::demand::Requests;
use super::*;
use crate::fragmentation::picture::Pin;

mod accumulated;
mod repeated;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `holed` segments of 20 MiB in which every second block of 4 MiB is free, and `whole` live blocks of 1 GiB.
fn picture(holed: u64, whole: u64) -> Picture {
    let base = 1 << 40;
    let block = |addr: u64, size: u64, live: bool| BlockState {
        addr,
        size,
        requested: if live { size } else { 0 },
        usage: if live { BlockUse::Allocated } else { BlockUse::Inactive },
        stack: StackId(1),
        ..BlockState::default()
    };
    let mut segments: Vec<SegmentState> = (0..holed)
        .map(|at| {
            let addr = base + at * 20 * MIB;
            let blocks = (0..5).map(|place| block(addr + place * 4 * MIB, 4 * MIB, place % 2 == 0)).collect();
            SegmentState { addr, size: 20 * MIB, blocks, kind: SegmentKind::Large, ..SegmentState::default() }
        })
        .collect();
    segments.extend((0..whole).map(|at| {
        let addr = 2 * base + at * GIB;
        SegmentState { addr, size: GIB, blocks: vec![block(addr, GIB, true)], ..SegmentState::default() }
    }));
    let state = Keyframe {
        device: DeviceIndex(0),
        at_event: 0,
        time_ns: 0,
        reason: KeyframeReason::OutOfMemory,
        segments,
        loose: Vec::new(),
    };
    Picture::of(&state, 20 * MIB)
}

fn frame() -> Stack {
    Stack { frames: vec![Frame { function: "forward".into(), file: "/home/me/model.py".into(), line: 12 }] }
}

fn facts(at_request: Picture, rounded_bytes: u64, device_free_bytes: u64) -> Facts {
    Facts {
        rank: 0,
        device: 0,
        time_ns: 1,
        epoch: Some(2),
        step: Some(117),
        rounded_bytes,
        stream: 0,
        pool: PoolId::DEFAULT,
        stack: frame(),
        device_free_bytes,
        earlier: None,
        input: None,
        demand: Demand::default(),
        reserved_after_bytes: at_request.reserved_bytes,
        reserved_peak_bytes: at_request.reserved_bytes,
        stranding_blocks: at_request.pins.iter().map(|&pin: &Pin| Holder { pin, stack: frame() }).collect(),
        at_request,
        device_total_bytes: None,
        own_limit_bytes: None,
        others_bytes: None,
        classes: Shares::default(),
        sites: Vec::new(),
        peers: Vec::new(),
        settings: AllocatorSettings::default(),
        went_on: false,
        failures: 1,
        first_failure: None,
        exact: true,
    }
}

fn title(facts: Facts) -> (OomCause, String) {
    let report = explain(facts);
    let found = findings(std::slice::from_ref(&report), 4);
    (report.cause, found[0].title.clone())
}

#[test]
fn free_bytes_in_pieces_are_fragmentation() {
    let report = explain(facts(picture(128, 0), GIB, 100 * GIB));
    assert_eq!(report.cause, OomCause::Fragmentation);
    assert_eq!((report.free_bytes, report.largest_usable_bytes), (GIB, 4 * MIB));
    assert_eq!(report.limit_bytes, Some((128 * 20 * MIB, 128 * 20 * MIB + GIB)));
    assert!(!report.expandable_would_serve, "no whole page is free");
    let mostly_on_the_device = explain(facts(picture(128, 0), 3 * GIB, 5 * GIB / 2));
    assert!(
        findings(&[mostly_on_the_device], 1)[0].title.ends_with(
            "2.50 GiB are free on the device and 1.00 GiB in the cache, but there in blocks of at most 4.00 MiB: fragmentation"
        )
    );
    let limited = explain(facts(picture(128, 0), 3 * GIB, 100 * GIB));
    assert!(limited.limit_bytes.is_some());
    assert!(!findings(&[limited], 1)[0].title.contains("free on the device"), "the device has 100 GiB");
    let found = &findings(&[report], 1)[0];
    assert_eq!(
        found.title,
        "Out of memory on rank 0 in epoch 2, step 117: 1.00 GiB requested in forward (model.py:12), 1.00 GiB are free in the cache, but in blocks of at most 4.00 MiB: fragmentation"
    );
    assert_eq!(
        found.explanation,
        "Rank 0 had 2.50 GiB reserved, of which 1.50 GiB were in use and 1.00 GiB free: the largest free block that could serve 1.00 GiB was 4.00 MiB. Emptying the cache released nothing, because every segment holds live blocks. The device had 100 GiB free, so the process's own limit was in force: at least 2.50 GiB and less than 3.50 GiB."
    );
    assert_eq!(
        found.advice,
        "384 blocks of forward (model.py:12) lie between the holes: free them together, keep them in one tensor, or allocate the large tensor first; `memctl what-if --job JOB` replays the job under other allocator settings."
    );
}

#[test]
fn a_full_device_is_capacity_a_neighbour_or_memory_outside() {
    let full = || facts(picture(0, 70), 4 * GIB, GIB);
    let (cause, sentence) = title(Facts { device_total_bytes: Some(80 * GIB), ..full() });
    assert_eq!(cause, OomCause::Capacity);
    assert_eq!(
        sentence,
        "Out of memory on rank 0 in epoch 2, step 117: 4.00 GiB requested in forward (model.py:12), with 70.0 GiB in use of 80.0 GiB: at least 3.00 GiB too much"
    );
    let (cause, sentence) = title(Facts { device_total_bytes: Some(80 * GIB), others_bytes: Some(8 * GIB), ..full() });
    assert_eq!(cause, OomCause::Neighbour);
    assert!(sentence.ends_with("while other processes hold 8.00 GiB of its device"), "{sentence}");
    let (cause, sentence) = title(Facts { device_total_bytes: Some(80 * GIB), others_bytes: Some(0), ..full() });
    assert_eq!(cause, OomCause::OutsideAllocator);
    assert!(sentence.ends_with("while this process uses 9.00 GiB outside PyTorch's allocator"), "{sentence}");
}

#[test]
fn capacity_says_how_much_less_would_have_done() {
    let mut classes = Shares::default();
    classes.add(Class::Activations, 16 * GIB);
    classes.add(Class::OptimizerState, 20 * GIB);
    let peers = vec![Peer {
        rank: 1,
        process: "rank 1".to_owned(),
        reserved_bytes: GIB,
        peak_allocated_bytes: GIB,
        device_free_bytes: Some(9 * GIB),
    }];
    let report = explain(Facts { classes, peers, ..facts(picture(0, 70), 4 * GIB, GIB) });
    let found = &findings(&[report], 2)[0];
    assert_eq!(
        found.advice,
        "Rank 0 alone would have needed at least 3.00 GiB less: a batch smaller by 15 % or more (activations and this request are 20.0 GiB; what the step allocates after it comes on top); gradient checkpointing trades time for activations, or shard the optimizer's state (20.0 GiB)."
    );
    assert!(found.explanation.ends_with("rank 1 was closest to running out, with 9.00 GiB free on its device."));
}

#[test]
fn a_step_unlike_those_before_it_is_no_reason_for_a_smaller_batch() {
    let of_requests = |peak_bytes, requests| {
        let mut classes = Shares::default();
        classes.add(Class::Activations, 10 * GIB);
        let earlier = Some(Earlier { kept_bytes: 60 * GIB, peak_bytes });
        let demand = Demand { requests: Some(requests), ..Demand::default() };
        let report = explain(Facts { classes, earlier, demand, ..facts(picture(0, 70), 4 * GIB, GIB) });
        findings(&[report], 1)[0].advice.clone()
    };
    let of = |peak_bytes| of_requests(peak_bytes, Requests::Larger);
    let new = of_requests(60 * GIB + 24 * MIB, Requests::OfNewLines);
    assert!(new.ends_with("look at the size of these requests, and why this step reaches them."), "{new}");
    let more_of_them = of_requests(60 * GIB + 24 * MIB, Requests::Alike);
    assert!(more_of_them.contains("Its requests are not larger than those of earlier steps"), "{more_of_them}");
    assert!(!more_of_them.contains("the size of its input"), "{more_of_them}");
    assert_eq!(
        of(60 * GIB + 24 * MIB),
        "This request would have been served with 3.00 GiB less: beyond the 60.0 GiB that stay between steps, earlier steps needed at most 24.0 MiB and this one at least 14.0 GiB. Look at the size of its input (a longer sequence, a larger image): limit it, split it, or sort inputs by size."
    );
    assert!(of(72 * GIB).contains("a batch smaller by 22 %"), "{}", of(72 * GIB));
    assert!(of(60 * GIB).contains("a batch smaller"), "the earlier steps are not known: {}", of(60 * GIB));
}

#[test]
fn what_was_live_names_each_place_once() {
    let at =
        |line| Stack { frames: vec![Frame { function: "forward".into(), file: "/home/me/model.py".into(), line }] };
    let site = |stack, bytes, grown: u64| SiteUse { stack, bytes, blocks: 1, before_bytes: Some(bytes - grown) };
    let sites = vec![
        site(at(12), 5 * GIB, GIB),
        site(at(30), 4 * GIB, 2 * GIB),
        site(at(12), 3 * GIB, GIB),
        site(at(12), 2 * GIB, GIB),
    ];
    let found = &findings(&[explain(Facts { sites, ..facts(picture(0, 70), 4 * GIB, GIB) })], 1)[0];
    let text = &found.explanation;
    assert!(text.contains("What was live: 10.0 GiB forward (model.py:12), 4.00 GiB forward (model.py:30)."), "{text}");
    assert!(text.ends_with("Since the last step that ended, forward (model.py:12) grew most, by 3.00 GiB."), "{text}");
}

#[test]
fn ranks_that_failed_alike_are_one_finding() {
    let report = |rank| explain(Facts { rank, ..facts(picture(128, 0), GIB, 100 * GIB) });
    let other = explain(Facts { rank: 3, ..facts(picture(0, 70), 4 * GIB, GIB) });
    let found = findings(&[report(1), report(0), report(2), other], 4);
    let ranks: Vec<&[u32]> = found.iter().map(|finding| finding.ranks.as_slice()).collect();
    assert_eq!(ranks, [&[3][..], &[0, 1, 2]]);
    assert_ne!(found[0].fingerprint("j"), found[1].fingerprint("j"));
}

#[test]
fn a_death_outside_torch_says_what_is_known() {
    let found = unexplained(
        2,
        4,
        "killed by signal 9 (SIGKILL)",
        5,
        &[("host_rss_bytes", Some(60 * GIB)), ("device_used_bytes", None)],
    );
    assert_eq!(
        found.title,
        "Rank 2 ended because memory ran out outside PyTorch's allocator: killed by signal 9 (SIGKILL)"
    );
    assert!(found.explanation.ends_with("The last figures: host rss 60.0 GiB."), "{}", found.explanation);
}

use super::finding::unexplained;
use crate::classes::Class;

proptest! {
    #[test]
    fn the_arithmetic_holds(holed in 0_u64..200, whole in 0_u64..40, asked in 1_u64..8192, free in 0_u64..200, others in prop::option::of(0_u64..80)) {
        let picture = picture(holed, whole);
        let report = explain(Facts { others_bytes: others.map(|gib| gib * GIB), ..facts(picture.clone(), asked * MIB, free * GIB / 4) });
        prop_assert_eq!(picture.reserved_bytes + picture.loose_bytes, picture.active_bytes + picture.free_bytes);
        prop_assert_eq!(picture.free_bytes, picture.empty_bytes + picture.stranded_bytes);
        let pinned: u64 = picture.pins.iter().map(|pin| pin.stranded_bytes).sum();
        prop_assert_eq!(pinned + picture.other_pins_bytes, picture.stranded_bytes);
        prop_assert!(report.stranded_bytes <= report.free_bytes);
        prop_assert!(picture.stranded_page_bytes <= picture.stranded_bytes);
        if let Some((least, below)) = report.limit_bytes {
            prop_assert!(least <= below && report.facts.device_free_bytes >= report.segment_bytes);
        }
        if report.cause == OomCause::Capacity {
            prop_assert!(report.stranded_bytes - report.rounded_away_bytes < report.segment_bytes);
        }
        // Any input gives a sentence.
        prop_assert!(findings(&[report], 1)[0].title.contains("requested in"));
    }
}

fn leak(bytes: u64, severity: Severity, site: Stack) -> Finding {
    Finding {
        live_bytes: Some(bytes),
        time_to_oom_seconds: Some(9.0),
        site: site.site().cloned(),
        title: "Live memory grows 240 MiB per epoch on rank 0".into(),
        horizon: Some("in about 9 s".into()),
        ..Finding::new(FindingKind::Leak, severity, 0.9, vec![0])
    }
}

/// A failed request of 1 GiB: 1.5 GiB are in use, with 1 GiB free between them, all of one site.
fn fragmented() -> Report {
    explain(facts(picture(128, 0), GIB, 100 * GIB))
}

#[test]
fn a_request_that_fails_because_a_leak_filled_the_device_is_the_leaks_outcome() {
    let mut reports = [fragmented()];
    let mut found = vec![leak(1200 * MIB, Severity::Warning, frame())];
    outcome::blame(&mut reports, &found);
    assert_eq!(reports[0].cause, OomCause::Leak);
    assert!(findings(&reports, 1).is_empty(), "one cause, one finding");
    outcome::tell(&mut found, &reports, 1);
    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(
        finding.headline(),
        "Live memory grows 240 MiB per epoch on rank 0; rank 0 ran out of memory in epoch 2, step 117, when 1.00 GiB were requested in forward (model.py:12)"
    );
    assert_eq!((finding.severity, finding.time_to_oom_seconds), (Severity::Critical, None));
    assert!(finding.explanation.contains("1.00 GiB were free beside live blocks"), "{}", finding.explanation);
    assert!(finding.evidence.contains(&("oom_stranded_bytes".into(), EvidenceValue::Count(GIB))), "{finding:#?}");
    assert!(outcome::tells(finding));
}

#[test]
fn where_no_free_block_could_serve_a_request_no_size_is_named() {
    let mut found = vec![leak(1200 * MIB, Severity::Warning, frame())];
    let mut reports = [Report { largest_usable_bytes: 0, ..fragmented() }];
    outcome::blame(&mut reports, &found);
    outcome::tell(&mut found, &reports, 1);
    let explanation = &found[0].explanation;
    assert!(explanation.contains("no free block could serve 1.00 GiB. "), "{explanation}");
    assert!(explanation.contains("1.00 GiB were free beside live blocks."), "{explanation}");
}

#[test]
fn a_suspicion_that_filled_the_device_is_one_no_longer() {
    let mut reports = [fragmented()];
    let suspected = ("suspected".to_owned(), EvidenceValue::Count(1));
    let mut found = vec![Finding {
        title: "Live memory has grown 240 MiB per epoch on rank 0".into(),
        evidence: vec![suspected],
        ..leak(1200 * MIB, Severity::Info, frame())
    }];
    outcome::blame(&mut reports, &found);
    outcome::tell(&mut found, &reports, 1);
    assert!(
        found[0].title.starts_with("Live memory has grown 240 MiB per epoch on rank 0; rank 0 ran out"),
        "{}",
        found[0].title
    );
    assert!(!found[0].is_suspected && found[0].severity == Severity::Critical);
}

#[test]
fn a_leak_is_not_blamed_for_what_it_did_not_do() {
    let elsewhere = Stack { frames: vec![Frame { function: "keep".into(), file: "a.py".into(), line: 1 }] };
    let cause = |finding: Finding| {
        let mut reports = [fragmented()];
        outcome::blame(&mut reports, &[finding]);
        reports[0].cause
    };
    assert_eq!(cause(leak(20 * MIB, Severity::Warning, frame())), OomCause::Fragmentation, "a crumb");
    assert_eq!(
        cause(leak(900 * MIB, Severity::Warning, elsewhere.clone())),
        OomCause::Fragmentation,
        "the holes are larger"
    );
    assert_eq!(
        cause(leak(300 * MIB, Severity::Info, frame())),
        OomCause::Fragmentation,
        "a suspicion that holds little"
    );
    let other = Finding { ranks: vec![3], ..leak(1200 * MIB, Severity::Warning, frame()) };
    assert_eq!(cause(other), OomCause::Fragmentation, "another rank's");
    let skew = Finding { kind: FindingKind::RankSkew, ..leak(1200 * MIB, Severity::Warning, frame()) };
    assert_eq!(cause(skew), OomCause::Fragmentation, "no growth");
}

#[test]
fn predictions_that_came_true_and_idle_memory_beside_what_leaked_are_no_findings() {
    let mut reports = [fragmented()];
    let near = Finding::new(FindingKind::NearOom, Severity::Warning, 0.9, vec![0]);
    let elsewhere = Finding { ranks: vec![1], ..near.clone() };
    let mut found = vec![leak(1200 * MIB, Severity::Warning, frame()), near, elsewhere];
    outcome::blame(&mut reports, &found);
    outcome::tell(&mut found, &reports, 2);
    let kinds: Vec<(FindingKind, &[u32])> = found.iter().map(|finding| (finding.kind, &*finding.ranks)).collect();
    assert_eq!(kinds, [(FindingKind::Leak, &[0][..]), (FindingKind::NearOom, &[1])]);
}

#[test]
fn what_the_driver_rounds_up_is_not_fragmentation() {
    // 700 segments of 12 MiB, each with one block of 11 MiB: 700 MiB are free in rests that no large request fits
    // into.
    let base = 1_u64 << 40;
    let block = |addr: u64, size: u64, usage: BlockUse| BlockState {
        addr,
        size,
        requested: size,
        usage,
        ..BlockState::default()
    };
    let segments = (0..700)
        .map(|at| {
            let addr = base + at * 12 * MIB;
            let blocks =
                vec![block(addr, 11 * MIB, BlockUse::Allocated), block(addr + 11 * MIB, MIB, BlockUse::Inactive)];
            SegmentState { addr, size: 12 * MIB, blocks, kind: SegmentKind::Large, ..SegmentState::default() }
        })
        .collect();
    let state = Keyframe {
        device: DeviceIndex(0),
        at_event: 0,
        time_ns: 0,
        reason: KeyframeReason::OutOfMemory,
        segments,
        loose: Vec::new(),
    };
    let report = explain(facts(Picture::of(&state, 20 * MIB), 400 * MIB, 100 * MIB));
    assert_eq!(
        (report.cause, report.stranded_bytes, report.rounded_away_bytes),
        (OomCause::Capacity, 700 * MIB, 700 * MIB)
    );
}
