//! What grows outside live tensors: memory that the allocator keeps and nobody uses, device memory outside the allocator,
//! host memory; and whose processes use the device.
//!
//! Guarantees: the same test as for sites (`ratchet`), over epoch ends or measurements; what was not measured is not judged.

use std::collections::BTreeSet;

use memctl_model::{Finding, FindingKind};

use super::course::{Level, Measured};
use super::ratchet::{Growth, growth};
use super::series::Point;
use super::watch::RankWatch;
use super::words;

/// Growth of one quantity of one rank.
#[derive(Clone, Debug)]
pub(super) struct Grown {
    pub rank: u32,
    pub growth: Growth,
    pub now_bytes: u64,
    pub series: Vec<u64>,
    /// Epoch and step at the first rise.
    pub first: (Option<u32>, Option<u64>),
    pub seconds: f64,
}

/// Rises of a level before it is told.
const RISES: u32 = 6;
/// Laplace's statistic below which it slows down.
const SLOWS_BELOW: f64 = -1.3;
/// The driver's and the system's figures move in steps of pages and heaps: differences below are none.
const GRAIN_BYTES: u64 = 8 << 20;
/// Growth below this is not told.
const GAINED_MIN: u64 = 64 << 20;
/// Host memory of a training process moves by this much for no reason that anybody can act on.
const HOST_GAINED_MIN: u64 = 512 << 20;
/// A foreign process below this is a context of a tool.
const FOREIGN_MIN: u64 = 256 << 20;

/// All findings about levels, over all ranks.
pub(super) fn findings(watches: &[&RankWatch]) -> Vec<Finding> {
    let all: BTreeSet<u32> = watches.iter().map(|watch| watch.rank()).collect();
    let of = |read: fn(&RankWatch) -> Option<Grown>| -> Vec<Grown> {
        watches.iter().filter_map(|watch| read(watch)).collect()
    };
    let kinds = [
        (FindingKind::FragmentationGrowth, "", of(unused)),
        (FindingKind::OutsideAllocator, "", of(outside)),
        (FindingKind::HostGrowth, "training process", of(host)),
        (FindingKind::HostGrowth, "data loader workers", of(workers)),
    ];
    let grown = kinds.into_iter().filter(|(_, _, ranks)| !ranks.is_empty());
    let mut found: Vec<Finding> =
        grown.map(|(kind, subject, ranks)| words::level(kind, subject, &ranks, all.len())).collect();
    found.extend(watches.iter().filter_map(|watch| foreign(watch)));
    found
}

/// Reserved memory that no live block uses, at epoch ends.
fn unused(watch: &RankWatch) -> Option<Grown> {
    let unused = |level: &Level| level.counters.reserved_bytes.saturating_sub(level.counters.active_bytes);
    let levels = &watch.course.epochs;
    let points = levels.iter().map(|level| (level.at, level.epoch, unused(level)));
    let reserved = levels.last()?.counters.reserved_bytes;
    grown(watch, points.collect(), watch.course.epoch_ends, GAINED_MIN.max(reserved / 10), |at| {
        watch.course.epoch_level(at)
    })
}

/// Device memory of this process that its allocator does not hold: context, libraries, communicators.
fn outside(watch: &RankWatch) -> Option<Grown> {
    measured(watch, GAINED_MIN, |sample| Some(sample.process_used_bytes?.saturating_sub(sample.reserved_bytes?)))
}

fn host(watch: &RankWatch) -> Option<Grown> {
    measured(watch, HOST_GAINED_MIN, |sample| sample.host_bytes)
}

fn workers(watch: &RankWatch) -> Option<Grown> {
    measured(watch, HOST_GAINED_MIN, |sample| sample.children_bytes)
}

fn measured(watch: &RankWatch, gained_min: u64, read: impl Fn(&Measured) -> Option<u64>) -> Option<Grown> {
    // Everything grows while a job starts: what was measured before the second step's end does not count.
    let running = watch.course.samples.iter().filter(|sample| sample.steps >= 2);
    let values: Vec<(u32, u64)> = running.filter_map(|sample| Some((sample.steps, read(sample)?))).collect();
    let epoch = |steps: u32| watch.course.step_level(steps).map_or(0, |level| level.epoch);
    let points = (1_u32..).zip(&values).map(|(at, &(steps, bytes))| (at, epoch(steps), bytes)).collect();
    let step_of = |at: u32| {
        let &(steps, _) = values.get((at as usize).checked_sub(1)?)?;
        watch.course.step_level(steps)
    };
    grown(watch, points, values.len() as u32, gained_min, step_of)
}

fn grown<'a>(
    watch: &RankWatch,
    values: Vec<(u32, u32, u64)>,
    now: u32,
    gained_min: u64,
    level_at: impl Fn(u32) -> Option<&'a Level>,
) -> Option<Grown> {
    let series: Vec<u64> = values.iter().map(|&(_, _, bytes)| bytes).collect();
    let grains = |bytes: u64| bytes / GRAIN_BYTES * GRAIN_BYTES;
    let mut points: Vec<Point> = Vec::new();
    for (at, epoch, bytes) in values {
        if points.last().is_none_or(|last| last.bytes != grains(bytes)) {
            points.push(Point { at, epoch, blocks: 1, bytes: grains(bytes) });
        }
    }
    let growth = growth(&points, |point| point.bytes, now);
    let persists = growth.rises >= RISES && growth.laplace >= SLOWS_BELOW && !growth.stopped;
    if !persists || growth.gained < gained_min {
        return None;
    }
    let first = growth.times.first().and_then(|&at| level_at(at));
    let seconds = watch
        .course
        .first
        .zip(watch.course.last_level())
        .map_or(0.0, |(first, last)| last.time_ns.saturating_sub(first.time_ns) as f64 / 1e9);
    Some(Grown {
        rank: watch.rank(),
        now_bytes: series.last().copied().unwrap_or(0),
        first: (first.map(|level| level.epoch), first.map(|level| level.step)),
        growth,
        series,
        seconds,
    })
}

/// Another job's processes on the rank's device.
fn foreign(watch: &RankWatch) -> Option<Finding> {
    let sample = watch.course.samples.iter().rev().find(|sample| sample.foreign_used_bytes.is_some())?;
    let bytes = sample.foreign_used_bytes.filter(|&bytes| bytes >= FOREIGN_MIN)?;
    Some(words::foreign(watch.rank(), bytes, sample.device_total_bytes.or(watch.facts.device_total_bytes)))
}
