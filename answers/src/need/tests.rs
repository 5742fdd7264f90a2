//! The rule and the words of `memctl need`, on reports that are made here.

use std::collections::BTreeMap;

use memctl_analysis::need::OUTSIDE_ALLOWANCE;
use memctl_model::JobState;

use super::*;
use crate::format::time::Time;
use crate::processes::Process;
use crate::report::{Rank, Sample};
use crate::what_if::{Ended, Setting};

const GIB: u64 = 1 << 30;
const HOUR_NS: u64 = 3_600_000_000_000;

/// A rank with 10 GiB allocated and 12 GiB reserved at most, of 80 GiB.
fn rank(rank: u32) -> Rank {
    Rank {
        rank,
        process: format!("rank {rank}"),
        host: Some("node".into()),
        gpu_uuid: Some(format!("GPU-{rank}")),
        peak_allocated_bytes: Some(10 * GIB),
        peak_reserved_bytes: Some(12 * GIB),
        device_total_bytes: Some(80 * GIB),
        highest: Some(Sample {
            process_used_bytes: Some(13 * GIB),
            host_rss_bytes: Some(3 * GIB),
            children_rss_bytes: Some(GIB),
            ..Sample::default()
        }),
        events: 10,
        ..Rank::default()
    }
}

fn process(rank: u32) -> Process {
    Process {
        process: format!("rank {rank}"),
        rank,
        host: Some("node".into()),
        pid: Some(100 + rank),
        started_at: Time(HOUR_NS),
        ended_at: Some(Time(3 * HOUR_NS)),
        ..Process::default()
    }
}

fn report(ranks: Vec<Rank>) -> Report {
    let job = Job { id: "j".into(), name: "j".into(), ranks: 1, state: JobState::Finished, ..Job::default() };
    let completeness = Completeness { exact: true, ..Completeness::default() };
    let mut numbers: Vec<u32> = ranks.iter().map(|rank| rank.rank).collect();
    numbers.dedup();
    let processes = numbers.into_iter().map(process).collect();
    Report { job, completeness, ranks, processes, ..Report::default() }
}

/// The answer without replays.
fn need(report: Report, sizes: &[u64]) -> Need {
    let (rows, sizes) = (rows(&report), device_sizes(sizes));
    Need::new(report, &rows, &sizes, Vec::new())
}

/// The answer, with a replay of every row that ends as `ends` says for a limit.
fn replayed(report: Report, sizes: &[u64], ends: impl Fn(u64) -> (u64, Option<Ended>)) -> Need {
    let (mut rows, sizes) = (rows(&report), device_sizes(sizes));
    for row in &mut rows {
        let settings = row.limits(&sizes).into_iter().map(|(_, limit)| {
            let (retries, out_of_memory) = ends(limit.bytes);
            Setting { limit_bytes: Some(limit.bytes), retries, out_of_memory, ..Setting::default() }
        });
        row.replay = Replay::Exact(settings.collect());
    }
    Need::new(report, &rows, &sizes, Vec::new())
}

fn size<'n>(need: &'n Need, name: &str) -> &'n Size {
    need.sizes.iter().find(|size| size.name == name).unwrap()
}

fn ended() -> Option<Ended> {
    let site = Frame { function: "forward".into(), file: "/home/me/train.py".into(), line: Some(30) };
    Some(Ended { event: 7, step: Some(41), requested_bytes: GIB, site: Some(site) })
}

#[test]
fn peaks_and_replays_decide_the_sizes() {
    let asked = [13 * GIB, 12 * GIB, 11 * GIB, 10 * GIB];
    let ends = |limit: u64| if limit >= 11 * GIB { (3, None) } else { (0, ended()) };
    let need = replayed(report(vec![rank(0), rank(1)]), &asked, ends);
    let outcomes: Vec<(&str, Fit)> = need.sizes.iter().take(8).map(|size| (&*size.name, size.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            ("10 GB", Fit::Fails),
            ("10.0 GiB", Fit::Fails),
            ("12 GB", Fit::Fails),
            ("11.0 GiB", Fit::Fails),
            ("12.0 GiB", Fit::FitsAfterRetries),
            ("13.0 GiB", Fit::Fits),
            ("16 GB", Fit::Fits),
            ("20 GB", Fit::Fits),
        ]
    );
    assert_eq!(size(&need, "12.0 GiB").retries, Some(3));
    let failure = size(&need, "11.0 GiB").failure.as_ref().unwrap();
    assert_eq!((failure.rank, failure.step, failure.event), (0, Some(41), Some(7)));
    assert_eq!(
        need.answer,
        "Rank 0 needs 13.0 GiB of 80.0 GiB (12.0 GiB reserved by its allocator, 1.00 GiB outside it); no other process \
         or device of the job needs more. A device of 13.0 GiB would have been enough. With 12.0 GiB every request is \
         served, after up to 3 retries of a process in which the allocator gives its cache back. With 11.0 GiB, step 41 \
         of rank 0 fails: 1.00 GiB asked in forward (train.py:30)."
    );
    assert_eq!(need.notes.len(), 1, "{:?}", need.notes);
    assert!(need.notes[0].starts_with("Rank 0 had at least 2.00 GiB reserved and not allocated"), "{:?}", need.notes);
    assert_eq!(need.unused_gib_hours, Some(2.0 * 2.0 * 67.0), "two devices for two hours");
    assert_eq!(need.devices[1].unused_bytes, Some(67 * GIB));
}

