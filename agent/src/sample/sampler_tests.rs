//! Tests of combining with fixed values, and of reading with this process and the machine's driver, if there is one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memctl_model::{DeviceIndex, Sample};
use proptest::prelude::*;

use super::Unavailable;
use super::device::*;
use super::host::{Descendant, Proc, ProcessKey};
use super::sampler::*;

fn process(pid: u32, used_bytes: impl Into<Option<u64>>) -> DeviceProcess {
    DeviceProcess { pid, used_bytes: used_bytes.into() }
}

fn descendant(pid: u32, resident_bytes: Option<u64>) -> Descendant {
    Descendant {
        key: ProcessKey { pid, start_ticks: 1 },
        parent_pid: 10,
        name: "pt_data_worker".into(),
        resident_bytes,
    }
}

fn reading(processes: Option<Vec<DeviceProcess>>) -> DeviceReading {
    DeviceReading {
        memory: Some(DeviceMemory { total_bytes: 1_000, reserved_bytes: 100, used_bytes: 500, free_bytes: 400 }),
        utilisation_percent: Some(87),
        processes,
    }
}

#[test]
fn memory_is_ours_of_our_children_or_foreign() {
    let children = HashSet::from([11, 12]);
    let listed = [process(10, 300), process(11, 20), process(77, 7), process(10, 1), process(78, 70)];
    let wanted = Shares { ours_bytes: Some(301), children_bytes: Some(20), foreign_bytes: Some(77) };
    assert_eq!(shares(&listed, 10, &children, true), wanted);
    assert_eq!(shares(&listed, 10, &children, false), wanted, "listed under its own pid, so the pids are ours");

    // If the trainer is not listed, it has 0 bytes where pids are shared. Otherwise its bytes are unknown.
    let others = [process(77, 7)];
    let none = Shares { ours_bytes: Some(0), children_bytes: Some(0), foreign_bytes: Some(7) };
    assert_eq!(shares(&others, 10, &children, true), none);
    assert_eq!(shares(&others, 10, &children, false), Shares::default());
    assert_eq!(shares(&[], 10, &children, false), Shares::default());

    // A process of unknown size makes the sum of its group unknown, and no other sum.
    let listed = [process(10, 300), process(77, None), process(78, 70)];
    let wanted = Shares { ours_bytes: Some(300), children_bytes: Some(0), foreign_bytes: None };
    assert_eq!(shares(&listed, 10, &children, true), wanted);
}

#[test]
fn a_sample_has_what_is_known_and_nothing_else() {
    let host = HostReading {
        resident_bytes: Some(4_096),
        descendants: vec![descendant(11, Some(50)), descendant(12, None), descendant(13, Some(7))],
    };
    let full = reading(Some(vec![process(10, 300), process(11, 20), process(77, 7)]));
    let wanted = Sample {
        device: DeviceIndex(2),
        time_ns: 99,
        device_used_bytes: Some(500),
        device_total_bytes: Some(900),
        process_used_bytes: Some(300),
        foreign_used_bytes: Some(7),
        utilisation_percent: Some(87),
        host_rss_bytes: Some(4_096),
        children_rss_bytes: Some(57),
        ..Sample::default()
    };
    assert_eq!(combine(DeviceIndex(2), 99, 10, Some(&full), Some(&host), true), wanted);
    // Without a list of processes, a driver or a host, only the fields from that source are missing.
    let unlisted = Sample { process_used_bytes: None, foreign_used_bytes: None, ..wanted };
    assert_eq!(combine(DeviceIndex(2), 99, 10, Some(&reading(None)), Some(&host), true), unlisted);
    // A driver that does not report the device's memory (unified memory) still lists processes.
    let unmeasured = DeviceReading { memory: None, ..full.clone() };
    let shares_alone = Sample { device_used_bytes: None, device_total_bytes: None, ..wanted };
    assert_eq!(combine(DeviceIndex(2), 99, 10, Some(&unmeasured), Some(&host), true), shares_alone);
    let undriven = Sample { device_used_bytes: None, device_total_bytes: None, utilisation_percent: None, ..unlisted };
    assert_eq!(combine(DeviceIndex(2), 99, 10, None, Some(&host), true), undriven);
    let nothing = Sample { device: DeviceIndex(2), time_ns: 99, ..Sample::default() };
    assert_eq!(combine(DeviceIndex(2), 99, 10, None, None, true), nothing);

    let childless = HostReading { resident_bytes: Some(1), descendants: Vec::new() };
    assert_eq!(combine(DeviceIndex(0), 0, 10, None, Some(&childless), true).children_rss_bytes, Some(0));
    let unmeasured = HostReading { resident_bytes: Some(1), descendants: vec![descendant(11, None)] };
    assert_eq!(combine(DeviceIndex(0), 0, 10, None, Some(&unmeasured), true).children_rss_bytes, None);
}

