//! Growth outside live tensors: unused memory that the allocator keeps, device memory outside the allocator, host
//! memory; and foreign processes on the device.
//!
//! Guarantees: the same test as for sites (`growth`), over epoch ends or measurements; what was not measured is not judged.

use std::collections::HashSet;

use memctl_model::{Finding, FindingKind};

use super::growth::{Clock, growth};
use super::history::{Level, Measured, Per};
use super::series::Point;
use super::subjects::Subject;
use super::watch::RankWatch;
use super::words::{self, Grown};
use super::wrong_device::Wrong;

/// One value: where it lies in time, its time and itself.
#[derive(Clone, Copy, Debug)]
struct Value {
    at: u32,
    time_ns: u64,
    bytes: u64,
}

/// Rises of a level before it is reported.
const RISES: u32 = 6;
/// Measurements, or epoch ends, that so many rises take: the first one is where it stood.
pub(super) const MEASUREMENTS_MIN: usize = RISES as usize + 1;
/// Laplace's statistic below which it slows down.
const SLOWS_BELOW: f64 = -1.3;
/// Share of the growth that the second half of it has to bring: what fills brings most of it in the first.
const SECOND_HALF_MIN: f64 = 0.3;
/// The driver's and the system's figures move in steps of pages and heaps: differences below are none.
const GRAIN_BYTES: u64 = 8 << 20;
/// Growth below this is not reported.
const GAINED_MIN: u64 = 64 << 20;
/// Share of the host memory that a process has, below which growth of it does not matter.
const HOST_SHARE_MIN: f64 = 0.05;
/// Seconds that growth of what is measured has to last: everything grows while it starts.
pub(super) const SECONDS_MIN: f64 = 5.0;
/// A process without steps has started after so long.
const STARTED_NS: u64 = 5_000_000_000;
/// Steps after which a training has started.
const STARTED_STEPS: u32 = 2;
/// What contexts of this job's other processes take of a device, at most, where nothing measured them.
const CONTEXTS_MAX: u64 = 2 << 30;
/// A foreign process below this is a context of a tool.
const FOREIGN_MIN: u64 = 256 << 20;

/// All findings about levels, over all ranks.
pub(super) fn findings(watches: &[&RankWatch], wrong: &[Wrong]) -> Vec<Finding> {
    let all: Vec<Subject> = watches.iter().map(|watch| watch.who()).collect();
    let all: Vec<&Subject> = all.iter().collect();
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
        grown.map(|(kind, subject, ranks)| words::level(kind, subject, &ranks, &all)).collect();
    found.extend(foreign(watches, wrong));
    found
}

/// Reserved memory that no live block uses, at epoch ends.
fn unused(watch: &RankWatch) -> Option<Grown> {
    let unused = |level: &Level| level.counters.reserved_bytes.saturating_sub(level.counters.active_bytes);
    let levels = watch.history.levels(Per::Epoch);
    let values = levels.iter().map(|level| Value { at: level.at, time_ns: level.time_ns, bytes: unused(level) });
    let reserved = levels.last()?.counters.reserved_bytes;
    let clock = Clock::of(watch.history.of(Per::Epoch));
    grown(watch, values.collect(), clock, GAINED_MIN.max(reserved / 10))
}

/// Device memory of this process that its allocator does not hold: context, libraries, communicators.
fn outside(watch: &RankWatch) -> Option<Grown> {
    measured(watch, GAINED_MIN, |sample| Some(sample.process_used_bytes?.saturating_sub(sample.reserved_bytes?)))
}

fn host(watch: &RankWatch) -> Option<Grown> {
    of_host(watch, |sample| sample.host_bytes)
}

/// Bytes of a simulated device that may have been used first after a moment.
fn simulated(watch: &RankWatch, since_ns: u64) -> u64 {
    let levels = Per::ALL.into_iter().flat_map(|per| watch.history.levels(per));
    let before = levels.filter(|level| level.time_ns <= since_ns).max_by_key(|level| level.time_ns);
    let lived = before.map_or(0, |level| level.counters.allocated_bytes);
    watch.history.highest_reserved().saturating_sub(lived)
}

