//! Tests of host memory over a run: growth of a training process and of its workers, fast or slow, with start and
//! teardown. Tests of reserved memory.

use crate::support::watched;

use memctl_analysis::judge::{Activity, RankFacts, RankWatch, findings, judged};
use memctl_model::{Finding, FindingKind, Sample, Severity, StackId};
use watched::{GIB, MIB, Process, frame};

/// A run with a step and a sample each second.
fn run(seconds: u64, host: impl Fn(u64) -> u64, workers: impl Fn(u64) -> Option<u64>) -> Vec<Finding> {
    let mut process = Process::new(0, &[vec![frame("build", "/home/me/model.py", 5)]]);
    ran(&mut process, seconds, |_| 100 * MIB, host, workers);
    process.judge()
}

/// The same as [`run`] for a given process, with this many bytes on its device.
fn ran(
    process: &mut Process,
    seconds: u64,
    device: impl Fn(u64) -> u64,
    host: impl Fn(u64) -> u64,
    workers: impl Fn(u64) -> Option<u64>,
) {
    for second in 0..seconds {
        process.step(&[(1, None, 10, device(second))]);
        process.watch.sample(&Sample {
            time_ns: process.time_ns,
            host_rss_bytes: Some(host(second)),
            children_rss_bytes: workers(second),
            ..Sample::default()
        });
    }
}

#[test]
fn of_a_simulated_device_only_what_it_took_since_is_not_the_host_s() {
    let frames = [frame("build", "/home/me/model.py", 5)];
    let of = |device: fn(u64) -> u64| {
        let mut process = Process::new(0, &[]);
        process.watch = RankWatch::new(RankFacts { is_simulated: true, ..RankFacts::default() });
        process.watch.stack(StackId(1), &frames);
        ran(&mut process, 30, device, |second| (300 + second * 6) * MIB, |_| None);
        process.judge().into_iter().filter(|finding| finding.kind == FindingKind::HostGrowth).count()
    };
    assert_eq!(of(|_| 100 * MIB), 1, "it lived before the host's memory grew");
    assert_eq!(of(|second| (100 + second * 6) * MIB), 0, "as much as came to the device");
}

#[test]
fn workers_that_keep_what_they_load_are_told_within_25_seconds_and_after_their_teardown() {
    // Four workers of 300 MiB that keep 10 MiB per second each. The last samples are taken after the workers have
    // ended.
    let grown = |second: u64| 4 * (300 + second.min(22) * 12) * MIB;
    for teardown in [0, 1, 3] {
        let found = run(25 + teardown, |_| 2 * GIB, |second| Some(if second < 25 { grown(second) } else { 0 }));
        assert_eq!((found.len(), found[0].kind), (1, FindingKind::HostGrowth), "{teardown}: {found:#?}");
        assert_eq!((&*found[0].subject, found[0].severity), ("data loader workers", Severity::Warning));
        assert!(found[0].live_bytes > Some(2 * GIB), "before the end: {found:#?}");
        assert!(found[0].bytes_per_minute.is_some_and(|rate| rate.value > (2 * GIB) as f64));
    }
}

#[test]
fn a_training_process_that_keeps_8_mib_a_step_is_told() {
    let found = run(120, |second| 2 * GIB + second * 8 * MIB, |_| None);
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::HostGrowth), "{found:#?}");
    assert_eq!(&*found[0].subject, "training process");
    assert!(found[0].title.contains("Host memory of the training process has grown"), "{}", found[0].title);
}

#[test]
fn a_few_seconds_of_steady_growth_are_enough_and_fewer_are_said_not_to_be() {
    let found = run(11, |second| (400 + second * 30) * MIB, |_| None);
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::HostGrowth), "{found:#?}");
    let mut process = Process::new(0, &[vec![frame("build", "/home/me/model.py", 5)]]);
    ran(&mut process, 6, |_| 100 * MIB, |second| (400 + second * 30) * MIB, |_| None);
    assert_eq!(process.judge(), []);
    let (judged_, gaps) = judged(&[&process.watch]);
    let gap = gaps.iter().find(|gap| gap.kind == FindingKind::HostGrowth).expect("a gap");
    assert!(gap.reason.starts_with("needs 7 measurements over 5 s"), "{}", gap.reason);
    assert!(judged_.kinds.iter().all(|judged| judged.kind != FindingKind::HostGrowth));
}

