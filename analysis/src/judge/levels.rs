//! Growth outside live tensors: unused memory that the allocator keeps, device memory outside the allocator (`outside`),
//! and host memory. Also: foreign processes on the device.
//!
//! Guarantees: the test is the same as for sites (`growth`), over epoch ends or measurements. Quantities that were not
//! measured are not judged.

use std::collections::HashSet;

use memctl_model::{Finding, FindingKind};

use super::growth::{Clock, Growth, growth};
use super::history::{Measured, Per};
use super::process_list;
use super::series::Point;
use super::subjects::Subject;
use super::watch::RankWatch;
use super::words::{self, Grown};
use super::wrong_device::Wrong;

/// One value with its place and time.
#[derive(Clone, Copy, Debug)]
struct Value {
    at: u32,
    time_ns: u64,
    bytes: u64,
}

/// Rises of a level before it is reported.
const RISES: u32 = 6;
/// Minimum number of measurements or epoch ends for this many rises; the first one is the initial level.
pub(super) const MEASUREMENTS_MIN: usize = RISES as usize + 1;
/// Laplace's statistic below which growth slows down.
const SLOWS_BELOW: f64 = -1.3;
/// Minimum share of the growth in its second half. Memory that only fills up grows mostly in the first half.
const SECOND_HALF_MIN: f64 = 0.3;
/// Figures of the driver and the system change in steps of pages and heaps; smaller differences do not count.
const GRAIN_BYTES: u64 = 8 << 20;
/// Growth below this is not reported.
const GAINED_MIN: u64 = 64 << 20;
/// Growth of host memory is significant only if it is at least this share of the process's host memory.
const HOST_SHARE_MIN: f64 = 0.05;
/// Minimum duration of measured growth in seconds, because everything grows while a job starts.
pub(super) const SECONDS_MIN: f64 = 5.0;
/// Time after which a process without steps has started.
const STARTED_NS: u64 = 5_000_000_000;
/// Number of steps after which a training has started.
const STARTED_STEPS: u32 = 2;
/// Maximum device memory for the contexts of this job's other processes, if nothing measured them.
const CONTEXTS_MAX: u64 = 2 << 30;
/// A foreign process with less memory is only the context of a tool.
const FOREIGN_MIN: u64 = 256 << 20;

/// All findings about levels, over all ranks.
pub(super) fn findings(watches: &[&RankWatch], wrong: &[Wrong], outside: [Vec<Grown>; 2]) -> Vec<Finding> {
    let all: Vec<Subject> = watches.iter().map(|watch| watch.who()).collect();
    let all: Vec<&Subject> = all.iter().collect();
    let of = |read: fn(&RankWatch) -> Option<Grown>| -> Vec<Grown> {
        watches.iter().filter_map(|watch| read(watch)).collect()
    };
    let [outside, outside_or_others] = outside;
    let kinds = [
        (FindingKind::FragmentationGrowth, "", of(unused)),
        (FindingKind::OutsideAllocator, "", outside),
        (FindingKind::OutsideAllocator, words::WHOLE_DEVICE, outside_or_others),
        (FindingKind::HostGrowth, "training process", of(host)),
        (FindingKind::HostGrowth, "data loader workers", of(workers)),
    ];
    let grown = kinds.into_iter().filter(|(_, _, ranks)| !ranks.is_empty());
    let mut found: Vec<Finding> =
        grown.map(|(kind, subject, ranks)| words::level(kind, subject, &ranks, &all)).collect();
    found.extend(foreign(watches, wrong));
    found
}

/// Reserved memory beyond the most that was in use at once until then, at epoch ends. A larger peak leaves more free
/// memory in the cache at an epoch's end, and is no fragmentation.
fn unused(watch: &RankWatch) -> Option<Grown> {
    let levels = watch.history.levels(Per::Epoch);
    let values = levels.iter().scan(0, |peak, level| {
        *peak = level.peak_allocated_bytes.max(level.counters.active_bytes).max(*peak);
        Some(Value { at: level.at, time_ns: level.time_ns, bytes: level.counters.reserved_bytes.saturating_sub(*peak) })
    });
    let reserved = levels.last()?.counters.reserved_bytes;
    let clock = Clock::of(watch.history.of(Per::Epoch));
    grown(watch, values.collect(), clock, GAINED_MIN.max(reserved / 10))
}

