//! Tests of the host against peers of every kind, in one process: correct trainers, and everything else that may
//! connect.
//!
//! There is no daemon. Recordings go to the spool, and the counts show whether they are complete.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use memctl_model::{Action, DeviceIndex, DeviceInfo, Event};

use super::trainer::FIRST_WORD_MAX;
use super::*;
use crate::link::{LinkError, greet};
use crate::region::Region;
use crate::ring::Record;

/// A port on which no daemon can listen.
const NOWHERE: &str = "http://127.0.0.1:0";
const AT_ONCE: Limits = Limits { grace: Duration::ZERO, patience: Duration::ZERO, silence: Duration::ZERO };

struct Place {
    folder: tempfile::TempDir,
    host: Host,
}

impl Place {
    fn new(trainers_max: usize) -> Self {
        Self::with(trainers_max, |folder| Some(SpoolConfig { folder: folder.join("spool"), bytes_max: 1 << 30 }))
    }

    fn with(trainers_max: usize, spool: impl Fn(&Path) -> Option<SpoolConfig>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let config = HostConfig {
            trainers_max,
            measure_every: Duration::from_millis(20),
            ..HostConfig::new(Daemon::Address(NOWHERE.into()), spool(folder.path()))
        };
        Self { host: Host::start(listener, config).unwrap(), folder }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path("socket")).unwrap()
    }

    fn greet(&self, id: u8, region: &Arc<Region>) -> Result<UnixStream, LinkError> {
        greet(&self.path("socket"), &session(id), region.fd())
    }

    fn wait(&self, what: &str, done: impl FnMut(&Registry) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        assert!(self.host.shared.wait(end, &AtomicBool::new(false), done), "waited in vain for {what}");
    }

    fn finish(self) -> (Summary, tempfile::TempDir) {
        (self.host.finish(AT_ONCE, &AtomicBool::new(false), &|_| {}), self.folder)
    }
}

fn session(id: u8) -> SessionInfo {
    SessionInfo {
        rank: u32::from(id),
        devices: vec![DeviceInfo { index: DeviceIndex(0), ..DeviceInfo::default() }],
        ..SessionInfo::live(SessionId([id; 16]), "hosted", 1)
    }
}

/// A region with `events` events in it.
fn region(events: u64) -> Arc<Region> {
    let region = Region::create(1, 1 << 12).unwrap();
    // SAFETY: the only producer of this region.
    let mut producer = unsafe { region.producer(0) };
    for number in 0..events {
        let addr = (1 << 30) + 512 * number;
        assert!(producer.push(Record::new(&Event { action: Action::Alloc, addr, size: 512, ..Event::default() })));
    }
    region
}

fn refusal(stream: &mut UnixStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut words = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut words).unwrap();
    String::from_utf8(words).unwrap()
}

#[test]
fn what_was_pushed_is_taken_though_no_one_takes_it_from_us() {
    let place = Place::new(8);
    let (first, second) = (region(3_000), region(100));
    let kept = (place.greet(1, &first).unwrap(), place.greet(2, &second).unwrap());
    place.wait("both", |registry| registry.recording.len() == 2);
    second.end();
    drop(kept.1);
    place.wait("the goodbye", |registry| registry.recording.len() == 1);
    assert_eq!(spooled_bytes(&place.path("spool")), 0, "what a living process has does not count");
    let (summary, folder) = place.finish();
    let mut ended = summary.ended;
    ended.sort_by_key(|ended| ended.session.rank);
    let figures: Vec<_> = ended.iter().map(|it| (it.counts.produced, it.counts.dropped, it.delivered)).collect();
    assert_eq!(figures, [(3_000, 0, false), (100, 0, false)]);
    assert!(ended[0].failure.as_ref().unwrap().contains("still running"), "{:?}", ended[0].failure);
    assert_eq!(ended[1].failure, None);
    assert!(ended.iter().all(|ended| ended.counts.in_flight == ended.counts.produced), "all of it is in the spool");
    assert!(spooled_bytes(&folder.path().join("spool")) > 0);
    assert_eq!(spooled_bytes(Path::new("/nowhere")), 0);
}

#[test]
fn a_trainer_whose_recording_ends_while_it_lives() {
    let place = Place::new(8);
    let memory = region(5);
    // This process is the trainer, and it continues.
    drop(place.greet(1, &memory).unwrap());
    place.wait("the end", |registry| registry.recording.is_empty() && registry.delivering.len() == 1);
    let (summary, _folder) = place.finish();
    assert!(summary.ended[0].failure.as_ref().unwrap().contains("the process ran on"));
    assert_eq!(summary.ended[0].counts.produced, 5);
}

