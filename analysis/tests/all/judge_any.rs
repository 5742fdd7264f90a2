//! Tests with any tables and measurements, in any order, of any ranks: judging does not panic, and its results are
//! complete.

use crate::support::watched;

use memctl_analysis::coverage::BY_EVENTS;
use memctl_analysis::judge::{Activity, RankFacts, RankWatch, findings, judged};
use memctl_model::{
    Boundary, Counters, DeviceIndex, FindingKind, Peaks, Phase, PoolRow, Sample, Severity, SiteRow, SiteTable, StackId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use watched::{frame, torch};

/// Numbers of all kinds: small, large and absurd.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..8_u64, 0..4_000_000_000_u64, Just(u64::MAX), Just(u64::MAX / 2), any::<u64>()]
}

#[derive(Clone, Debug)]
enum Incidents {
    Table(SiteTable),
    /// This many tables, each with some more blocks than the one before.
    Growth(SiteTable, u8),
    Sample(Sample),
    Stack(u32, u8),
}

fn table() -> impl Strategy<Value = SiteTable> {
    let boundaries = prop::sample::select(vec![
        Boundary::StepEnd,
        Boundary::EpochEnd,
        Boundary::WindowEnd,
        Boundary::WindowEnd,
        Boundary::End,
    ]);
    let row = (0..9_u32, 0..6_u32, number(), number()).prop_map(|(stack, phase, blocks, bytes)| SiteRow {
        stack: StackId(stack),
        birth_epoch: phase,
        birth_phase: Phase::of_number(phase),
        blocks,
        bytes,
    });
    let pool = (0..9_u32, number(), number()).prop_map(|(stack, segments, bytes)| PoolRow {
        stack: StackId(stack),
        segments,
        bytes,
    });
    let figures = (number(), number(), number(), number(), number(), any::<bool>());
    (boundaries, 0..12_u32, figures, vec(row, 0..6), vec(pool, 0..3)).prop_map(
        |(boundary, epoch, (step, time_ns, at_event, allocated_bytes, reserved_bytes, found), rows, private_pools)| {
            let counters = Counters {
                allocated_bytes,
                reserved_bytes,
                allocated_blocks: step,
                inactive_split_bytes: at_event,
                ..Counters::default()
            };
            let peaks = Peaks { allocated_bytes: reserved_bytes, reserved_bytes: allocated_bytes };
            SiteTable {
                device: DeviceIndex(0),
                boundary,
                epoch,
                step,
                time_ns,
                at_event,
                exact: found,
                counters,
                peaks,
                peaks_within: peaks,
                found,
                rows,
                private_pools,
            }
        },
    )
}

fn sample() -> impl Strategy<Value = Sample> {
    let some = || prop::option::of(number());
    (number(), some(), some(), some(), some(), some(), some(), some()).prop_map(
        |(time_ns, allocated, reserved, used, total, process, host, children)| Sample {
            time_ns,
            allocated_bytes: allocated,
            reserved_bytes: reserved,
            device_used_bytes: used,
            device_total_bytes: total,
            process_used_bytes: process,
            foreign_used_bytes: process,
            host_rss_bytes: host,
            children_rss_bytes: children,
            alloc_retries: used,
            ..Sample::default()
        },
    )
}

fn any_incident() -> impl Strategy<Value = Incidents> {
    prop_oneof![
        table().prop_map(Incidents::Table),
        (table(), 1..120_u8).prop_map(|(table, times)| Incidents::Growth(table, times)),
        sample().prop_map(Incidents::Sample),
        (0..12_u32, 0..4_u8).prop_map(|(id, way)| Incidents::Stack(id, way)),
    ]
}

fn tell(watch: &mut RankWatch, incident: &Incidents) {
    match incident {
        Incidents::Table(table) => watch.table(table),
        Incidents::Growth(table, times) => {
            for time in 0..u64::from(*times) {
                let mut table = table.clone();
                table.time_ns = table.time_ns.wrapping_add(time * 1_000_000_000);
                table.at_event = table.at_event.wrapping_add(time * 100);
                table.epoch = table.epoch.wrapping_add((time / 7) as u32);
                table.step = table.step.wrapping_add(time);
                for row in &mut table.rows {
                    row.blocks = row.blocks.wrapping_add(time);
                    row.bytes = row.bytes.wrapping_add(time << 12);
                }
                for pool in &mut table.private_pools {
                    pool.segments = pool.segments.wrapping_add(time);
                    pool.bytes = pool.bytes.wrapping_add(time << 21);
                }
                watch.table(&table);
            }
        }
        Incidents::Sample(sample) => watch.sample(sample),
        Incidents::Stack(id, way) => {
            let frames = match way {
                0 => vec![],
                1 => vec![frame("keep", "/home/me/train.py", *id)],
                2 => vec![torch("forward", "nn/modules/linear.py"), frame("main", "/home/me/train.py", 1)],
                _ => vec![
                    frame("hook", "h.py", 1),
                    torch("_call_impl", "nn/modules/module.py"),
                    torch("step", "optim/adam.py"),
                ],
            };
            watch.stack(StackId(*id), &frames);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_that_comes_makes_judging_panic(
        devices in vec((0..3_u32, prop::option::of(number()), vec(any_incident(), 0..24)), 0..4)
    ) {
        let mut watches = Vec::new();
        for (rank, device_total_bytes, incidents) in &devices {
            let mut watch = RankWatch::new(RankFacts {
                rank: *rank,
                device_total_bytes: *device_total_bytes,
                ..RankFacts::default()
            });
            incidents.iter().for_each(|incident| tell(&mut watch, incident));
            watches.push(watch);
        }
        let watches: Vec<&RankWatch> = watches.iter().collect();
        for finding in findings(&watches, Activity::Running) {
            prop_assert!(!finding.title.is_empty() && !finding.ranks.is_empty());
            prop_assert!((0.0..=1.0).contains(&finding.confidence));
            prop_assert!(finding.severity > Severity::Info || finding.time_to_oom_seconds.is_none());
            for rate in [finding.bytes_per_epoch, finding.bytes_per_step, finding.bytes_per_minute].into_iter().flatten() {
                prop_assert!(rate.low <= rate.value && rate.value <= rate.high, "{rate:?}");
            }
        }
        let (looked_at, gaps) = judged(&watches);
        prop_assert!(gaps.iter().all(|gap| !gap.reason.is_empty()));
        prop_assert!(!looked_at.kinds.is_empty() || !gaps.is_empty());
        let elsewhere = [BY_EVENTS.as_slice(), &[FindingKind::RankLost, FindingKind::Unjudged]].concat();
        for kind in FindingKind::ALL.into_iter().filter(|kind| watches.len() > 1 && !elsewhere.contains(kind)) {
            let is_judged = looked_at.kinds.iter().any(|judged| judged.kind == kind);
            // A gap for leaks covers all growth in the allocator, and all findings derived from that growth.
            let stands = if kind.fills() || kind == FindingKind::NearOom { FindingKind::Leak } else { kind };
            prop_assert!(is_judged || gaps.iter().any(|gap| gap.kind == stands), "neither judged nor a gap: {kind:?}");
        }
    }
}
