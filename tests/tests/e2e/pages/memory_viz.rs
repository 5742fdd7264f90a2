//! The snapshot that is written, read back by a small reader of pickles (the opcodes of PyTorch's viewer, nothing
//! else): its content equals the input, and no other opcodes are used.

use std::collections::BTreeMap;

use super::fixture::exported::SEGMENT;
use super::fixture::{MIB, START_NS};
use super::{Failure, Screen, ended};

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
    Dict(BTreeMap<String, Value>),
}

impl Value {
    fn key(&self, key: &str) -> &Value {
        let Self::Dict(entries) = self else { panic!("{self:?} is no dictionary") };
        entries.get(key).unwrap_or_else(|| panic!("no {key} in {entries:?}"))
    }

    fn list(&self) -> &[Value] {
        let Self::List(items) = self else { panic!("{self:?} is no list") };
        items
    }

    fn int(&self) -> i128 {
        let Self::Int(value) = self else { panic!("{self:?} is no integer") };
        *value
    }

    fn text(&self) -> &str {
        let Self::Text(text) = self else { panic!("{self:?} is no text") };
        text
    }
}

/// Reads a pickle like MemoryViz.js.
fn unpickle(bytes: &[u8]) -> Value {
    let mut input = bytes;
    let mut take = |n: usize| {
        let (head, tail) = input.split_at(n);
        input = tail;
        head.to_vec()
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
    let (mut stack, mut marks, mut memo): (Vec<Value>, Vec<usize>, BTreeMap<u64, Value>) = Default::default();
    assert_eq!(take(2), b"\x80\x02");
    loop {
        match take(1)[0] {
            b'.' => break,
            b'(' => marks.push(stack.len()),
            b']' => stack.push(Value::List(Vec::new())),
            b'}' => stack.push(Value::Dict(BTreeMap::new())),
            b'e' => {
                let items = stack.split_off(marks.pop().unwrap());
                let Some(Value::List(list)) = stack.last_mut() else { panic!("APPENDS without a list") };
                list.extend(items);
            }
            b'u' => {
                let items = stack.split_off(marks.pop().unwrap());
                let Some(Value::Dict(dict)) = stack.last_mut() else { panic!("SETITEMS without a dictionary") };
                dict.extend(items.chunks(2).map(|pair| (pair[0].text().to_owned(), pair[1].clone())));
            }
            b'K' => stack.push(Value::Int(take(1)[0].into())),
            b'M' => stack.push(Value::Int(number(&take(2)).into())),
            b'J' => stack.push(Value::Int((number(&take(4)) as u32 as i32).into())),
            0x8a => {
                let n = usize::from(take(1)[0]);
                let bytes = take(n);
                let negative = bytes[n - 1] >= 128;
                let value = bytes.iter().rev().fold(0_i128, |sum, &byte| sum << 8 | i128::from(byte));
                stack.push(Value::Int(if negative { value - (1 << (8 * n)) } else { value }));
            }
            b'G' => stack.push(Value::Float(f64::from_be_bytes(take(8).try_into().unwrap()))),
            0x88 => stack.push(Value::Bool(true)),
            0x89 => stack.push(Value::Bool(false)),
            b'X' => {
                let n = number(&take(4)) as usize;
                stack.push(Value::Text(String::from_utf8(take(n)).unwrap()));
            }
            b'q' => drop(memo.insert(take(1)[0].into(), stack.last().unwrap().clone())),
            b'r' => drop(memo.insert(number(&take(4)), stack.last().unwrap().clone())),
            b'h' => stack.push(memo[&u64::from(take(1)[0])].clone()),
            b'j' => stack.push(memo[&number(&take(4))].clone()),
            0x86 => {
                let pair = stack.split_off(stack.len() - 2);
                stack.push(Value::List(pair));
            }
            other => panic!("opcode {other:#x} is not one that the viewer reads"),
        }
    }
    assert!(stack.len() == 1 && marks.is_empty() && input.is_empty());
    stack.pop().unwrap()
}

/// Exports a part of a job.
fn export(job: &str, slice: &str) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.pickle");
    let line = format!("export --quiet --job {job} --rank 3 --format memory-viz {slice} -f {}", file.display());
    let (_, result) = ended(&line, Screen { columns: None, unicode: true });
    result.map(|()| unpickle(&std::fs::read(file).unwrap()))
}

fn snapshot(slice: &str) -> Value {
    export("latest", slice).unwrap()
}