fn host(watch: &RankWatch) -> Option<Grown> {
    of_host(watch, |sample| sample.host_bytes)
}

/// Bytes of a simulated device that may have been used for the first time after a moment.
fn simulated(watch: &RankWatch, since_ns: u64) -> u64 {
    let levels = Per::ALL.into_iter().flat_map(|per| watch.history.levels(per));
    let before = levels.filter(|level| level.time_ns <= since_ns).max_by_key(|level| level.time_ns);
    let lived = before.map_or(0, |level| level.counters.allocated_bytes);
    watch.history.highest_reserved().saturating_sub(lived)
}

fn workers(watch: &RankWatch) -> Option<Grown> {
    of_host(watch, |sample| sample.children_bytes)
}

/// Growth of host memory. A simulated device has its memory in the host's. The bytes that it has reserved since its
/// memory was first measured, beyond those live at that time, are therefore subtracted.
fn of_host(watch: &RankWatch, read: fn(&Measured) -> Option<u64>) -> Option<Grown> {
    let grown = measured(watch, watch.history.samples.all(), read)?;
    let own = if watch.facts.is_simulated { simulated(watch, grown.since_ns) } else { 0 };
    let least = GAINED_MIN.max((grown.now_bytes as f64 * HOST_SHARE_MIN) as u64);
    (grown.growth.gained.saturating_sub(own) >= least).then_some(grown)
}

/// Growth of a quantity over measurements.
pub(super) fn measured(
    watch: &RankWatch,
    samples: &[Measured],
    read: impl Fn(&Measured) -> Option<u64>,
) -> Option<Grown> {
    let values = while_it_works(watch, samples, read);
    let (from, to) = (values.first()?, values.last()?);
    if lasted(&values) < SECONDS_MIN {
        return None;
    }
    let apart = f64::from(to.at.saturating_sub(from.at)) / (values.len() as f64 - 1.0).max(1.0);
    let clock = Clock { now: to.at, warm: values.get(2).map_or(0, |value| value.at), unit: apart.max(1.0) };
    grown(watch, values, clock, GAINED_MIN)
}

/// Seconds between the first and the last value.
fn lasted(values: &[Value]) -> f64 {
    let ends = values.first().zip(values.last());
    ends.map_or(0.0, |(from, to)| to.time_ns.saturating_sub(from.time_ns) as f64 / 1e9)
}

/// The number of measurements of a quantity while a job works, and the seconds that they span.
pub(super) fn measurements(
    watch: &RankWatch,
    samples: &[Measured],
    read: impl Fn(&Measured) -> Option<u64>,
) -> (usize, f64) {
    let values = while_it_works(watch, samples, read);
    (values.len(), lasted(&values))
}

/// The values of a quantity, without those of the start and the teardown.
fn while_it_works(watch: &RankWatch, samples: &[Measured], read: impl Fn(&Measured) -> Option<u64>) -> Vec<Value> {
    let Some(first) = samples.first().map(|sample| sample.time_ns) else { return Vec::new() };
    // Everything grows while a job starts.
    let steps = watch.history.steps();
    let trains = steps >= STARTED_STEPS;
    let running = |sample: &&Measured| match trains {
        // After the last step, a job is torn down or waits for workers that are still starting.
        true => (STARTED_STEPS..steps).contains(&sample.steps),
        false => sample.time_ns.saturating_sub(first) >= STARTED_NS,
    };
    let mut values: Vec<Value> = Vec::new();
    for sample in samples.iter().filter(running) {
        let Some(bytes) = read(sample) else { continue };
        // Places are tenths of a second, because samples come at irregular times.
        let tenths = u32::try_from(sample.time_ns.saturating_sub(first) / 100_000_000).unwrap_or(u32::MAX);
        let at = values.last().map_or(1, |last| last.at.saturating_add(1)).max(tenths);
        values.push(Value { at, time_ns: sample.time_ns, bytes });
    }
    without_teardown(&mut values);
    values
}