fn workers(watch: &RankWatch) -> Option<Grown> {
    of_host(watch, |sample| sample.children_bytes)
}

/// Of a device whose memory lies in the host's (a simulated one), as much as it has reserved since its memory was first
/// measured may be its own, beyond what lived there by then.
fn of_host(watch: &RankWatch, read: fn(&Measured) -> Option<u64>) -> Option<Grown> {
    let grown = measured(watch, GAINED_MIN, read)?;
    let own = if watch.facts.is_simulated { simulated(watch, grown.since_ns) } else { 0 };
    let least = GAINED_MIN.max((grown.now_bytes as f64 * HOST_SHARE_MIN) as u64);
    (grown.growth.gained.saturating_sub(own) >= least).then_some(grown)
}

fn measured(watch: &RankWatch, gained_min: u64, read: impl Fn(&Measured) -> Option<u64>) -> Option<Grown> {
    let values = while_it_works(watch, read);
    let (from, to) = (values.first()?, values.last()?);
    if lasted(&values) < SECONDS_MIN {
        return None;
    }
    let apart = f64::from(to.at.saturating_sub(from.at)) / (values.len() as f64 - 1.0).max(1.0);
    let clock = Clock { now: to.at, warm: values.get(2).map_or(0, |value| value.at), unit: apart.max(1.0) };
    grown(watch, values, clock, gained_min)
}

/// Seconds between the first and the last of these.
fn lasted(values: &[Value]) -> f64 {
    let ends = values.first().zip(values.last());
    ends.map_or(0.0, |(from, to)| to.time_ns.saturating_sub(from.time_ns) as f64 / 1e9)
}

/// How many measurements of a quantity there are while a job works, and over how many seconds.
pub(super) fn measurements(watch: &RankWatch, read: impl Fn(&Measured) -> Option<u64>) -> (usize, f64) {
    let values = while_it_works(watch, read);
    (values.len(), lasted(&values))
}

/// The values of a quantity, without those of the start and the teardown.
fn while_it_works(watch: &RankWatch, read: impl Fn(&Measured) -> Option<u64>) -> Vec<Value> {
    let samples = watch.history.samples.all();
    let Some(first) = samples.first().map(|sample| sample.time_ns) else { return Vec::new() };
    // Everything grows while a job starts.
    let steps = watch.history.steps();
    let trains = steps >= STARTED_STEPS;
    let running = |sample: &&Measured| match trains {
        // Behind the last step a job is torn down, or waits for workers that are still starting.
        true => (STARTED_STEPS..steps).contains(&sample.steps),
        false => sample.time_ns.saturating_sub(first) >= STARTED_NS,
    };
    let mut values: Vec<Value> = Vec::new();
    for sample in samples.iter().filter(running) {
        let Some(bytes) = read(sample) else { continue };
        // Tenths of a second: samples come when they can.
        let tenths = u32::try_from(sample.time_ns.saturating_sub(first) / 100_000_000).unwrap_or(u32::MAX);
        let at = values.last().map_or(1, |last| last.at.saturating_add(1)).max(tenths);
        values.push(Value { at, time_ns: sample.time_ns, bytes });
    }
    without_teardown(&mut values);
    values
}

/// Leaves out what fell when the processes ended: the last values, once they are below half of the highest and stay there.
fn without_teardown(values: &mut Vec<Value>) {
    let highest = values.iter().map(|value| value.bytes).max().unwrap_or(0);
    let kept = values.iter().rposition(|value| value.bytes > highest / 2).map_or(0, |last| last + 1);
    // What stays low for longer is no teardown.
    if values.len() - kept <= TEARDOWN_SAMPLES.max(values.len() / 8) {
        values.truncate(kept);
    }
    // A last value that is on its way down says nothing either.
    if let [.., before, last] = values.as_slice()
        && last.bytes < before.bytes / 10 * 9
    {
        values.pop();
    }
}

/// Samples that a teardown takes at most.
const TEARDOWN_SAMPLES: usize = 5;

