//! Tests that written snapshots are read back: the same events with their stacks, the same segments, marks and
//! settings.

use crate::pickle;

use std::path::{Path, PathBuf};

use memctl_model::{
    Action, AllocatorSettings, DeviceIndex, Event, Frame, Keyframe, KeyframeReason, Mark, MarkKind, StackId,
};
use memctl_snapshot::{HELD_BYTES_MAX, Recording, SnapshotWriter, WriteError, load, load_from, write};
use pickle::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The content of a snapshot. Stacks are written as frames, because their numbers depend on the order in the file.
fn said(recording: &Recording) -> String {
    use std::fmt::Write as _;
    let stack = |id: StackId| {
        let frames = id.0.checked_sub(1).map(|at| &recording.stacks[at as usize][..]).unwrap_or_default();
        frames.iter().map(|frame| format!("{:?}", recording.frames[frame.0 as usize])).collect::<String>()
    };
    let mut text = format!("{:?}\n{:?}\n", recording.settings, recording.found);
    for mark in &recording.marks {
        writeln!(text, "{mark:?}").unwrap();
    }
    for device in &recording.devices {
        for event in device.events.iter() {
            writeln!(text, "{:?} {:?} {}", device.device, Event { stack: StackId::NONE, ..event }, stack(event.stack))
                .unwrap();
        }
        for segment in &device.final_segments {
            let memctl_model::SegmentState { addr, size, stream, pool, kind, expandable, blocks } = segment;
            writeln!(text, "{addr:x} {size} {stream} {pool:?} {kind:?} {expandable}").unwrap();
            for block in blocks {
                let memctl_model::BlockState { addr, size, requested, usage, .. } = block;
                writeln!(text, "  {addr:x} {size} {requested} {usage:?} {}", stack(block.stack)).unwrap();
            }
        }
    }
    text
}

/// Writes a recording and reads it back.
fn again(recording: &Recording) -> Recording {
    let mut file = Vec::new();
    write(recording, &mut file).unwrap();
    load_from(&file[..], HELD_BYTES_MAX, &mut |_| {}).unwrap()
}

fn assert_same(found: &Recording, expected: &Recording, name: &str) {
    let (found, expected) = (said(found), said(expected));
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{name}, line {line}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{name}");
}

#[test]
fn a_real_recording_comes_back() {
    let recording = load(&fixture("snapshots/cnn-tail-protocol4.pickle"), &mut |_| {}).unwrap();
    assert!(recording.events() > 0 && !recording.marks.is_empty());
    let back = again(&recording);
    assert_same(&back, &recording, "a tail");
    assert_same(&again(&back), &recording, "twice");
}

#[test]
fn a_run_that_ran_out_of_memory_comes_back() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/recordings");
    let recording = load(&data.join("oom_by_fragmentation/rank0.pickle.zst"), &mut |_| {}).unwrap();
    assert!(recording.merged().count() > 1000);
    assert_same(&again(&recording), &recording, "oom_by_fragmentation");
}

#[test]
fn devices_without_events_keep_their_place() {
    let trace = |addr| {
        Py::List(vec![
            event("segment_alloc", addr, 2 << 20, 1_000_000),
            with(event("alloc", addr, 512, 1_000_001), "frames", Py::List(vec![frame("f", 1)])),
            event("alloc", addr + 512, 1024, 1_000_002),
            event("free_requested", addr + 512, 1024, 1_000_003),
            event("free_completed", addr + 512, 1024, 1_000_004),
        ])
    };
    let traces = Py::List(vec![Py::List(vec![]), trace(1 << 30), Py::List(vec![]), trace(1 << 31)]);
    let made = with(snapshot(vec![], vec![annotation("step#1", "END", 1_000_004)]), "device_traces", traces);
    let recording = load_from(&dumps(&made, Style::Python4)[..], HELD_BYTES_MAX, &mut |_| {}).unwrap();
    let back = again(&recording);
    let devices: Vec<u8> = back.devices.iter().map(|device| device.device.0).collect();
    assert_eq!(devices, [1, 3]);
    for (found, expected) in back.devices.iter().zip(&recording.devices) {
        assert!(
            found.events.iter().map(|it| (it.addr, it.size)).eq(expected.events.iter().map(|it| (it.addr, it.size)))
        );
        let live = found.final_segments[0].blocks.iter().filter(|block| block.stack.is_some()).count();
        assert_eq!((found.final_segments.len(), live), (1, 1), "the trace's segment, which the file did not name");
    }
    assert_eq!(back.marks, recording.marks);
}

