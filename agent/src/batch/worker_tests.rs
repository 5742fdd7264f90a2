//! Tests of the worker over its own ring, with a clock that the test sets: the times and the content of windows.

use memctl_model::{Action, AllocatorSettings, Boundary, Event, Sample, SiteTable, StackId};
use memctl_proto::item::{Content, Packed};
use std::sync::mpsc::{SyncSender, sync_channel};

use super::*;
use crate::batch::BatchConfig;
use crate::ring::{Position, Producer, Record, ring};

struct Bench {
    start: Instant,
    worker: Worker,
    producer: Producer,
    notes: SyncSender<Note>,
    outbox: Arc<Window>,
    taken: u64,
    pushed: u64,
}

impl Bench {
    fn new(linger: Option<Duration>) -> Self {
        Self::with_outbox(linger, Window::new(1 << 20, None))
    }

    fn with_outbox(linger: Option<Duration>, outbox: Window) -> Self {
        let (producer, consumer) = ring(1 << 12);
        let (notes, noted) = sync_channel(64);
        let devices = vec![DeviceIndex(0), DeviceIndex(1)];
        let settings = AllocatorSettings::default();
        let batcher = Batcher::new(BatchConfig {
            resolution_ns: 100,
            settings,
            devices,
            linger,
            found: Vec::new(),
            source_paths: Default::default(),
        })
        .unwrap();
        let outbox = Arc::new(outbox);
        let (_unused, other) = ring(1 << 4);
        let ledger = Arc::new(Ledger::new(vec![consumer.gauge(), other.gauge()], outbox.clone()));
        let rings = vec![(consumer, Request::Here(Arc::default())), (other, Request::Here(Arc::default()))];
        let worker = Worker::new(batcher, rings, noted, None, None, outbox.clone(), ledger);
        Self { start: Instant::now(), worker, producer, notes, outbox, taken: 0, pushed: 0 }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn push(&mut self, count: u64) {
        for _ in 0..count {
            self.pushed += 1;
            let (addr, stack) = ((1 << 30) + 512 * self.pushed, StackId::NONE);
            let event = Event {
                time_ns: self.pushed * 1_000,
                action: Action::Alloc,
                addr,
                size: 512,
                stack,
                ..Event::default()
            };
            assert!(self.producer.push(Record::new(&event)));
        }
    }

    fn mark(&self, kind: MarkKind) {
        let position = Position { pushed: self.pushed, dropped: 0 };
        self.notes.send(Note::Mark(Mark { time_ns: 1, kind }, vec![position, Position::default()].into())).unwrap();
    }

    /// Runs one turn of the worker, as in `run`. Returns the tables and marks that it made.
    fn turn(&mut self, millis: u64) -> (Vec<SiteTable>, Vec<MarkKind>) {
        let now = self.at(millis);
        self.worker.turn(now);
        self.worker.cut_window(now);
        self.worker.batcher.flush();
        self.worker.send(&|| None);
        let (mut tables, mut marks) = (Vec::new(), Vec::new());
        while let Some(item) = self.outbox.after(self.taken).unwrap() {
            self.taken = item.seq;
            match Packed::from_item(&item).unwrap().open().unwrap() {
                Content::SiteTables(more) => tables.extend(more.all().unwrap()),
                Content::Marks(more) => marks.extend(more.into_iter().map(|mark| mark.kind)),
                _ => {}
            }
        }
        (tables, marks)
    }
}

const LIVE: Option<Duration> = Some(Duration::from_secs(1));

#[test]
fn what_marks_nothing_has_windows_of_the_devices_that_it_uses() {
    let mut bench = Bench::new(LIVE);
    assert_eq!(bench.turn(60_000), (vec![], vec![]), "nothing was recorded yet");
    bench.push(10);
    let (tables, marks) = bench.turn(61_000);
    let seen: Vec<_> = tables.iter().map(|table| (table.device.0, table.boundary, table.at_event)).collect();
    assert_eq!(seen, [(0, Boundary::WindowEnd, 10)]);
    assert_eq!(tables[0].counters.allocated_bytes, 5_120);
    assert_eq!(marks, [MarkKind::WindowEnd(0)]);
    bench.push(1);
    assert_eq!(bench.turn(61_500), (vec![], vec![]), "it is not time yet");
    let (tables, marks) = bench.turn(62_000);
    assert_eq!((tables[0].at_event, marks), (11, vec![MarkKind::WindowEnd(1)]));
}

#[test]
fn steps_take_the_place_of_windows_as_long_as_they_come() {
    let mut bench = Bench::new(LIVE);
    let mut seen = Vec::new();
    for second in 1..40 {
        bench.push(1);
        if (10..20).contains(&second) {
            bench.mark(MarkKind::StepEnd(second));
        }
        let tables = bench.turn(second * 1_000).0;
        seen.extend(tables.iter().filter(|table| table.device.0 == 0).map(|table| (second, table.boundary)));
    }
    let of =
        |kind| seen.iter().filter(|(_, boundary)| *boundary == kind).map(|(second, _)| *second).collect::<Vec<_>>();
    assert_eq!(of(Boundary::StepEnd), (10..20).collect::<Vec<_>>());
    assert_eq!(of(Boundary::WindowEnd), (1..10).chain(24..40).collect::<Vec<_>>());
}

#[test]
fn a_peak_between_two_steps_is_theirs_though_a_window_lay_between() {
    let mut bench = Bench::new(LIVE);
    bench.push(4);
    bench.turn(1_000);
    for number in 1..=4 {
        let event =
            Event { time_ns: 9_000, action: Action::FreeRequested, addr: (1 << 30) + 512 * number, ..Event::default() };
        assert!(bench.producer.push(Record::new(&event)));
    }
    bench.turn(1_500);
    bench
        .notes
        .send(Note::Mark(
            Mark { time_ns: 1, kind: MarkKind::StepEnd(0) },
            vec![Position { pushed: 8, dropped: 0 }; 2].into(),
        ))
        .unwrap();
    let (tables, _) = bench.turn(1_600);
    assert_eq!((tables[0].boundary, tables[0].counters.allocated_bytes), (Boundary::StepEnd, 0));
    assert_eq!(tables[0].peaks_within.allocated_bytes, 2_048);
}

#[test]
fn a_recording_has_no_windows() {
    let mut bench = Bench::new(None);
    bench.push(10);
    assert_eq!(bench.turn(61_000), (vec![], vec![]));
}

#[test]
fn where_only_counters_are_told_boundaries_have_them() {
    let mut bench = Bench::new(LIVE);
    let sample = |allocated, peak| Sample {
        time_ns: 7,
        allocated_bytes: Some(allocated),
        reserved_bytes: Some(2 << 20),
        peak_allocated_bytes: Some(peak),
        ..Sample::default()
    };
    let tell = |bench: &Bench, note| bench.notes.send(note).unwrap();
    tell(&bench, Note::Sample(Box::new(sample(1_000, 5_000))));
    bench.mark(MarkKind::EpochEnd(0));
    let (tables, _) = bench.turn(100);
    let seen = |table: &SiteTable| {
        (
            table.boundary,
            table.counters.allocated_bytes,
            table.counters.reserved_bytes,
            table.peaks_within.allocated_bytes,
        )
    };
    assert_eq!(seen(&tables[0]), (Boundary::EpochEnd, 1_000, 2 << 20, 5_000));
    tell(&bench, Note::Sample(Box::new(sample(1_500, 5_000))));
    bench.mark(MarkKind::EpochEnd(1));
    let (tables, _) = bench.turn(200);
    assert_eq!(seen(&tables[0]), (Boundary::EpochEnd, 1_500, 2 << 20, 1_500), "the old peak is not this epoch's");
    // There are no more marks from here on.
    tell(&bench, Note::Sample(Box::new(sample(2_500, 5_000))));
    let (tables, marks) = bench.turn(2_000);
    assert_eq!(marks, [MarkKind::WindowEnd(0)]);
    assert_eq!(tables.iter().map(seen).collect::<Vec<_>>(), [(Boundary::WindowEnd, 2_500, 2 << 20, 5_000)]);
}

#[test]
fn what_ended_unnoticed_ended_at_the_last_boundary_whatever_other_devices_did() {
    let mut bench = Bench::new(LIVE);
    bench.push(10);
    bench.mark(MarkKind::StepEnd(0));
    let positions = [Position { pushed: 10, dropped: 0 }, Position::default()];
    bench.notes.send(Note::Settled(positions.into())).unwrap();
    bench.notes.send(Note::Mark(Mark { time_ns: 90_000, kind: MarkKind::EpochEnd(0) }, Box::default())).unwrap();
    bench.worker.turn(bench.at(100));
    bench.worker.batcher.flush();
    bench.worker.send(&|| None);
    let (mut ended, mut seq) = (Vec::new(), 0);
    while let Some(item) = bench.outbox.after(seq).unwrap() {
        seq = item.seq;
        if let Content::Marks(marks) = Packed::from_item(&item).unwrap().open().unwrap() {
            ended.extend(marks.into_iter().filter(|mark| mark.kind == MarkKind::EpochEnd(0)));
        }
    }
    // The tenth event is the last; the second device has none.
    assert_eq!(ended, [Mark { time_ns: 10_000, kind: MarkKind::EpochEnd(0) }]);
}

/// The session's end in the outbox, and the number of events before it.
fn last_word(outbox: &Window) -> (SessionEnd, u64) {
    let (mut seq, mut last, mut events) = (0, None, 0);
    while let Some(item) = outbox.after(seq).unwrap() {
        assert!(last.is_none(), "something is behind the last word");
        seq = item.seq;
        match Packed::from_item(&item).unwrap().open().unwrap() {
            Content::Chunk(bytes) => events += u64::from(memctl_proto::chunk::read_header(&bytes).unwrap().events),
            Content::End(end) => last = Some(end),
            _ => {}
        }
    }
    (last.unwrap(), events)
}

#[test]
fn a_session_has_its_last_word_though_the_outbox_takes_nothing() {
    // The outbox has room for one item, which is never taken. All later items must wait.
    let mut bench = Bench::with_outbox(LIVE, Window::new(1, None));
    bench.push(1_000);
    bench.worker.turn(bench.start);
    bench.worker.batcher.flush();
    bench.worker.send(&|| Some(bench.start));
    bench.push(500);
    bench.worker.turn(bench.start);
    // These are never taken out of the ring.
    bench.push(30);
    let end = Ending { deadline: bench.start, time_ns: 9, failure: None };
    let outbox = bench.outbox.clone();
    let returned = bench.worker.finish(&end, &|| Some(bench.start));
    let (said, waiting) = last_word(&outbox);
    assert_eq!(said, returned);
    assert_eq!((said.produced, waiting), (1_530, 1_000));
    assert_eq!(said.dropped.shutdown, 530, "produced is stored (or about to be) and dropped");
}

#[test]
fn a_step_has_the_counters_that_were_told_before_its_end() {
    let mut bench = Bench::new(LIVE);
    for step in 0..5 {
        let sample = Sample { time_ns: 1, allocated_bytes: Some((step + 1) << 20), ..Sample::default() };
        bench.notes.send(Note::Sample(Box::new(sample))).unwrap();
        bench.mark(MarkKind::StepEnd(step));
    }
    // The worker is late and takes everything in one turn.
    let (tables, _) = bench.turn(1);
    let steps = tables.iter().filter(|table| (table.boundary, table.device.0) == (Boundary::StepEnd, 0));
    let allocated: Vec<u64> = steps.map(|table| table.counters.allocated_bytes >> 20).collect();
    assert_eq!(allocated, [1, 2, 3, 4, 5]);
}