/// Removes the last values if they are below half of the highest value and stay there: they fell when the processes
/// ended.
fn without_teardown(values: &mut Vec<Value>) {
    let highest = values.iter().map(|value| value.bytes).max().unwrap_or(0);
    let kept = values.iter().rposition(|value| value.bytes > highest / 2).map_or(0, |last| last + 1);
    // Values that stay low for longer are no teardown.
    if values.len() - kept <= TEARDOWN_SAMPLES.max(values.len() / 8) {
        values.truncate(kept);
    }
    // A last value in the middle of a fall is removed as well.
    if let [.., before, last] = values.as_slice()
        && last.bytes < before.bytes / 10 * 9
    {
        values.pop();
    }
}

/// Maximum number of samples of a teardown.
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
        an_epoch: watch.history.seconds_of_epoch().zip(a_second(&growth)).map(|(epoch, a_second)| epoch * a_second),
        series: values.iter().map(|value| value.bytes).collect(),
        seconds,
        growth,
    })
}

/// Bytes per second from the first rise to the last.
fn a_second(growth: &Growth) -> Option<f64> {
    let (first, last) = (growth.risen_ns.first()?, growth.risen_ns.last()?);
    let bytes: u64 = growth.sizes.get(1..)?.iter().sum();
    Some(bytes as f64 / (last.saturating_sub(*first).max(1) as f64 / 1e9))
}

/// Whether the second half of the time has its share of the growth.
fn goes_on(values: &[Value]) -> bool {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return false };
    let middle = first.time_ns + last.time_ns.saturating_sub(first.time_ns) / 2;
    let half = values.partition_point(|value| value.time_ns <= middle).saturating_sub(1);
    let Some(at_half) = values.get(half) else { return false };
    let (all, second) = (last.bytes.saturating_sub(first.bytes), last.bytes.saturating_sub(at_half.bytes));
    second as f64 >= all as f64 * SECOND_HALF_MIN
}

/// Findings about other jobs' processes on a device. The memory that this job's own processes use there is subtracted.
fn foreign(watches: &[&RankWatch], wrong: &[Wrong]) -> Vec<Finding> {
    let mut reported: HashSet<&str> = HashSet::new();
    let mut found = Vec::new();
    for watch in watches {
        let samples = watch.history.samples.all();
        let Some(sample) = samples.iter().rev().find(|sample| sample.foreign_used_bytes.is_some()) else { continue };
        // If the driver's list lacks this process, the figure for others means nothing.
        if !process_list::is_listed(watch) {
            continue;
        }
        let device = watch.facts.device_id.as_deref();
        // All processes on one device measure the same foreign processes, so only one of them reports these.
        if device.is_some_and(|device| reported.contains(device)) {
            continue;
        }
        let others = watches.iter().filter(|other| {
            device.is_some() && other.facts.device_id.as_deref() == device && !other.who().is_same_process(&watch.who())
        });
        let ours = others.clone().map(|other| held(other)).fold(0, u64::saturating_add);
        let seen = sample.foreign_used_bytes.unwrap_or(0);
        let Some(bytes) = seen.checked_sub(ours).filter(|&bytes| bytes >= FOREIGN_MIN) else { continue };
        // A process that uses this device by mistake also has its context here, and only the driver knows the
        // context's size.
        if wrong.iter().any(|wrong| device.is_some() && wrong.device.as_deref() == device) && bytes < CONTEXTS_MAX {
            continue;
        }
        reported.extend(device);
        found.push(words::foreign(&watch.who(), bytes, sample.device_total_bytes.or(watch.facts.device_total_bytes)));
    }
    found
}

/// The device memory of a process: the driver's figure, or else the bytes that its allocator reserved.
fn held(watch: &RankWatch) -> u64 {
    let samples = watch.history.samples.all();
    let measured = samples.iter().rev().find_map(|sample| sample.process_used_bytes);
    let measured = measured.filter(|_| process_list::is_listed(watch));
    measured.or_else(|| watch.history.last_level().map(|level| level.counters.reserved_bytes)).unwrap_or(0)
}
