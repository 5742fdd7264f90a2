//! Builds the series of jobs.
//!
//! Guarantees: a job has at most [`SERIES_MAX`] series. A job with many devices shows the extreme devices and
//! aggregates over all of them. The extreme devices stay the same until others clearly exceed them. Jobs beyond
//! `JOBS_MAX` are only counted.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use memctl_model::{JobState, Severity};

use super::definitions as metrics;
use super::family::{Definition, Family};
use crate::summaries::{DeviceFigures, JobFigures};

/// The most series of one job.
pub const SERIES_MAX: usize = 100;
/// The most jobs with series. With [`SERIES_MAX`] this gives about 25,000 series, which a small Prometheus handles
/// easily.
const JOBS_MAX: usize = 256;
/// The most devices of a job with series of their own. They usually cover a whole node.
const DEVICES_MAX: usize = 8;
/// The most combinations of kind and severity of findings. Beyond it, the mildest are merged.
const FINDINGS_MAX: usize = 11;
/// The kind of merged findings.
const OTHER: &str = "other";
/// Limit of the characters of a label. Labels come from agents, and longer ones are cut.
const LABEL_CHARS_MAX: usize = 256;

/// The families of these jobs. `kept` has the stored size of each job, by the job's key.
#[must_use]
pub fn families(jobs: &[Arc<JobFigures>], kept: &HashMap<i64, u64>) -> Vec<Family> {
    let shown = &jobs[..jobs.len().min(JOBS_MAX)];
    let mut families = vec![
        Family::single(&metrics::JOBS_SHOWN, shown.len() as f64),
        Family::single(&metrics::JOBS_LEFT_OUT, (jobs.len() - shown.len()) as f64),
    ];
    let tables = [of_jobs, aggregates, of_devices];
    families.extend(tables.into_iter().flat_map(|table| table(shown)));
    let mut family = Family::new(&metrics::JOB_KEPT);
    for (job, bytes) in shown.iter().filter_map(|job| Some((job, kept.get(&job.key)?))) {
        family.add(&with(&labels(job), &[]), *bytes as f64);
    }
    families.push(family);
    families
}

/// A job's labels, in the order of the definitions.
fn labels(job: &JobFigures) -> [String; 4] {
    [cut(&job.name), cut(&job.tenant), job.run.to_string(), job.attempt.to_string()]
}

fn cut(text: &str) -> String {
    text.chars().take(LABEL_CHARS_MAX).collect()
}

