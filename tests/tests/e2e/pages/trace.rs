//! A trace with everything that a daemon can send: levels, measurements of the device, slices, a failed request.

use super::super::exports::{TrackEvent, slices, tracks};
use super::fixture::{MIB, START_NS};
use super::{Screen, ended};

fn export(job: &str, slice: &str) -> Result<Vec<u8>, super::Failure> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.pftrace");
    let line = format!("export --quiet --job {job} --rank 3 --format perfetto {slice} -f {}", file.display());
    let (_, result) = ended(&line, Screen { columns: None, unicode: true });
    result.map(|()| std::fs::read(file).unwrap())
}

/// The times after the start and the values of a counter of the exported rank.
fn counter(bytes: &[u8], name: &str) -> Vec<(u64, i64)> {
    let tracks = tracks(bytes);
    let events = tracks.get(&("rank 3".to_owned(), name.to_owned()));
    let point = |(at, event): &(u64, TrackEvent)| (at - START_NS, event.value.expect("a value"));
    events.map(|events| events.iter().map(point).collect()).unwrap_or_default()
}

#[test]
fn every_kind_of_part_has_its_track() {
    let bytes = export("latest", "").unwrap();
    let mib = |count: u64| (count * MIB) as i64;
    assert_eq!(counter(&bytes, "cuda:1 reserved"), [(0, 0), (1_000, mib(20))]);
    // The second block has 100 bytes less than 2 MiB, which the allocator rounds up to 512 bytes.
    assert_eq!(
        counter(&bytes, "cuda:1 allocated"),
        [(0, 0), (1_000, mib(3)), (2_000, mib(5)), (3_000, mib(2)), (5_000, mib(3) + mib(1) / 2)]
    );
    // A sample with the same value, and one without it, add nothing.
    assert_eq!(counter(&bytes, "cuda:1 device used"), [(500, mib(900)), (2_500, mib(950))]);
    let tracks = tracks(&bytes);
    let of = |name: &str| tracks[&("rank 3".to_owned(), name.to_owned())].clone();
    assert_eq!(slices(&of("training")), [("epoch 0".to_owned(), START_NS, START_NS + 4_500)]);
    let failed: Vec<u64> = of("cuda:1 out of memory").iter().map(|(at, _)| at - START_NS).collect();
    assert_eq!(failed, [4_000]);
}

#[test]
fn a_part_leaves_out_the_other_events_and_measurements() {
    let bytes = export("latest", "--epoch 0").unwrap();
    assert_eq!(counter(&bytes, "cuda:1 allocated").last(), Some(&(3_000, (2 * MIB) as i64)));
    assert_eq!(counter(&bytes, "cuda:1 device used").len(), 2);
}

#[test]
fn parts_that_no_daemon_should_send_are_an_error() {
    for job in ["chunk_before_its_rank", "no_chunk", "device_256"] {
        let failure = export(job, "").unwrap_err();
        assert_eq!(failure.code, 3, "{job}: {failure}");
        assert!(failure.words.contains("cannot be exported"), "{job}: {failure}");
    }
}