/// However short a run is, growth at every measurement is either found or reported as not judged.
#[test]
fn steady_growth_is_found_or_said_not_to_be_judged() {
    let mut were_found = Vec::new();
    for seconds in 3..16 {
        let mut process = Process::new(0, &[vec![frame("build", "/home/me/model.py", 5)]]);
        ran(&mut process, seconds, |_| 100 * MIB, |second| (400 + second * 30) * MIB, |_| None);
        let is_found = process.judge().iter().any(|finding| finding.kind == FindingKind::HostGrowth);
        let (_, gaps) = judged(&[&process.watch]);
        let is_gap = gaps.iter().any(|gap| gap.kind == FindingKind::HostGrowth);
        assert!(is_found != is_gap, "{seconds} seconds: found {is_found}, not judged {is_gap}");
        were_found.push(is_found);
    }
    assert!(were_found.contains(&true) && were_found.contains(&false), "{were_found:?}");
}

#[test]
fn what_starts_what_fills_and_what_comes_again_is_no_growth() {
    // Imports and the first batches: all memory grows for ten seconds.
    let starting = |second: u64| (second.min(10) * 200) * MIB;
    assert_eq!(run(60, |_| GIB, |second| Some(starting(second))), []);
    // A page cache that fills: half of the remaining room every ten seconds.
    let fills = |second: u64| (2_000.0 * (1.0 - (-(second as f64) / 14.0).exp())) as u64 * MIB;
    assert_eq!(run(120, |_| GIB, |second| Some(fills(second))), []);
    // Workers that are restarted in each epoch.
    let again = |second: u64| (second % 15) * 100 * MIB;
    assert_eq!(run(90, |_| GIB, |second| Some(again(second))), []);
    // A process without growth.
    assert_eq!(run(90, |second| GIB + (second % 7) * 30 * MIB, |_| None), []);
}

/// A larger peak leaves more free memory in the cache at an epoch's end. Only what is reserved beyond every peak is
/// lost to fragmentation.
#[test]
fn reserved_memory_grows_only_beyond_the_most_that_was_in_use() {
    let growth = |peak: fn(u64) -> u64, unused: fn(u64) -> u64| {
        let mut process = Process::new(0, &[vec![frame("build", "/home/me/model.py", 5)]]);
        for epoch in 0..12 {
            process.peak_bytes = peak(epoch);
            process.unused_bytes = unused(epoch);
            for _ in 0..10 {
                process.step(&[(1, None, 10, GIB)]);
            }
            process.epoch_end(&[(1, None, 10, GIB)]);
        }
        process.judge().into_iter().find(|finding| finding.kind == FindingKind::FragmentationGrowth)
    };
    assert_eq!(growth(|epoch| (epoch + 1) * 400 * MIB, |_| 0), None, "each epoch's inputs are longer");
    let found = growth(|_| 400 * MIB, |epoch| epoch * 300 * MIB).expect("a finding");
    assert_eq!(found.live_bytes, Some(3_300 * MIB));
    assert!(
        found.title.starts_with("Reserved memory beyond the most in use at once has grown by 3.22 GiB"),
        "{found:#?}"
    );
}

/// A run with ten steps per epoch and two samples per second: the process's own of its device, and one from outside. Each
/// epoch ends with memory that the allocator does not know. The process's allocator holds 150 MiB.
fn beside(epochs: u32, used: impl Fn(u32) -> u64, outside: impl Fn(u64) -> Sample) -> (Process, Vec<Finding>) {
    let mut process = Process::new(0, &[vec![frame("build", "/home/me/model.py", 5)]]);
    for epoch in 0..epochs {
        for _ in 0..10 {
            process.step(&[(1, None, 10, 100 * MIB)]);
            let device_used_bytes = 150 * MIB + used(epoch);
            let own = Sample { device_used_bytes: Some(device_used_bytes), ..Sample::default() };
            process.watch.sample(&Sample { time_ns: process.time_ns, ..own });
            process.watch.sample(&Sample { time_ns: process.time_ns, ..outside(device_used_bytes) });
        }
        process.epoch_end(&[(1, None, 10, 100 * MIB)]);
    }
    let found = process.judge();
    (process, found)
}

/// The figures of a reader whose list of processes lacks this process.
fn blind(_: u64) -> Sample {
    Sample {
        device_used_bytes: Some(0),
        process_used_bytes: Some(0),
        foreign_used_bytes: Some(0),
        host_rss_bytes: Some(2 * GIB),
        ..Sample::default()
    }
}