#[test]
fn without_a_replay_only_the_sizes_beyond_the_peaks_are_decided() {
    let need = need(report(vec![rank(0)]), &[12 * GIB, 10 * GIB]);
    assert_eq!(size(&need, "12.0 GiB").outcome, Fit::Unknown);
    assert_eq!(size(&need, "12.0 GiB").reason.as_deref(), Some("rank 0: it was not replayed"));
    let failure = size(&need, "10.0 GiB").failure.as_ref().unwrap();
    assert_eq!((failure.event, failure.step), (None, None));
    assert!(need.answer.contains("With 12 GB, rank 0 runs out of memory."), "{}", need.answer);
    assert!(need.answer.contains("Whether 12.0 GiB is enough is not known: rank 0: it was not replayed."));
}

#[test]
fn what_was_not_measured_is_assumed_and_said() {
    let blind = Rank { highest: None, device_total_bytes: None, ..rank(0) };
    let need = need(report(vec![blind]), &[]);
    let device = &need.devices[0];
    assert_eq!((device.outside_bytes, device.assumed_outside_bytes), (None, Some(OUTSIDE_ALLOWANCE)));
    assert_eq!((device.needed_bytes, device.unused_bytes), (Some(13 * GIB), None));
    assert_eq!(need.unused_gib_hours, None);
    assert!(
        need.answer.starts_with(
            "Rank 0 needs 13.0 GiB (12.0 GiB reserved by its allocator; 1.00 GiB is assumed for memory outside it, which \
             no measurement shows)."
        ),
        "{}",
        need.answer
    );
    assert!(
        need.notes.iter().any(|note| note == "The size of the device is not recorded: rank 0."),
        "{:?}",
        need.notes
    );
    assert!(need.hosts[0].highest_bytes.is_none());
    let nothing = super::tests::need(report(vec![Rank { peak_reserved_bytes: None, ..rank(0) }]), &[]);
    assert_eq!(nothing.answer, "The peak of no process is recorded, so the memory that the job needs is not known.");
    assert!(nothing.sizes.iter().all(|size| size.outcome == Fit::Unknown));
    let none = super::tests::need(report(Vec::new()), &[]);
    assert_eq!(none.answer, "No process of this job is known to have used a device.");
    assert!(none.sizes.iter().all(|size| size.outcome == Fit::Unknown), "nothing fits because nothing is known");
    assert_eq!((none.unused_gib_hours, none.highest().is_none()), (None, true));
}

#[test]
fn a_failed_request_leaves_larger_sizes_open() {
    let failed = Rank { ooms: 2, ..rank(1) };
    let mut failing = report(vec![rank(0), failed]);
    failing.job.state = JobState::Failed;
    let ends = |limit: u64| if limit > 11 * GIB { (0, None) } else { (0, ended()) };
    let need = replayed(failing, &[], ends);
    assert_eq!(size(&need, "12 GB").outcome, Fit::Fails);
    assert_eq!(size(&need, "80 GB").outcome, Fit::Unknown);
    assert!(
        need.answer.starts_with("Rank 1 did not get the memory that it needs: 2 requests failed. It had used 13.0 GiB"),
        "{}",
        need.answer
    );
    assert!(
        need.answer.ends_with(
            "Whether 16 GB to 192 GB is enough is not known: rank 1: what follows its failed request is not recorded."
        ),
        "{}",
        need.answer
    );
    assert!(need.notes.contains(&"The job failed: a complete run may need more.".to_owned()), "{:?}", need.notes);
}

