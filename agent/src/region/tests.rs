//! Tests of regions: two mappings of the same memory, hostile files, and notes and dictionary against their models.

use std::os::fd::AsFd;

use memctl_model::{Event, MarkKind, Phase};
use proptest::prelude::*;

use super::dictionary::{Entry, Kind};
use super::messages::{self, NoteContent};
use super::*;
use crate::clock::Ticks;
use crate::ring::Position;

/// A second mapping of the same memory, like that of another process.
fn other(region: &Region) -> Arc<Region> {
    Region::open(region.fd().try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn what_one_side_writes_the_other_reads() {
    let trainer = Region::create(2, 100).unwrap();
    let host = other(&trainer);
    assert_eq!((host.devices(), host.level(), host.state()), (2, Level::Off, State::Running));
    // SAFETY: one producer and one consumer.
    let (mut producer, mut consumer) = unsafe { (trainer.producer(1), host.consumer(1)) };
    for number in 1..=200 {
        producer.push(Record::new(&Event { addr: number, ..Event::default() }));
    }
    let mut read = Vec::new();
    consumer.read(u64::MAX, |record| read.push(record.event(Ticks::as_ns).addr));
    assert_eq!(read, (1..=128).collect::<Vec<_>>(), "rounded up to 128 records, the rest dropped");
    assert_eq!(consumer.gauge().dropped(), 72);
    host.want_snapshot(1, true);
    assert!(trainer.snapshot_wanted(1) && !trainer.snapshot_wanted(0));
    trainer.leave();
    assert_eq!(host.state(), State::Leaving);
    trainer.end();
    assert_eq!(host.state(), State::Ended);
}

/// Bytes of the region that are allocated.
fn touched(region: &Region) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    region.file.metadata().unwrap().blocks() * 512
}

#[test]
fn a_burst_finds_room_and_nothing_else_touches_memory() {
    const BURST: u64 = 1_000_000;
    let trainer = Region::create(1, ring::EVENTS).unwrap();
    let host = other(&trainer);
    // SAFETY: one producer and one consumer.
    let (mut producer, mut consumer) = unsafe { (trainer.producer(0), host.consumer(0)) };
    trainer.populate(0);
    let before = touched(&trainer);
    let numbered = |number| Record::new(&Event { addr: number, ..Event::default() });
    let (mut pushed, mut read) = (0_u64, 0_u64);
    let mut next = |record: &Record| {
        assert_eq!((record.event(Ticks::as_ns).addr, record.dropped_before()), (read, 0));
        read += 1;
    };
    // Pushes ten times the ring's size. A batch is what arrives in 50 ms of the busiest training seen.
    while pushed < 10 * ring::EVENTS as u64 {
        for _ in 0..10_000 {
            assert!(producer.push(numbered(pushed)));
            pushed += 1;
        }
        consumer.read(u64::MAX, &mut next);
    }
    assert_eq!(touched(&trainer), before, "it goes round in the pages that were there");
    for _ in 0..BURST {
        assert!(producer.push(numbered(pushed)), "it is not read, and there is room");
        pushed += 1;
    }
    assert!(touched(&trainer) >= BURST * size_of::<Record>() as u64);
    consumer.read(u64::MAX, &mut next);
    assert_eq!((read, consumer.gauge().dropped()), (pushed, 0));
}

#[test]
fn it_outlives_the_side_that_made_it() {
    let trainer = Region::create(1, 16).unwrap();
    let host = other(&trainer);
    trainer.notes_writer().push(&[b"last words"]);
    drop(trainer);
    assert_eq!(host.notes_reader().pop().as_deref(), Some(&b"last words"[..]));
}

#[test]
fn released_pages_read_as_zeros_and_stay_mapped() {
    let region = Region::create(1, 16).unwrap();
    // SAFETY: one producer and one consumer.
    let (mut producer, mut consumer) = unsafe { (region.producer(0), region.consumer(0)) };
    region.release_pages();
    assert!(producer.push(Record::new(&Event { addr: 5, ..Event::default() })));
    assert_eq!(consumer.read(1, |record| assert_eq!(record.event(Ticks::as_ns).addr, 5)), 1);
}

#[test]
fn files_that_are_no_region_are_refused() {
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(1 << 20).unwrap();
    assert!(matches!(Region::open(plain.as_fd().try_clone_to_owned().unwrap()), Err(RegionError::Foreign)));
    // The file is sealed, but the sizes in it were changed.
    for (at, value) in [(8, u32::MAX), (8, 0), (16, 3), (16, 1 << 30)] {
        let region = Region::create(2, 64).unwrap();
        // SAFETY: no other thread uses this region; the header's first words are plain numbers.
        unsafe { region.base.add(at).cast::<u32>().write(value) };
        assert!(
            matches!(Region::open(region.fd().try_clone_to_owned().unwrap()), Err(RegionError::Sizes(_))),
            "{at} {value}"
        );
    }
    let region = Region::create(2, 64).unwrap();
    // SAFETY: as above.
    unsafe { region.base.cast::<u64>().write(0) };
    assert!(matches!(Region::open(region.fd().try_clone_to_owned().unwrap()), Err(RegionError::Foreign)));
}

#[test]
fn lying_counts_give_nothing_and_crash_nothing() {
    let region = Region::create(1, 16).unwrap();
    let host = other(&region);
    // SAFETY: one producer and one consumer.
    let (_producer, mut consumer) = unsafe { (region.producer(0), host.consumer(0)) };
    let control = region.ring_parts(0).control;
    for head in [17, u64::MAX, 1 << 63] {
        // SAFETY: the head is the first word of the control block; a broken trainer writes it.
        unsafe { control.cast_mut().cast::<u64>().write(head) };
        assert_eq!(consumer.read(u64::MAX, |_| panic!("there is nothing")), 0);
    }
    let (notes, length) = region.notes_bytes();
    // SAFETY: inside the log; a broken trainer writes it.
    unsafe { std::slice::from_raw_parts_mut(notes, length) }.fill(0xff);
    region.notes_control().set_head_for_test(4096);
    assert_eq!(host.notes_reader().pop(), None);
    let (dictionary, length) = region.dictionary_bytes();
    // SAFETY: inside the dictionary; a broken trainer writes it.
    unsafe { std::slice::from_raw_parts_mut(dictionary, length) }.fill(0xff);
    region.dictionary_control().set_length_for_test(length as u64);
    assert_eq!(dictionary::Reader::new(host).pop(), None);
}

#[test]
fn counts_of_notes_go_on_past_their_greatest_number() {
    let region = Region::create(1, 2).unwrap();
    let last = u64::MAX - 15;
    region.notes_control().set_head_for_test(last);
    region.notes_control().set_tail_for_test(last);
    let (mut writer, mut reader) = (region.notes_writer(), other(&region).notes_reader());
    for note in [b"one", b"two"] {
        assert!(writer.push(&[note]));
        assert_eq!(reader.pop().as_deref(), Some(&note[..]));
    }
    assert_eq!(reader.pop(), None);
}

proptest! {
    #[test]
    fn notes_are_a_bounded_queue(steps in proptest::collection::vec((0_usize..1_500_000, any::<bool>()), 1..40)) {
        let region = Region::create(1, 2).unwrap();
        let (mut writer, mut reader) = (region.notes_writer(), other(&region).notes_reader());
        let mut model = std::collections::VecDeque::new();
        let mut refused = 0;
        for (number, (length, pop)) in steps.into_iter().enumerate() {
            let note = vec![number as u8; length];
            let half = length / 2;
            match writer.push(&[&note[..half], &note[half..]]) {
                true => model.push_back(note),
                false => {
                    // A note is refused only when there is no room. The waiting notes and this one do not fit, with one
                    // gap before the end and one among the waiting notes.
                    let waiting: usize = model.iter().map(|note: &Vec<u8>| note.len() + 16).sum();
                    prop_assert!(waiting + 2 * (length + 16) + 1_500_016 > NOTES_BYTES as usize);
                    refused += 1;
                }
            }
            if pop {
                prop_assert_eq!(reader.pop(), model.pop_front());
            }
        }
        prop_assert_eq!(writer.dropped(), refused);
        while let Some(note) = model.pop_front() {
            prop_assert_eq!(reader.pop(), Some(note));
        }
        prop_assert_eq!(reader.pop(), None);
    }

    #[test]
    fn any_bytes_are_a_note_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = messages::read(&bytes);
    }

    #[test]
    fn marks_come_back(ticks: u64, number: u32, name in "\\PC{0,40}", pushed: u64, kind in 1_u8..10) {
        let number = if kind == 5 || kind == 6 { Phase::ALL[number as usize % 5] as u64 } else { u64::from(number) };
        let kind = messages::mark_kind(kind, number, &name).expect("a known kind");
        let positions = [Position { pushed, dropped: 3 }, Position::default()];
        let bytes = messages::mark(Ticks(ticks), &kind, &positions);
        prop_assert_eq!(messages::read(&bytes), Some(NoteContent::Mark(Ticks(ticks), kind, positions.into())));
    }
}