fn grown(watch: &RankWatch, values: Vec<Value>, clock: Clock, gained_min: u64) -> Option<Grown> {
    let grains = |bytes: u64| bytes / GRAIN_BYTES * GRAIN_BYTES;
    let mut points: Vec<Point> = Vec::new();
    for &Value { at, time_ns, bytes } in &values {
        if points.last().is_none_or(|last| last.bytes != grains(bytes)) {
            points.push(Point { at, time_ns, blocks: 1, bytes: grains(bytes), ..Point::default() });
        }
    }
    let growth = growth(&points, |point| point.bytes, clock);
    let persists = growth.rises >= RISES && growth.laplace >= SLOWS_BELOW && growth.laplace_by_size >= SLOWS_BELOW;
    if !persists || growth.stopped || growth.gained < gained_min || !goes_on(&values) {
        return None;
    }
    let begun = growth.times.first().and_then(|&at| values.iter().find(|value| value.at >= at));
    let level = begun.and_then(|begun| {
        let steps = watch.history.levels(Per::Step);
        steps.get(steps.partition_point(|level| level.time_ns <= begun.time_ns).checked_sub(1)?)
    });
    let (from, to) = (values.first()?, values.last()?);
    let seconds = to.time_ns.saturating_sub(from.time_ns) as f64 / 1e9;
    Some(Grown {
        who: watch.who(),
        now_bytes: to.bytes,
        first: (level.map(|level| level.epoch), level.map(|level| level.step), begun.map(|begun| begun.time_ns)),
        since_ns: from.time_ns,
        a_minute: growth.gained as f64 / seconds.max(1.0) * 60.0,
        series: values.iter().map(|value| value.bytes).collect(),
        seconds,
        growth,
    })
}

/// Whether the second half of the time brings its share of the growth.
fn goes_on(values: &[Value]) -> bool {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return false };
    let middle = first.time_ns + last.time_ns.saturating_sub(first.time_ns) / 2;
    let half = values.partition_point(|value| value.time_ns <= middle).saturating_sub(1);
    let Some(at_half) = values.get(half) else { return false };
    let (all, second) = (last.bytes.saturating_sub(first.bytes), last.bytes.saturating_sub(at_half.bytes));
    second as f64 >= all as f64 * SECOND_HALF_MIN
}

/// Another job's processes on a device: what this job's own processes use of it is none of theirs.
fn foreign(watches: &[&RankWatch], wrong: &[Wrong]) -> Vec<Finding> {
    let mut told: HashSet<&str> = HashSet::new();
    let mut found = Vec::new();
    for watch in watches {
        let samples = watch.history.samples.all();
        let Some(sample) = samples.iter().rev().find(|sample| sample.foreign_used_bytes.is_some()) else { continue };
        let device = watch.facts.device_id.as_deref();
        // Several processes on one device all see the same foreign processes: one of them reports.
        if device.is_some_and(|device| told.contains(device)) {
            continue;
        }
        let others = watches.iter().filter(|other| {
            device.is_some() && other.facts.device_id.as_deref() == device && !other.who().is_same_process(&watch.who())
        });
        let ours = others.clone().map(|other| held(other)).fold(0, u64::saturating_add);
        let seen = sample.foreign_used_bytes.unwrap_or(0);
        let Some(bytes) = seen.checked_sub(ours).filter(|&bytes| bytes >= FOREIGN_MIN) else { continue };
        // A process that strayed here also has its context here; only the driver knows its size.
        if wrong.iter().any(|wrong| device.is_some() && wrong.device.as_deref() == device) && bytes < CONTEXTS_MAX {
            continue;
        }
        told.extend(device);
        found.push(words::foreign(&watch.who(), bytes, sample.device_total_bytes.or(watch.facts.device_total_bytes)));
    }
    found
}

/// What a process holds of its device: as the driver says, else what its allocator reserved.
fn held(watch: &RankWatch) -> u64 {
    let samples = watch.history.samples.all();
    let measured = samples.iter().rev().find_map(|sample| sample.process_used_bytes);
    measured.or_else(|| watch.history.last_level().map(|level| level.counters.reserved_bytes)).unwrap_or(0)
}