#[test]
fn processes_on_one_device_are_added() {
    let shared = |number| Rank { gpu_uuid: Some("GPU".into()), ..rank(number) };
    let need = need(report(vec![shared(0), shared(1)]), &[26 * GIB, 25 * GIB]);
    assert_eq!(size(&need, "26.0 GiB").outcome, Fit::Fits);
    assert_eq!(size(&need, "25.0 GiB").outcome, Fit::Unknown);
    assert_eq!(need.devices[0].shared_with, ["rank 1"]);
    assert_eq!(need.devices[0].unused_bytes, Some(54 * GIB));
    assert_eq!(need.unused_gib_hours, Some(54.0 * 2.0), "the device is counted once");
    assert_eq!(need.hosts[0].devices, 1);
    // One after the other.
    let mut later = report(vec![shared(0), shared(1)]);
    (later.processes[1].started_at, later.processes[1].ended_at) = (Time(4 * HOUR_NS), Some(Time(5 * HOUR_NS)));
    let later = super::tests::need(later, &[25 * GIB]);
    assert_eq!(size(&later, "25.0 GiB").outcome, Fit::Fits);
    assert!(later.devices.iter().all(|device| device.shared_with.is_empty() && device.unused_bytes == Some(67 * GIB)));
    // Two devices of one process are two devices.
    let second = Rank { device: 1, gpu_uuid: Some("GPU-other".into()), ..rank(0) };
    let two = super::tests::need(report(vec![rank(0), second]), &[]);
    assert!(two.answer.starts_with("Rank 0 on cuda:0 needs 13.0 GiB"), "{}", two.answer);
    assert_eq!((two.hosts[0].devices, two.hosts[0].processes), (2, 1));
    assert_eq!(two.hosts[0].highest_bytes, Some(4 * GIB), "its host memory is counted once");
}

#[test]
fn a_running_job_has_figures_so_far() {
    let mut running = report(vec![Rank { sample: None, ..rank(0) }]);
    running.job.state = JobState::Running;
    running.processes[0].ended_at = None;
    let need = need(running, &[]);
    assert!(need.answer.starts_with("Rank 0 has needed 13.0 GiB of 80.0 GiB"), "{}", need.answer);
    assert!(need.answer.contains("would have been enough so far."), "{}", need.answer);
    assert_eq!(need.notes[0], "The job still runs: a later step may need more.");
    assert_eq!(need.unused_gib_hours, None, "nothing was heard of it yet");
}

#[test]
fn host_memory_is_compared_with_what_was_asked() {
    let mut with_labels = report(vec![rank(0), rank(1)]);
    let labels = [("slurm.mem_per_node", "65536"), ("slurm.gpus_on_node", "4"), ("slurm.job", "905")];
    with_labels.job.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    // The second process is a child of the first.
    with_labels.processes[1].parent_pid = Some(100);
    let need = need(with_labels.clone(), &[]);
    let expected = Host {
        host: Some("node".into()),
        processes: 2,
        highest_bytes: Some(4 * GIB),
        asked_bytes: Some(64 * GIB),
        devices: 2,
        devices_asked: Some(4),
    };
    assert_eq!(need.hosts, [expected]);
    let line = need.line();
    for pair in [
        "job=j ",
        " slurm_job=905 ",
        " needed_bytes=13958643712 ",
        " fits=16GB ",
        " fails=12GB ",
        " unused_gib_hours=268.000 ",
        " host_asked_bytes=68719476736 ",
        " devices_asked=4",
    ] {
        assert!(line.contains(pair), "{pair} in {line}");
    }
    assert!(!line.contains('\n') && line.split(' ').all(|pair| pair.contains('=')), "{line}");
    with_labels.job.labels = BTreeMap::from([("slurm.mem_per_node".to_owned(), "much".to_owned())]);
    assert_eq!(super::tests::need(with_labels, &[]).hosts[0].asked_bytes, None);
}

#[test]
fn formats_have_every_row() {
    let need = need(report(vec![rank(0), rank(1)]), &[]);
    let (mut lines, mut table) = (Vec::new(), Vec::new());
    need.ndjson(&mut lines).unwrap();
    need.csv(&mut table).unwrap();
    assert_eq!(String::from_utf8(lines).unwrap().lines().count(), 1 + 2 + 1 + need.sizes.len());
    assert_eq!(String::from_utf8(table).unwrap().lines().count(), 3);
    let json = serde_json::to_value(&need).unwrap();
    let names: Vec<&str> = json["sizes"].as_array().unwrap().iter().map(|it| it["outcome"].as_str().unwrap()).collect();
    assert_eq!(names, need.sizes.iter().map(|size| size.outcome.name()).collect::<Vec<_>>());
}
