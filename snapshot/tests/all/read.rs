//! Tests of reading snapshots: real files of three protocols, the schemas of torch 2.1 to 2.15, and every way in which
//! a pickler may lay out the same values.

use crate::pickle;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use memctl_model::{Action, BlockUse, DeviceIndex, Event, PoolId, SegmentKind, StackId};
use memctl_snapshot::{HELD_BYTES_MAX, Moment, Recording, load, load_from};
use pickle::*;

fn read(bytes: &[u8]) -> Recording {
    load_from(bytes, HELD_BYTES_MAX, &mut |_| {}).unwrap()
}

fn recording(value: &Py) -> Recording {
    read(&dumps(value, Style::Python4))
}

fn fixture(protocol: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/snapshots/cnn-tail-protocol{protocol}.pickle"))
}

fn events(recording: &Recording) -> Vec<Event> {
    recording.devices.iter().flat_map(|device| device.events.iter()).collect()
}

/// Everything except the digest. Stacks are written as frames, because their numbers depend on the order in the file.
fn said(recording: &Recording) -> String {
    use std::fmt::Write as _;
    let stack = |id: StackId| {
        let frames = id.0.checked_sub(1).map(|at| &recording.stacks[at as usize][..]).unwrap_or_default();
        frames.iter().map(|frame| format!("{:?}", recording.frames[frame.0 as usize])).collect::<String>()
    };
    let mut text = format!("{:?} {:?} {:?}\n", recording.marks, recording.settings, recording.remarks);
    for device in &recording.devices {
        for event in device.events.iter() {
            let bare = Event { stack: StackId::NONE, ..event };
            writeln!(text, "{:?} {bare:?} {}", device.device, stack(event.stack)).unwrap();
        }
        for segment in &device.final_segments {
            for block in &segment.blocks {
                writeln!(text, "{} {:?} {} {}", segment.addr, block.usage, block.addr, stack(block.stack)).unwrap();
            }
        }
    }
    text
}

#[test]
fn a_real_recording_says_what_python_reads_in_it() {
    let recording = load(&fixture(4), &mut |_| {}).unwrap();
    let events = events(&recording);
    let sum = |action| events.iter().filter(|e| e.action == action).map(|e| e.size).sum::<u64>();
    assert_eq!(events.len(), 700);
    assert_eq!((sum(Action::Alloc), sum(Action::FreeRequested)), (607_859_657, 709_138_337));
    let frames = |e: &Event| e.stack.0.checked_sub(1).map_or(0, |at| recording.stacks[at as usize].len());
    assert_eq!(events.iter().filter(|e| e.stack.is_some()).count(), 350);
    assert_eq!(events.iter().map(frames).sum::<usize>(), 2444);
    assert_eq!((recording.started_ns, recording.ended_ns), (1_795_168_323_411_199_000, 1_795_168_323_431_985_000));
    let segments = &recording.devices[0].final_segments;
    assert_eq!(segments.iter().map(|s| s.size).sum::<u64>(), 220_200_960);
    let blocks: Vec<_> = segments.iter().flat_map(|s| &s.blocks).collect();
    assert_eq!(blocks.len(), 16);
    let live = blocks.iter().filter(|b| b.usage == BlockUse::Allocated).map(|b| b.size).sum::<u64>();
    assert_eq!(live, 71_353_856);
    // 40 annotations, and the begins of the epoch and the step that were under way at the start.
    assert_eq!(recording.marks.len(), 42);
    assert_eq!(recording.framework.as_deref(), Some("torch >= 2.10"));
    assert_eq!(recording.remarks, Default::default());
}

#[test]
fn the_protocol_does_not_matter() {
    let four = load(&fixture(4), &mut |_| {}).unwrap();
    for protocol in [2, 5] {
        let other = load(&fixture(protocol), &mut |_| {}).unwrap();
        assert_eq!(said(&other), said(&four));
        assert_ne!(other.digest, four.digest);
    }
}