#[test]
fn nonsense_is_answered_and_forgotten() {
    let place = Place::new(8);
    let mut stream = place.connect();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(refusal(&mut stream).contains("no memory region"));
    // This peer sends nothing and disconnects.
    drop(place.connect());
    // A file that is not a region.
    let file = tempfile::tempfile().unwrap();
    let refused = greet(&place.path("socket"), &session(1), std::os::fd::AsFd::as_fd(&file));
    assert!(matches!(&refused, Err(LinkError::Refused(words)) if words.contains("no memory region")), "{refused:?}");
    // The session has more devices than the region.
    let two = SessionInfo { devices: vec![DeviceInfo::default(); 2], ..session(1) };
    assert!(matches!(greet(&place.path("socket"), &two, region(0).fd()), Err(LinkError::Refused(_))));
    place.wait("all guests to leave", |registry| registry.guests == 0);
    let (summary, _folder) = place.finish();
    assert_eq!((summary.refused, summary.ended.len()), (3, 0), "who says nothing is not refused");
}

#[test]
fn a_region_has_one_reader_and_a_session_one_writer() {
    let place = Place::new(8);
    let (memory, other) = (region(1), region(1));
    let first = place.greet(1, &memory).unwrap();
    let said = |refused: Result<UnixStream, LinkError>| match refused {
        Err(LinkError::Refused(words)) => words,
        other => panic!("{other:?}"),
    };
    assert!(said(place.greet(2, &memory)).contains("this memory region"));
    assert!(said(place.greet(1, &other)).contains("is being recorded already"));
    // Refusals have no effect on the recorded trainer. Its permit is free again after it ends.
    assert_eq!(place.host.recording(), 1);
    assert!(place.greet(3, &other).is_ok());
    drop(first);
    let (summary, _folder) = place.finish();
    assert_eq!((summary.refused, summary.ended.len()), (2, 2));
}

#[test]
fn there_is_a_most_of_trainers() {
    let place = Place::new(2);
    let regions = [region(0), region(0), region(0)];
    let _kept = (place.greet(1, &regions[0]).unwrap(), place.greet(2, &regions[1]).unwrap());
    // The host may answer before the hello was sent, so the answer is read as it arrives.
    assert!(refusal(&mut place.connect()).contains("2 trainers"));
    let (summary, _folder) = place.finish();
    assert_eq!(summary.refused_because.as_deref(), Some("2 trainers are recorded here already, which is the most"));
}

#[test]
fn few_descriptors_mean_few_trainers() {
    assert_eq!([0, 74, 256, 1_024, 1 << 20, u64::MAX].map(trainers_max), [1, 1, 19, 96, 256, 256]);
}

#[test]
fn the_end_does_not_wait_for_who_says_nothing() {
    let place = Place::new(8);
    let _silent = place.connect();
    place.wait("the guest", |registry| registry.guests == 1);
    let begun = Instant::now();
    let (summary, _folder) = place.finish();
    assert!(summary.ended.is_empty());
    assert!(begun.elapsed() < FIRST_WORD_MAX, "the order to close ended the wait for its first word");
}

#[test]
fn trainers_are_measured() {
    let place = Place::new(8);
    let memory = region(0);
    let _kept = place.greet(1, &memory).unwrap();
    // Samples make items. Without events, only items make bytes wait.
    let waiting = |registry: &Registry| registry.recording.values().any(|trainer| trainer.waiting_bytes() > 0);
    place.wait("a measurement", waiting);
}

#[test]
fn without_a_spool_what_is_given_up_is_counted_as_dropped() {
    let place = Place::with(8, |_| None);
    let memory = region(3_000);
    let _kept = place.greet(1, &memory).unwrap();
    place.wait("the trainer", |registry| registry.recording.len() == 1);
    let (summary, _folder) = place.finish();
    let counts = summary.ended[0].counts;
    assert_eq!((counts.produced, counts.dropped, counts.in_flight), (3_000, 3_000, 0));
    assert!(!summary.ended[0].delivered);
}

#[test]
fn a_spool_that_is_full_takes_the_last_word() {
    let place = Place::with(8, |folder| Some(SpoolConfig { folder: folder.join("spool"), bytes_max: 100 }));
    let memory = region(3_000);
    let _kept = place.greet(1, &memory).unwrap();
    place.wait("the trainer", |registry| registry.recording.len() == 1);
    let (summary, folder) = place.finish();
    let counts = summary.ended[0].counts;
    assert_eq!((counts.dropped, counts.in_flight), (3_000, 0));
    // The thread that wrote it may still hold its lock.
    let orphan = || crate::uplink::spool::Spool::orphans(&folder.path().join("spool")).pop();
    let spool = (0..1_000)
        .find_map(|_| {
            orphan().or_else(|| {
                std::thread::sleep(Duration::from_millis(10));
                None
            })
        })
        .unwrap();
    let last = spool.places().last().map(|(seq, _)| seq).unwrap();
    let outbox = crate::uplink::window::Window::recovered(spool);
    let item = outbox.after(last - 1).unwrap().unwrap();
    let memctl_proto::item::Content::End(end) = memctl_proto::item::Packed::from_item(&item).unwrap().open().unwrap()
    else {
        panic!("the last item is no end")
    };
    assert_eq!((end.produced, end.dropped.spool_full), (3_000, counts.dropped));
}