fn with<'a>(job: &'a [String; 4], more: &[&'a str]) -> Vec<&'a str> {
    job.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// A value that a job may have.
type OfJob = (&'static Definition, fn(&JobFigures) -> Option<f64>);

const FIGURES: [OfJob; 10] = [
    (&metrics::JOB_EXPECTED, |job| job.expected_ranks.map(f64::from)),
    (&metrics::JOB_DEVICES, |job| Some(job.devices.len() as f64)),
    (&metrics::JOB_JUDGED, |job| Some(job.taken_ns as f64 / 1e9)),
    (&metrics::JOB_EPOCHS, |job| Some(job.epochs as f64)),
    (&metrics::JOB_STEPS, |job| Some(job.steps as f64)),
    (&metrics::JOB_EVENTS, |job| Some(job.events as f64)),
    (&metrics::JOB_DROPPED, |job| Some(job.dropped as f64)),
    (&metrics::JOB_OOMS, |job| Some(job.ooms as f64)),
    (&metrics::JOB_RETRIES, |job| job.alloc_retries.map(|count| count as f64)),
    (&metrics::JOB_TIME_TO_OOM, |job| job.time_to_oom_seconds),
];

fn of_jobs(jobs: &[Arc<JobFigures>]) -> Vec<Family> {
    let (mut info, mut ranks) = (Family::new(&metrics::JOB_INFO), Family::new(&metrics::JOB_RANKS));
    let mut findings = Family::new(&metrics::JOB_FINDINGS);
    let mut figures: Vec<Family> = FIGURES.iter().map(|(definition, _)| Family::new(definition)).collect();
    for job in jobs {
        let own = labels(job);
        info.add(&with(&own, &[job.state.name()]), 1.0);
        for state in JobState::ALL {
            let count = job.processes.get(&state).copied().unwrap_or(0);
            ranks.add(&with(&own, &[state.name()]), count as f64);
        }
        for ((_, read), family) in FIGURES.iter().zip(&mut figures) {
            if let Some(value) = read(job) {
                family.add(&with(&own, &[]), value);
            }
        }
        tell_findings(job, &own, &mut findings);
    }
    [vec![info, ranks], figures, vec![findings]].concat()
}

/// Adds the most severe findings first. Those beyond the limit are merged.
fn tell_findings(job: &JobFigures, own: &[String; 4], family: &mut Family) {
    let worst: Vec<_> = job.findings.iter().rev().collect();
    let shown = if worst.len() > FINDINGS_MAX { FINDINGS_MAX - 1 } else { worst.len() };
    for ((severity, kind), count) in &worst[..shown] {
        family.add(&with(own, &[kind.name(), severity.name()]), **count as f64);
    }
    let rest: u64 = worst[shown..].iter().map(|(_, count)| **count).sum();
    if let Some(((severity, _), _)) = worst.get(shown) {
        family.add(&with(own, &[OTHER, Severity::name(*severity)]), rest as f64);
    }
}

/// A metric, and the function that reads it from a device.
type Reading = (&'static Definition, fn(&DeviceFigures) -> Option<u64>);

fn aggregates(jobs: &[Arc<JobFigures>]) -> Vec<Family> {
    let read: [Reading; 2] = [
        (&metrics::JOB_ALLOCATED, |device| device.allocated_bytes),
        (&metrics::JOB_RESERVED, |device| device.reserved_bytes),
    ];
    read.into_iter()
        .map(|(definition, read)| {
            let mut family = Family::new(definition);
            for job in jobs {
                let mut values: Vec<u64> = job.devices.iter().filter_map(read).collect();
                values.sort_unstable();
                let (Some(min), Some(max)) = (values.first(), values.last()) else { continue };
                let sum: f64 = values.iter().map(|value| *value as f64).sum();
                // The median is the lower of two middle values, so that it is the value of a device.
                let median = values[(values.len() - 1) / 2];
                let own = labels(job);
                for (name, value) in
                    [("min", *min as f64), ("median", median as f64), ("max", *max as f64), ("sum", sum)]
                {
                    family.add(&with(&own, &[name]), value);
                }
            }
            family
        })
        .collect()
}

/// A value that a device may have.
type OfDevice = (&'static Definition, fn(&DeviceFigures) -> Option<f64>);

const OF_DEVICES: [OfDevice; 8] = [
    (&metrics::ALLOCATED, |device| device.allocated_bytes.map(|bytes| bytes as f64)),
    (&metrics::RESERVED, |device| device.reserved_bytes.map(|bytes| bytes as f64)),
    (&metrics::PEAK, |device| device.peak_allocated_bytes.map(|bytes| bytes as f64)),
    (&metrics::DEVICE_USED, |device| device.used_bytes.map(|bytes| bytes as f64)),
    (&metrics::DEVICE_TOTAL, |device| device.total_bytes.map(|bytes| bytes as f64)),
    (&metrics::GROWTH, |device| device.growth_bytes_per_epoch.filter(|growth| growth.is_finite())),
    (&metrics::FRAGMENTATION, |device| device.fragmentation_ratio),
    (&metrics::STEPS, |device| Some(device.steps as f64)),
];

fn of_devices(jobs: &[Arc<JobFigures>]) -> Vec<Family> {
    let mut counts = Family::new(&metrics::JOB_DEVICES_SHOWN);
    let mut families: Vec<Family> = OF_DEVICES.iter().map(|(definition, _)| Family::new(definition)).collect();
    for job in jobs {
        let own = labels(job);
        let shown = extremes(&job.devices);
        counts.add(&with(&own, &[]), shown.len() as f64);
        for at in shown {
            let device = &job.devices[at];
            let [rank, process, host] = [device.rank.to_string(), cut(&device.process), cut(&device.host)];
            let [gpu, uuid] = [device.gpu.to_string(), cut(&device.uuid)];
            let labels = with(&own, &[&rank, &process, &host, &gpu, &uuid]);
            for ((_, read), family) in OF_DEVICES.iter().zip(&mut families) {
                if let Some(value) = read(device) {
                    family.add(&labels, value);
                }
            }
        }
    }
    families.insert(0, counts);
    families
}

/// The devices to show. A small job shows all of them. A large job shows the first rank, lost processes, and the
/// devices with the highest or lowest values.
fn extremes(devices: &[DeviceFigures]) -> BTreeSet<usize> {
    if devices.len() <= DEVICES_MAX {
        return (0..devices.len()).collect();
    }
    let bytes = |value: Option<u64>| value.map(|bytes| bytes as f64);
    let highest = |read: &dyn Fn(&DeviceFigures) -> Option<f64>| {
        let known = devices.iter().enumerate().filter_map(|(at, device)| Some((at, read(device)?)));
        // The first of equal values is used, so that a job of equal ranks shows the same devices in every scrape.
        known.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(at, _)| at)
    };
    let wanted = [
        Some(0),
        devices.iter().position(|device| device.is_lost),
        highest(&|device| bytes(device.peak_allocated_bytes)),
        highest(&|device| device.growth_bytes_per_epoch),
        highest(&|device| bytes(device.used_bytes)),
        highest(&|device| device.fragmentation_ratio),
        highest(&|device| bytes(device.allocated_bytes).map(|bytes| -bytes)),
    ];
    // Figures of one step differ by chance. The remaining room is filled with the ranks in order.
    let mut shown: BTreeSet<usize> = wanted.into_iter().flatten().collect();
    for at in 0..devices.len() {
        if shown.len() >= DEVICES_MAX {
            break;
        }
        shown.insert(at);
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use memctl_model::FindingKind;

    use super::super::text::render;
    use super::*;
    use crate::summaries::tests::job;

    fn large(devices: u32) -> JobFigures {
        let device = |rank: u32| DeviceFigures {
            rank,
            process: format!("rank {rank}"),
            host: "h\"\n\\".repeat(100),
            gpu: (rank % 8) as u8,
            uuid: format!("GPU-{rank}"),
            is_lost: rank == 77,
            allocated_bytes: Some(1_000 + u64::from(rank == 500)),
            reserved_bytes: Some(2_000),
            peak_allocated_bytes: Some(if rank == 901 { 9_000 } else { 1_500 }),
            used_bytes: Some(3_000),
            total_bytes: Some(80_000),
            growth_bytes_per_epoch: Some(if rank == 333 { 5.0 } else { 0.0 }),
            fragmentation_ratio: Some(0.5),
            steps: 4,
        };
        let severities = Severity::ALL.into_iter();
        let findings =
            severities.flat_map(|severity| FindingKind::ALL.into_iter().map(move |kind| ((severity, kind), 2)));
        JobFigures {
            expected_ranks: Some(devices),
            alloc_retries: Some(1),
            time_to_oom_seconds: Some(60.0),
            findings: findings.collect(),
            devices: (0..devices).map(device).collect(),
            ..job("large", JobState::Running)
        }
    }

    fn kept() -> HashMap<i64, u64> {
        HashMap::from([(0, 7)])
    }

    fn series(job: JobFigures) -> Vec<(String, Vec<String>)> {
        let families = families(&[Arc::new(job)], &kept());
        let of = |family: &Family| {
            let name = family.definition.name.to_owned();
            assert!(family.points.iter().all(|point| point.labels.len() == family.definition.labels.len()), "{name}");
            family.points.iter().map(|point| (name.clone(), point.labels.clone())).collect::<Vec<_>>()
        };
        families.iter().skip(2).flat_map(of).collect()
    }

    #[test]
    fn no_job_has_more_than_a_hundred_series_and_a_node_is_shown_whole() {
        for devices in [0, 1, 8, 9, 1_024] {
            let series = series(large(devices));
            assert!(series.len() <= SERIES_MAX, "{devices}: {}", series.len());
            let distinct: HashSet<_> = series.iter().collect();
            assert_eq!(distinct.len(), series.len(), "{devices}: a series stands twice");
            let shown: Vec<&str> = series
                .iter()
                .filter(|(name, _)| name == "memctl_allocator_allocated_bytes")
                .map(|(_, labels)| labels[4].as_str())
                .collect();
            match devices {
                0..=8 => assert_eq!(shown.len(), devices as usize),
                9 => assert_eq!(shown, ["0", "1", "2", "3", "4", "5", "6", "7"]),
                _ => assert_eq!(shown, ["0", "1", "2", "3", "4", "77", "333", "901"]),
            }
        }
    }

    #[test]
    fn the_mildest_findings_are_told_as_one_and_none_is_lost() {
        let families = families(&[Arc::new(large(1))], &kept());
        let findings = families.iter().find(|family| family.definition.name == "memctl_findings").unwrap();
        assert_eq!(findings.points.len(), FINDINGS_MAX);
        let text = render(std::slice::from_ref(findings));
        let sum: f64 = text.lines().filter_map(|line| line.rsplit_once("} ")?.1.parse::<f64>().ok()).sum();
        assert_eq!(sum, (2 * 3 * FindingKind::ALL.len()) as f64);
        assert!(text.contains("kind=\"other\"") && text.contains("severity=\"critical\""), "{text}");
    }

    #[test]
    fn jobs_beyond_the_bound_are_counted() {
        let jobs: Vec<_> = (0..JOBS_MAX + 3).map(|at| Arc::new(job(&format!("job-{at}"), JobState::Running))).collect();
        let text = render(&families(&jobs, &kept()));
        assert!(text.contains("memctl_jobs_exported 256\n") && text.contains("memctl_jobs_not_exported 3\n"), "{text}");
        assert!(text.contains("job=\"job-255\"") && !text.contains("job=\"job-256\""));
    }

    #[test]
    fn aggregates_cover_devices_that_are_not_shown() {
        let text = render(&families(&[Arc::new(large(1_024))], &kept()));
        for (aggregation, value) in [("min", 1_000), ("median", 1_000), ("max", 1_001), ("sum", 1_024_001)] {
            let line = format!(
                "memctl_job_allocator_allocated_bytes{{job=\"large\",tenant=\"default\",run=\"1\",attempt=\"0\",aggregation=\"{aggregation}\"}} {value}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