#[test]
fn packing_does_not_matter() {
    let plain = std::fs::read(fixture(5)).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let reference = read(&plain);
    for packed in [gzip.finish().unwrap(), zstd::encode_all(&plain[..], 3).unwrap()] {
        let recording = read(&packed);
        assert_eq!(said(&recording), said(&reference));
        assert_eq!(recording.digest, reference.digest);
    }
}

#[test]
fn progress_ends_at_the_end_of_the_file() {
    let bytes = std::fs::metadata(fixture(4)).unwrap().len();
    let mut reports = Vec::new();
    load(&fixture(4), &mut |progress| reports.push(progress)).unwrap();
    let last = reports.last().unwrap();
    assert_eq!((last.bytes_read, last.bytes_total, last.events), (bytes, Some(bytes), 700));
    assert!(reports.is_sorted_by_key(|progress| (progress.bytes_read, progress.events)));
}

/// Events with shared stacks; one stack contains a frame twice.
fn with_stacks(n: i64) -> Vec<Py> {
    let inner = Rc::new(frame("recurse", 7));
    let stack = Rc::new(Py::List(vec![
        Py::Shared(inner.clone()),
        Py::Shared(inner.clone()),
        Py::Shared(Rc::new(frame("main", 1))),
    ]));
    let entry = |i: i64| {
        let action = ["alloc", "free_requested", "free_completed"][i as usize % 3];
        let frames = match i % 3 {
            0 => Py::List(vec![Py::Shared(inner.clone())]),
            _ => Py::Shared(stack.clone()),
        };
        with(event(action, 4096 + i / 3 * 512, 512 + i / 3, 1000 + i), "frames", frames)
    };
    (0..n).map(entry).collect()
}

#[test]
fn the_layout_does_not_matter() {
    let blocks = vec![block(4096, 512, "active_allocated"), block(4608, 512, "active_pending_free")];
    let annotations = vec![annotation("epoch#0", "START", 1000), annotation("epoch#0", "END", 30_000)];
    let whole =
        with(snapshot(with_stacks(9000), annotations), "segments", Py::List(vec![segment(0, 4096, blocks, 1024)]));
    let reference = recording(&whole);
    assert_eq!(reference.events(), 9000);
    assert_eq!((reference.stacks.len(), reference.frames.len()), (3, 3), "two of the events, one of the blocks");
    for style in [Style::Python2, Style::OnePiece, Style::Text] {
        assert_eq!(said(&read(&dumps(&whole, style))), said(&reference), "{style:?}");
    }
    let Py::Dict(mut items) = whole else { unreachable!() };
    items.reverse();
    assert_eq!(said(&recording(&Py::Dict(items))), said(&reference));
}

#[test]
fn unknown_keys_are_passed_over_wherever_they_are() {
    let odd = || {
        Py::List(vec![
            Py::Dict(vec![(Py::Int(1), Py::Tuple(vec![Py::None, Py::Float(0.5), str("x")]))]),
            Py::List(vec![Py::List(vec![]), Py::Bool(true), Py::Int(i64::MIN)]),
            // A list that contains itself, a set, bytes, and a number of 300 bits.
            Py::Raw(
                [&b"]r\x00\x10\x00\x00j\x00\x10\x00\x00a\x8f(K\x01\x90C\x02ab0\x8a\x26"[..], &[1; 38], b"0\x94"]
                    .concat(),
            ),
        ])
    };
    let plain = snapshot(with_stacks(30), vec![]);
    let known = with(event("alloc", 1 << 40, 5, 2000), "stream", Py::Int(7));
    let odd_event = with(with(known.clone(), "later", odd()), "forward_frames", Py::List(vec![frame("f", 2)]));
    let reference = recording(&with(plain.clone(), "device_traces", Py::List(vec![Py::List(vec![known])])));
    let host = Py::List(vec![Py::List(with_stacks(30))]);
    // The padding makes the file long enough for the memo index of the odd value.
    let mut odd_top = with(Py::Dict(vec![(str("padding"), str(&"x".repeat(5000)))]), "host_traces", host);
    odd_top = with(odd_top, "odd", odd());
    odd_top = with(odd_top, "segments", Py::List(vec![]));
    odd_top = with(odd_top, "device_traces", Py::List(vec![Py::List(vec![odd_event])]));
    let read = recording(&odd_top);
    assert_eq!(events(&read), events(&reference));
    assert_eq!(read.events(), 1);
}