fn at(time_ns: u64, action: Action, addr: u64, size: u64, stack: u32) -> Event {
    Event { time_ns, action, addr, size, stack: StackId(stack), ..Event::default() }
}

fn frames(name: &'static str) -> impl Fn(StackId) -> Vec<&'static Frame> {
    let frame: &Frame = Box::leak(Box::new(Frame { function: name.into(), file: "train.py".into(), line: 7 }));
    move |_| vec![frame]
}

#[test]
fn a_slice_has_the_state_and_not_the_events_before_it() {
    let mut file = Vec::new();
    let mut writer = SnapshotWriter::new(&mut file).unwrap();
    writer.begin_device(DeviceIndex(0), &AllocatorSettings::default()).unwrap();
    writer.pass(&at(1_000, Action::SegmentAlloc, 1 << 30, 2 << 20, 0)).unwrap();
    writer.pass(&at(2_000, Action::Alloc, 1 << 30, 512, 3)).unwrap();
    writer.event(&at(3_000, Action::Alloc, (1 << 30) + 512, 512, 0), frames("never")).unwrap();
    writer.mark(&Mark { time_ns: 4_000, kind: MarkKind::StepEnd(9) }).unwrap();
    writer.end_device(frames("before")).unwrap();
    writer.finish().unwrap();
    let recording = load_from(&file[..], HELD_BYTES_MAX, &mut |_| {}).unwrap();
    assert_eq!(recording.events(), 1);
    let blocks = &recording.devices[0].final_segments[0].blocks;
    assert_eq!((blocks.len(), blocks[0].size, blocks[1].size), (3, 512, 512));
    let stack = &recording.stacks[blocks[0].stack.0 as usize - 1];
    assert_eq!(&*recording.frames[stack[0].0 as usize].function, "before");
    assert_eq!(blocks[1].stack, StackId::NONE);
    assert!(recording.marks.iter().any(|mark| mark.kind == MarkKind::StepEnd(9)));
}

/// Each session numbers its stacks from one. The blocks that the first session left keep its frames.
#[test]
fn stacks_of_two_sessions_are_not_mixed_up() {
    let mut file = Vec::new();
    let mut writer = SnapshotWriter::new(&mut file).unwrap();
    for (device, name) in [(0, "first"), (1, "second")] {
        writer.forget_stacks();
        writer.begin_device(DeviceIndex(device), &AllocatorSettings::default()).unwrap();
        // One block in the trace and one from before it, with stacks 1 and 2.
        writer.pass(&at(1_000, Action::Alloc, 1 << 30, 512, 2)).unwrap();
        writer.event(&at(2_000, Action::Alloc, (1 << 30) + 512, 512, 1), frames(name)).unwrap();
        writer.end_device(frames(name)).unwrap();
    }
    writer.finish().unwrap();
    let recording = load_from(&file[..], HELD_BYTES_MAX, &mut |_| {}).unwrap();
    for (device, name) in recording.devices.iter().zip(["first", "second"]) {
        let blocks: Vec<_> = device.final_segments.iter().flat_map(|segment| &segment.blocks).collect();
        assert_eq!(blocks.len(), 2);
        let stacks = blocks.iter().map(|block| block.stack).chain(device.events.iter().map(|event| event.stack));
        for stack in stacks {
            let frame = recording.stacks[stack.0 as usize - 1][0];
            assert_eq!(&*recording.frames[frame.0 as usize].function, name);
        }
    }
}

#[test]
fn calls_without_meaning_are_refused() {
    let settings = AllocatorSettings::default();
    let mut writer = SnapshotWriter::new(Vec::new()).unwrap();
    let refused = |result: Result<(), WriteError>| assert!(matches!(result, Err(WriteError::Order(_))), "{result:?}");
    refused(writer.event(&at(0, Action::Alloc, 1, 1, 0), frames("f")));
    refused(writer.mark(&Mark { time_ns: 0, kind: MarkKind::StepEnd(1) }));
    refused(writer.end_device(frames("f")));
    writer.begin_device(DeviceIndex(2), &settings).unwrap();
    refused(writer.begin_device(DeviceIndex(3), &settings));
    refused(writer.finish());
    writer.end_device(frames("f")).unwrap();
    refused(writer.begin_device(DeviceIndex(2), &settings));
    writer.finish().unwrap();
    let state = Keyframe {
        device: DeviceIndex(0),
        at_event: 0,
        time_ns: 0,
        reason: KeyframeReason::Periodic,
        segments: Vec::new(),
        loose: Vec::new(),
    };
    refused(writer.restore(&state));
}