#[test]
fn memory_outside_the_allocator_is_found_where_the_driver_does_not_list_the_process() {
    type Reader = fn(u64) -> Sample;
    let readers: [(&str, Reader); 4] = [
        ("another view", blind),
        ("no list", |used| Sample {
            device_used_bytes: Some(used),
            host_rss_bytes: Some(2 * GIB),
            ..Sample::default()
        }),
        ("no reader", |_| Sample::default()),
        ("host only", |_| Sample { host_rss_bytes: Some(2 * GIB), ..Sample::default() }),
    ];
    for (name, reader) in readers {
        let (process, found) = beside(14, |epoch| u64::from(epoch) * 64 * MIB, reader);
        assert_eq!((found.len(), found[0].kind), (1, FindingKind::OutsideAllocator), "{name}: {found:#?}");
        let title = &found[0].title;
        assert!(title.ends_with("on rank 0 (64.0 MiB per epoch)") && title.contains("outside"), "{name}: {title}");
        assert!(found[0].explanation.contains("does not report how much of the device this process uses"), "{name}");
        let (judged, gaps) = judged(&[&process.watch]);
        assert!(judged.kinds.iter().any(|judged| judged.kind == FindingKind::OutsideAllocator), "{name}: {judged:?}");
        let others = gaps.iter().find(|gap| gap.kind == FindingKind::ForeignProcess);
        let reason =
            if name == "another view" { "the driver's list of processes lacks this job's" } else { "not measured" };
        assert!(others.is_some_and(|gap| gap.reason.starts_with(reason)), "{name}: {gaps:?}");
    }
    let listed = |used| Sample { process_used_bytes: Some(used), foreign_used_bytes: Some(0), ..blind(0) };
    let (_, found) = beside(14, |epoch| u64::from(epoch) * 64 * MIB, listed);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].explanation.starts_with("The process uses more and more"), "{}", found[0].explanation);
}

#[test]
fn what_a_library_takes_once_is_no_growth_outside_the_allocator() {
    for readers in [blind, |used| Sample { process_used_bytes: Some(used), ..blind(0) }] {
        // Contexts, kernels, workspaces and communicators, each once and early.
        let (_, found) = beside(20, |epoch| 400 * MIB + u64::from(epoch.min(3)) * 300 * MIB, readers);
        assert_eq!(found, [], "early");
        // One communicator that is made late.
        let (_, found) = beside(20, |epoch| if epoch < 15 { 400 * MIB } else { 2 * GIB }, readers);
        assert_eq!(found, [], "late");
        // Memory of another program that comes and goes.
        let (_, found) = beside(20, |epoch| 400 * MIB + u64::from(epoch % 3) * GIB, readers);
        assert_eq!(found, [], "up and down");
    }
}

#[test]
fn memory_of_this_job_s_other_process_on_a_device_is_not_outside_its_allocators() {
    let facts = |rank| RankFacts { rank, device_id: Some("GPU-1".into()), ..RankFacts::default() };
    let mut both: Vec<Process> = [0, 1].map(|rank| Process::new(rank, &[])).into();
    for (rank, process) in (0..).zip(&mut both) {
        process.watch = RankWatch::new(facts(rank));
    }
    for step in 0..120_u64 {
        both[0].step(&[(0, None, 10, 100 * MIB)]);
        both[1].step(&[(0, None, 10 + step, (100 + step * 20) * MIB)]);
        let time_ns = both[0].time_ns.max(both[1].time_ns);
        let device_used_bytes = Some((300 + step * 20) * MIB);
        both[0].watch.sample(&Sample { time_ns, device_used_bytes, ..Sample::default() });
    }
    let found = findings(&both.iter().map(|process| &process.watch).collect::<Vec<_>>(), Activity::Running);
    let kinds: Vec<FindingKind> = found.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Leak], "{found:#?}");
}

#[test]
fn frequent_own_samples_leave_those_from_outside() {
    // Every tenth sample is from outside: thinning to one in two of all of them would leave none.
    let mut process = Process::new(0, &[vec![frame("build", "/home/me/model.py", 5)]]);
    for step in 0..20_000_u64 {
        process.step(&[(1, None, 10, 100 * MIB)]);
        let time_ns = process.time_ns;
        let device_used_bytes = Some(GIB);
        process.watch.sample(&match step % 10 {
            9 => Sample {
                time_ns,
                device_used_bytes,
                process_used_bytes: Some(GIB + step * MIB / 10),
                ..Sample::default()
            },
            _ => Sample { time_ns, device_used_bytes, ..Sample::default() },
        });
    }
    let found = process.judge();
    assert!(found.iter().any(|finding| finding.kind == FindingKind::OutsideAllocator), "{found:#?}");
}