#[test]
fn torch_2_1_has_neither_times_nor_settings() {
    let entries = (0..3).map(|i| without(event("alloc", 512 * (i + 1), 512, 0), "time_us")).collect();
    let recording = recording(&dict([
        ("segments", Py::List(vec![])),
        ("device_traces", Py::List(vec![Py::List(entries), Py::List(vec![])])),
    ]));
    let times: Vec<_> = events(&recording).iter().map(|e| e.time_ns).collect();
    assert_eq!(times, [1000, 2000, 3000]);
    assert_eq!(recording.remarks.events_without_time, 3);
    assert_eq!(recording.framework.as_deref(), Some("torch >= 2.1"));
    assert_eq!(recording.settings, Default::default());
}

#[test]
fn pools_are_as_stated_or_those_of_the_segment() {
    let pool = |second| Py::Tuple(vec![Py::Int(0), Py::Int(second)]);
    let private = PoolId { first: 0, second: 3 };
    let graph_segment = with(segment(0, 4096, vec![], 2048), "segment_pool_id", pool(3));
    let entries = vec![
        event("alloc", 4096, 512, 1),
        event("segment_free", 4096, 2048, 2),
        event("segment_alloc", 4096, 2048, 3),
        event("alloc", 4096, 512, 4),
        event("alloc", 65536, 512, 5),
    ];
    let old = with(snapshot(entries.clone(), vec![]), "segments", Py::List(vec![graph_segment.clone()]));
    let pools: Vec<_> = events(&recording(&old)).iter().map(|e| e.pool).collect();
    let none = PoolId::DEFAULT;
    assert_eq!(pools, [none, none, private, private, none], "torch 2.4: derived");

    let stated = entries.into_iter().zip([3, 3, 3, 0, 1]).map(|(e, id)| with(e, "pool_id", pool(id))).collect();
    let new = with(snapshot(stated, vec![]), "segments", Py::List(vec![graph_segment]));
    let pools: Vec<_> = events(&recording(&new)).iter().map(|e| e.pool.second).collect();
    assert_eq!(pools, [3, 3, 3, 0, 1], "torch 2.12: stated");
    assert_eq!(recording(&new).framework.as_deref(), Some("torch >= 2.12"));
}

#[test]
fn segments_go_to_their_devices_in_address_order() {
    let blocks = vec![
        block(8192, 512, "active_allocated"),
        block(8704, 512, "active_pending_free"),
        block(9216, 1024, "inactive"),
    ];
    let expandable =
        with(with(segment(2, 8192, blocks, 2048), "is_expandable", Py::Bool(true)), "segment_type", str("large"));
    let old_block = without(block(0, 2048, "active_awaiting_free"), "address");
    let segments = vec![expandable, segment(2, 4096, vec![old_block], 2048), segment(0, 4096, vec![], 512)];
    let recording = recording(&with(snapshot(vec![], vec![]), "segments", Py::List(segments)));
    assert_eq!(recording.devices.iter().map(|d| d.device).collect::<Vec<_>>(), [DeviceIndex(0), DeviceIndex(2)]);
    let [low, high] = &recording.devices[1].final_segments[..] else { panic!("two segments") };
    assert_eq!((low.addr, low.kind, low.blocks[0].addr), (4096, SegmentKind::Small, 4096));
    assert_eq!(low.blocks[0].usage, BlockUse::PendingFree);
    assert_eq!((high.addr, high.kind, high.expandable), (8192, SegmentKind::Large, true));
    let usages: Vec<_> = high.blocks.iter().map(|b| (b.usage, b.requested, b.stack.is_some())).collect();
    assert_eq!(
        usages,
        [(BlockUse::Allocated, 500, true), (BlockUse::PendingFree, 500, true), (BlockUse::Inactive, 0, false)]
    );
    assert_eq!(recording.remarks.irregular_segments, 1, "the one without blocks");
    assert_eq!((recording.started_ns, recording.ended_ns, recording.marks.len()), (0, 0, 0));
}