#[test]
fn dictionary_entries_come_back_in_order() {
    let region = Region::create(1, 2).unwrap();
    let (mut writer, mut reader) = (dictionary::Writer::new(region.clone()), dictionary::Reader::new(other(&region)));
    assert_eq!(reader.pop(), None);
    let mut code = Vec::new();
    for number in [7_u32, 2, 3, 1] {
        code.extend(number.to_le_bytes());
    }
    code.extend(b"ab.xyz\x01");
    let put = |writer: &mut dictionary::Writer, kind, bytes: &[u8]| {
        writer.append(kind, bytes.len() + 5, |to| {
            to[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        })
    };
    assert!(put(&mut writer, Kind::Code, &code));
    assert!(put(&mut writer, Kind::Stack, &[1, 0, 0, 0, 8, 0, 0, 0]));
    assert!(put(&mut writer, Kind::Node, b"\x01\0\0\0N3fooE"));
    let entry = Entry::Code { first_line: 7, file: "ab".into(), name: ".xy".into(), table: vec![b'z'] };
    assert_eq!(reader.pop(), Some(entry));
    assert_eq!(reader.pop(), Some(Entry::Stack(vec![(1, 8)])));
    assert_eq!(reader.pop(), Some(Entry::Node { forward: 1, type_name: "N3fooE".into() }));
    assert!(put(&mut writer, Kind::Owner, b"\x01\0\0\0KV cache"));
    assert_eq!(reader.pop(), Some(Entry::Owner { stack: 1, name: "KV cache".into() }));
    assert_eq!(reader.pop(), None);
    // A full dictionary refuses an entry and keeps its content.
    assert!(!writer.append(Kind::Node, DICTIONARY_BYTES as usize, |_| unreachable!("there is no room")));
}

#[test]
fn kinds_of_marks_that_do_not_exist_are_none() {
    assert_eq!(messages::mark_kind(0, 0, ""), None);
    assert_eq!(messages::mark_kind(10, 0, ""), None);
    assert_eq!(messages::mark_kind(1, u64::from(u32::MAX) + 1, ""), None);
    assert_eq!(messages::mark_kind(5, 99, ""), None);
    assert_eq!(messages::mark_kind(9, 0, "empty_cache"), Some(MarkKind::Note("empty_cache".into())));
}