/// Counts how often a device is read.
struct Counted(Arc<AtomicUsize>);

impl Devices for Counted {
    fn read(&self, uuid: &str) -> Result<DeviceReading, Unavailable> {
        // Relaxed: one thread.
        self.0.fetch_add(1, Ordering::Relaxed);
        if uuid == "GPU-gone" { Err(Unavailable::NoDevice(uuid.to_owned())) } else { Ok(reading(None)) }
    }
}

#[test]
fn each_device_is_read_once_however_many_share_it() {
    let reads = Arc::new(AtomicUsize::new(0));
    let sampler = Sampler::new(Ok(Box::new(Counted(Arc::clone(&reads)))), Proc::default());
    let me = Proc::default().key(std::process::id()).expect("this process");
    let devices = vec![
        (DeviceIndex(0), Some("GPU-a".to_owned())),
        (DeviceIndex(1), Some("GPU-gone".to_owned())),
        (DeviceIndex(2), None),
    ];
    let gone = ProcessKey { start_ticks: me.start_ticks + 1, ..me };
    let watched = [
        Watched { process: me, devices: devices.clone() },
        Watched { process: gone, devices: devices.clone() },
        Watched { process: me, devices },
    ];
    let samples = sampler.sample(&watched, 5);
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    assert_eq!(samples.iter().map(Vec::len).collect::<Vec<_>>(), [3, 0, 3], "a process that is gone has no samples");
    let used: Vec<_> = samples[0].iter().map(|sample| (sample.device.0, sample.device_used_bytes)).collect();
    assert_eq!(used, [(0, Some(500)), (1, None), (2, None)]);
    assert!(samples[0].iter().all(|sample| sample.host_rss_bytes.is_some_and(|bytes| bytes > 1 << 20)));
}

/// This test works with any driver, and without one.
#[test]
fn this_process_is_sampled_with_or_without_a_driver() {
    let sampler = Sampler::open();
    let me = Proc::default().key(std::process::id()).expect("this process");
    let watched = Watched { process: me, devices: vec![(DeviceIndex(0), Some("GPU-none".into()))] };
    let samples = sampler.sample(&[watched], 1);
    assert_eq!((samples[0][0].device_used_bytes, samples[0][0].process_used_bytes), (None, None));
    assert!(samples[0][0].host_rss_bytes.is_some());
    if let Some(reason) = sampler.unavailable() {
        assert!(reason.to_string().len() > 20, "{reason}");
    }
}

proptest! {
    #[test]
    fn shares_are_a_partition(
        listed in proptest::collection::vec((0u32..8, 0u64..1 << 40), 0..12),
        pid in 0u32..8,
        children in proptest::collection::hash_set(0u32..8, 0..5),
    ) {
        let processes: Vec<_> = listed.iter().map(|&(pid, bytes)| process(pid, bytes)).collect();
        let Shares { ours_bytes, children_bytes, foreign_bytes } = shares(&processes, pid, &children, true);
        let sum = [ours_bytes, children_bytes, foreign_bytes].into_iter().map(|bytes| bytes.expect("all sizes are known")).sum::<u64>();
        prop_assert_eq!(sum, listed.iter().map(|(_, bytes)| bytes).sum::<u64>());
    }
}