#[test]
fn several_devices_merge_by_time() {
    let traces = vec![
        Py::List(vec![event("alloc", 1, 1, 10), event("alloc", 2, 1, 30)]),
        Py::List(vec![]),
        Py::List(vec![event("alloc", 3, 1, 10), event("alloc", 4, 1, 20)]),
    ];
    let annotations = vec![annotation("epoch#1", "START", 10), annotation("epoch#1", "END", 20)];
    let recording = recording(&with(snapshot(vec![], annotations), "device_traces", Py::List(traces)));
    let order: Vec<_> = recording
        .merged()
        .map(|moment| match moment {
            Moment::Event(device, event) => format!("{}:{}", device.0, event.addr),
            Moment::Mark(mark) => format!("{:?}", mark.kind),
        })
        .collect();
    assert_eq!(order, ["EpochBegin(1)", "0:1", "2:3", "2:4", "EpochEnd(1)", "0:2"]);
}

#[test]
fn what_cannot_be_used_is_counted() {
    let entries = vec![
        event("oom", 77, 4096, 1),
        event("teleport", 1, 1, 2),
        without(event("alloc", 1, 1, 3), "addr"),
        with(event("alloc", 1, 1, 3), "size", str("big")),
        with(event("alloc", 1, 1, 3), "addr", Py::Int(-1)),
        with(
            with(event("alloc", 1, 1, 9), "user_metadata", str("fwd")),
            "compile_context",
            str("Torch-Compiled Region"),
        ),
        with(with(event("snapshot", 0, 1, 8), "user_metadata", Py::Int(7)), "compile_context", str("N/A")),
    ];
    let recording = recording(&snapshot(entries, vec![with(annotation("x", "START", 1), "stage", str("MIDDLE"))]));
    let kept: Vec<_> = events(&recording).iter().map(|e| (e.action, e.addr, e.time_ns)).collect();
    assert_eq!(kept, [(Action::Oom, 77, 1000), (Action::Alloc, 1, 9000), (Action::Snapshot, 0, 9000)]);
    let remarks = recording.remarks;
    assert_eq!((remarks.unknown_actions, remarks.malformed_entries), (1, 4));
    assert_eq!((remarks.events_with_metadata, remarks.times_put_right), (1, 1));
}

#[test]
fn settings_are_read() {
    let settings = dict([
        ("PYTORCH_CUDA_ALLOC_CONF", str("expandable_segments:True,large_segment_size_mb:64")),
        ("max_split_size", Py::Int(200 << 20)),
        ("garbage_collection_threshold", Py::Float(0.8)),
        ("expandable_segments", Py::Bool(true)),
        ("roundup_power2_divisions", dict([("1", Py::Int(4)), ("256", Py::Int(2)), ("32768", Py::Int(8))])),
        ("graph_capture_record_stream_reuse", Py::Bool(false)),
    ]);
    let read = recording(&with(snapshot(vec![], vec![]), "allocator_settings", settings)).settings;
    assert_eq!((read.max_split_size, read.large_segment_size), (Some(200 << 20), 64 << 20));
    assert_eq!((read.garbage_collection_permille, read.expandable_segments), (800, true));
    let divisions = read.roundup_power2_divisions;
    assert_eq!((divisions[0], divisions[8], divisions[15], divisions.iter().sum::<u32>()), (4, 2, 8, 14));
    let unlimited = dict([("max_split_size", Py::Int(-1))]);
    let read = recording(&with(snapshot(vec![], vec![]), "allocator_settings", unlimited)).settings;
    assert_eq!(read.max_split_size, None);
}