#[test]
fn what_came_in_is_in_the_snapshot() {
    let snapshot = snapshot("");
    let traces = snapshot.key("device_traces").list();
    assert_eq!(traces.len(), 2);
    assert!(traces[0].list().is_empty());
    let trace = traces[1].list();
    let actions: Vec<&str> = trace.iter().map(|entry| entry.key("action").text()).collect();
    let expected = ["segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "oom", "alloc"];
    assert_eq!(actions, expected);
    assert_eq!(trace[1].key("addr").int(), SEGMENT.into());
    assert_eq!(trace[1].key("size").int(), (3 * MIB).into());
    assert_eq!(trace[1].key("time_us").int(), i128::from(START_NS / 1000) + 1);
    assert_eq!(trace[5].key("device_free").int(), (77 * MIB).into());
    let frames = trace[1].key("frames").list();
    assert_eq!(frames.len(), 4);
    assert_eq!(frames[1].key("name").text(), "remember_features");
    assert_eq!(frames[1].key("filename").text(), "/home/me/scenarios.py");
    assert_eq!(frames[1].key("line").int(), 57);
    assert_eq!(trace[2].key("frames"), trace[1].key("frames"));
    assert!(trace[3].key("frames").list().is_empty());
}

#[test]
fn the_segments_are_the_state_at_the_end() {
    let snapshot = snapshot("");
    let segments = snapshot.key("segments").list();
    assert_eq!(segments.len(), 1);
    let segment = &segments[0];
    let int = |key: &str| segment.key(key).int() as u64;
    assert_eq!((int("device"), int("address"), int("total_size")), (1, SEGMENT, 20 * MIB));
    assert_eq!(int("requested_size"), MIB + MIB / 2 + 2 * MIB - 100);
    assert_eq!(int("allocated_size"), MIB + MIB / 2 + 2 * MIB);
    assert_eq!(segment.key("segment_type").text(), "large");
    assert_eq!(segment.key("is_expandable"), &Value::Bool(false));
    let blocks = segment.key("blocks").list();
    let states: Vec<(&str, u64)> =
        blocks.iter().map(|block| (block.key("state").text(), block.key("size").int() as u64)).collect();
    let expected = [
        ("active_allocated", MIB + MIB / 2),
        ("inactive", MIB + MIB / 2),
        ("active_allocated", 2 * MIB),
        ("inactive", 15 * MIB),
    ];
    assert_eq!(states, expected);
    assert_eq!(blocks[0].key("frames").list().len(), 4);
    assert!(blocks[1].key("frames").list().is_empty());
}

#[test]
fn settings_and_annotations_have_pytorchs_names() {
    let snapshot = snapshot("");
    let settings = snapshot.key("allocator_settings");
    assert_eq!(settings.key("max_split_size").int(), -1);
    assert_eq!(settings.key("garbage_collection_threshold"), &Value::Float(0.0));
    assert_eq!(settings.key("roundup_power2_divisions").key("32768").int(), 0);
    let annotations: Vec<(&str, &str)> = snapshot
        .key("external_annotations")
        .list()
        .iter()
        .map(|annotation| (annotation.key("stage").text(), annotation.key("name").text()))
        .collect();
    let expected = [("START", "epoch#0"), ("END", "epoch#0"), ("START", "empty_cache"), ("END", "empty_cache")];
    assert_eq!(annotations, expected);
}

#[test]
fn a_slice_ends_in_the_state_of_its_end() {
    let snapshot = snapshot("--since 2026-11-20T09:52:00.000002Z --until 2026-11-20T09:52:00.0000025Z");
    let trace = snapshot.key("device_traces").list()[1].list();
    assert_eq!(trace.len(), 1);
    assert_eq!(trace[0].key("addr").int(), i128::from(SEGMENT + 3 * MIB));
    // Both blocks are live then, although one was allocated before the slice.
    assert_eq!(snapshot.key("segments").list()[0].key("allocated_size").int(), (5 * MIB).into());
    assert!(snapshot.key("external_annotations").list().is_empty());
}

#[test]
fn an_epoch_is_a_slice_too() {
    let snapshot = snapshot("--epoch 0");
    // The allocation at 5 us is after the epoch's end at 4.5 us.
    assert_eq!(snapshot.key("device_traces").list()[1].list().len(), 6);
}

#[test]
fn parts_that_no_daemon_should_send_are_an_error() {
    for job in ["chunk_before_its_rank", "no_chunk", "device_256"] {
        let failure = export(job, "").unwrap_err();
        assert_eq!(failure.code, 3, "{job}: {failure}");
        assert!(failure.words.contains("cannot be exported"), "{job}: {failure}");
    }
}

#[test]
fn a_block_in_no_segment_gets_one() {
    let snapshot = export("block_in_no_segment", "").unwrap();
    let first = &snapshot.key("segments").list()[0];
    assert_eq!((first.key("address").int(), first.key("total_size").int()), (0x1000, 512));
    assert_eq!(first.key("blocks").list().len(), 1);
}
