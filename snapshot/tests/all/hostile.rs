//! Tests of files that are not snapshots, are damaged, or are malicious. Each gives an error that names the problem,
//! in bounded memory.

use crate::pickle;

use std::io::{Read, Write};

use memctl_snapshot::{HELD_BYTES_MAX, Recording, SnapshotFault, load, load_from};
use pickle::*;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Result<Recording, SnapshotFault> {
    load_from(bytes, HELD_BYTES_MAX, &mut |_| {})
}

fn refused(bytes: &[u8]) -> String {
    read(bytes).unwrap_err().to_string()
}

/// A pickle of protocol 4 with these opcodes.
fn pickle(parts: &[&[u8]]) -> Vec<u8> {
    [&[0x80, 4][..], &parts.concat(), b"."].concat()
}

fn small(style: Style) -> Vec<u8> {
    let pool = Py::Tuple(vec![Py::Int(0), Py::Int(1)]);
    let entry = with(event("alloc", 4096, 512, 1_795_168_323_411_199), "pool_id", pool);
    let entry = with(entry, "frames", Py::List(vec![frame("f", 1)]));
    let segments = vec![segment(0, 4096, vec![block(4096, 512, "active_allocated")], 512)];
    let whole = snapshot(vec![entry, event("oom", 1, 2, 3)], vec![annotation("step#0", "END", 9)]);
    dumps(&with(whole, "segments", Py::List(segments)), style)
}

#[test]
fn every_truncation_is_an_error() {
    for style in [Style::Python4, Style::Python2, Style::OnePiece, Style::Text] {
        let whole = small(style);
        assert_eq!(read(&whole).unwrap().events(), 2);
        for length in 0..whole.len() {
            let fault = read(&whole[..length]).unwrap_err();
            match fault {
                SnapshotFault::Truncated { at, .. } => assert_eq!(at, length as u64),
                SnapshotFault::NotAPickle { .. } => assert!(length < 3, "{style:?} cut at {length}"),
                other => panic!("{style:?} cut at {length}: {other}"),
            }
        }
    }
}

#[test]
fn truncated_archives_are_errors() {
    let whole = small(Style::Python4);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&whole).unwrap();
    // The positions where eight wrong bytes make the compressed data invalid instead of changing its content: gzip's
    // codes, zstd's block header.
    let gzip = (gzip.finish().unwrap(), "corrupt gzip", 40);
    let zstd = (zstd::encode_all(&whole[..], 3).unwrap(), "corrupt zstd", 5);
    for (packed, named, at) in [gzip, zstd] {
        // The last bytes are checksums behind the pickle's end, which are not read.
        for length in 0..packed.len() - 12 {
            assert!(read(&packed[..length]).is_err(), "cut at {length}");
        }
        let mut broken = packed;
        broken[at..at + 8].fill(0xff);
        let message = refused(&broken);
        assert!(message.contains(named), "{message}");
    }
}

#[test]
fn every_flipped_byte_is_survived() {
    for style in [Style::Python4, Style::Text] {
        let whole = small(style);
        for at in 0..whole.len() {
            for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
                let mut flipped = whole.clone();
                flipped[at] ^= flip;
                // The result is either a snapshot or an error. Reading must end, and a snapshot must not contain more
                // than the original.
                if let Ok(recording) = read(&flipped) {
                    assert!(recording.events() <= 2);
                }
            }
        }
    }
}

#[test]
fn code_is_refused_by_name() {
    let global = pickle(&[b"cos\nsystem\n\x8c\x02ls\x85R"]);
    assert!(refused(&global).contains("os.system"), "{}", refused(&global));
    let stack_global = pickle(&[b"\x8c\x05posix\x94\x8c\x06system\x94\x93\x8c\x02ls\x85R"]);
    assert!(refused(&stack_global).contains("posix.system"), "{}", refused(&stack_global));
    let instance = b"(S'ls'\nios\nsystem\n.";
    assert!(refused(instance).contains("os.system"));
    // The code is inside a snapshot, under a key that is not read.
    let hidden = with(snapshot(vec![], vec![]), "odd", Py::Raw(b"cbuiltins\neval\n".to_vec()));
    assert!(refused(&dumps(&hidden, Style::Python4)).contains("builtins.eval"));
    for opcode in
        [&b"R"[..], b"b", b"o", b"\x81", b"\x92", b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00", b"Q", b"P0\n"]
    {
        let fault = read(&pickle(&[b"]]", opcode])).unwrap_err();
        assert!(matches!(fault, SnapshotFault::ContainsCode { .. }), "{fault}");
    }
}

#[test]
fn declared_lengths_are_not_believed() {
    let lengths: [&[u8]; 9] = [
        b"X\xff\xff\xff\xff",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"B\xff\xff\xff\xff",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xff",
        b"T\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",
        b"\x8a\xff",
    ];
    for length in lengths {
        let fault = read(&pickle(&[length])).unwrap_err();
        assert!(matches!(fault, SnapshotFault::Truncated { .. }), "{length:?}: {fault}");
    }
    assert!(refused(&pickle(&[b"\x8b\xff\xff\xff\xff"])).contains("a number of -1 bytes"));
    // A frame's length is only a hint that readers may ignore.
    let framed = [&b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff"[..], &small(Style::Python4)[2..]].concat();
    assert_eq!(read(&framed).unwrap().events(), 2);
}

#[test]
fn the_memo_is_checked() {
    for get in [&b"h\x00"[..], b"]\x94h\x01", b"j\xff\xff\xff\xff", b"g99999999999999999999\n", b"g-1\n", b"gx\n"] {
        assert!(matches!(read(&pickle(&[get])).unwrap_err(), SnapshotFault::Malformed { .. }), "{get:?}");
    }
    for put in [&b"]r\xff\xff\xff\xff"[..], b"]p18446744073709551615\n", b"\x94", b"q\x00"] {
        assert!(matches!(read(&pickle(&[put])).unwrap_err(), SnapshotFault::Malformed { .. }), "{put:?}");
    }
}

#[test]
fn opcodes_without_their_values_are_refused() {
    for opcodes in [
        &b""[..],
        b"a",
        b"s",
        b"e",
        b"u",
        b"t",
        b"(e",
        b"(u",
        b"]K\x01(s",
        b"(a",
        b"}(K\x01u",
        b"\x86",
        b"K\x01\x87",
        b"0",
        b"2",
        b"1",
        b"d",
        b"\x90",
    ] {
        assert!(matches!(read(&pickle(&[opcodes])).unwrap_err(), SnapshotFault::Malformed { .. }), "{opcodes:?}");
    }
    assert!(refused(&pickle(&[b"\xf0"])).contains("0xf0"));
    assert!(refused(&pickle(&[b"\x80\x09"])).contains("protocol 9"));
    assert!(matches!(read(&pickle(&[b"\x97"])).unwrap_err(), SnapshotFault::Unsupported { .. }));
}

#[test]
fn depth_is_bounded() {
    let repeated = |opcodes: &[u8]| pickle(&[&opcodes.repeat(1_000_000)]);
    for opcodes in [&b"("[..], b"]", b"}", b"](", b"}(K\x01", b"]\x94"] {
        assert!(matches!(read(&repeated(opcodes)).unwrap_err(), SnapshotFault::TooDeep { .. }), "{opcodes:?}");
    }
    assert!(matches!(read(&pickle(&[&b"N".repeat(2_000_000)])).unwrap_err(), SnapshotFault::TooDeep { .. }));
    // A million nested tuples keep nothing open.
    assert!(refused(&pickle(&[b"N", &b"\x85".repeat(1_000_000)])).contains("another object"));
}

#[test]
fn thousands_of_dicts_that_no_list_takes_are_refused() {
    let frames = dumps(&frame("f", 1), Style::Python4);
    let dicts = frames[2..frames.len() - 1].repeat(5000);
    let fault = read(&pickle(&[b"](", &dicts, b"t"])).unwrap_err();
    assert!(matches!(fault, SnapshotFault::Unsupported { .. }), "{fault}");
    assert!(refused(&pickle(&[b"](", &dicts, b"e"])).contains("a list"));
}

#[test]
fn other_files_are_named() {
    let cases: [(&[u8], &str); 12] = [
        (b"", "an empty file"),
        (b"{\"rank\": 0}", "JSON"),
        (b"  [1, 2]", "JSON"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"PK\x03\x04rest", "torch.save"),
        (b"hello, world", "text"),
        (b"\x7fELF\x02\x01", "ELF"),
        (b"\x80\x2a", "protocol"),
        (b"BZh91AY", "bunzip2"),
        (b"\xfd7zXZ\x00", "unxz"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\x00\x01\x02\x03", "binary"),
    ];
    for (bytes, named) in cases {
        let fault = read(bytes).unwrap_err();
        assert!(matches!(fault, SnapshotFault::NotAPickle { .. }) && fault.to_string().contains(named), "{fault}");
    }
    let twice = zstd::encode_all(&zstd::encode_all(&small(Style::Python4)[..], 1).unwrap()[..], 1).unwrap();
    assert!(refused(&twice).contains("compressed twice"));
}

#[test]
fn other_pickles_are_named() {
    let cases = [
        (
            Py::List(vec![segment(0, 4096, vec![], 512)]),
            "a list of 1 segments, as torch.cuda.memory_snapshot() gives it",
        ),
        (dict([("segments", Py::List(vec![])), ("epoch", Py::Int(1))]), "a dict with the keys segments, epoch"),
        (Py::List(vec![event("alloc", 1, 1, 1)]), "a bare list of 1 trace entries"),
        (Py::Dict(vec![]), "an empty dict"),
        (Py::List(vec![]), "an empty list"),
        (str("x"), "a string"),
        (Py::Int(1), "a number"),
        (Py::None, "None"),
        (Py::Tuple(vec![]), "another object"),
        (with(snapshot(vec![], vec![]), "device_traces", Py::None), "a dict with the keys"),
    ];
    for (value, named) in cases {
        let message = refused(&dumps(&value, Style::Python4));
        assert!(message.contains(named) && message.contains("_record_memory_history()"), "{message}");
    }
}

#[test]
fn more_devices_than_can_be_numbered_are_refused() {
    let traces = |n| Py::List(vec![Py::List(vec![event("alloc", 1, 1, 1)]); n]);
    let whole = |n| dumps(&with(snapshot(vec![], vec![]), "device_traces", traces(n)), Style::Python4);
    assert_eq!(read(&whole(64)).unwrap().devices.len(), 64);
    assert!(refused(&whole(65)).contains("more than 64 devices"));
    assert!(refused(&whole(300)).contains("more than 64 devices"));
}

#[test]
fn errors_name_the_file() {
    let missing = std::path::Path::new("/nonexistent/rank0.pickle");
    let message = load(missing, &mut |_| {}).unwrap_err().to_string();
    assert!(message.starts_with("/nonexistent/rank0.pickle: cannot be read"), "{message}");
}

/// A pickle without an end: a snapshot whose trace repeats one event forever.
struct Endless {
    head: Vec<u8>,
    event: Vec<u8>,
    sent: usize,
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        for byte in buf.iter_mut() {
            *byte = match self.sent.checked_sub(self.head.len()) {
                None => self.head[self.sent],
                Some(at) => self.event[at % self.event.len()],
            };
            self.sent += 1;
        }
        Ok(buf.len())
    }
}

#[test]
fn a_snapshot_without_an_end_stops_at_the_limit() {
    let limit = 8 << 20;
    // The opcodes of a list's item that can be repeated: without the header and the STOP, with an APPEND.
    let item = |value: &Py| {
        let pickle = dumps(value, Style::Python4);
        [&pickle[2..pickle.len() - 1], b"a"].concat()
    };
    let repeated = [item(&event("alloc", 4096, 512, 1)), item(&block(1, 2, "inactive")), b"N\x940".to_vec()];
    for event in repeated {
        let head = b"\x80\x04}\x8c\x0ddevice_traces]]".to_vec();
        let fault = load_from(Endless { head, event, sent: 0 }, limit, &mut |_| {}).unwrap_err();
        assert!(matches!(fault, SnapshotFault::TooLarge { limit_bytes, .. } if limit_bytes == limit), "{fault}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&pickle(&[&bytes]));
    }

    #[test]
    fn no_opcodes_make_it_panic(picks in proptest::collection::vec(0..OPCODES.len(), 0..200)) {
        let bytes: Vec<u8> = picks.iter().flat_map(|&pick| OPCODES[pick].iter().copied()).collect();
        let _ = read(&pickle(&[&bytes]));
        let _ = read(&pickle(&[b"}(\x8c\x0ddevice_traces]](", &bytes]));
    }
}

/// Opcodes with valid arguments, so that random sequences are not rejected at once.
const OPCODES: &[&[u8]] = &[
    b"}",
    b"]",
    b"(",
    b"e",
    b"u",
    b"a",
    b"s",
    b"0",
    b"1",
    b"2",
    b"\x94",
    b"h\x00",
    b"h\x01",
    b"h\x03",
    b"q\x00",
    b"q\x02",
    b"t",
    b"\x85",
    b"\x86",
    b"l",
    b"d",
    b"K\x05",
    b"N",
    b"\x88",
    b")",
    b"\x8f",
    b"\x90",
    b"\x91",
    b"\x8c\x04name",
    b"\x8c\x08filename",
    b"\x8c\x06action",
    b"\x8c\x05alloc",
    b"\x8c\x04addr",
    b"\x8c\x04size",
    b"\x8c\x06frames",
    b"\x8c\x06blocks",
    b"\x8c\x05state",
    b"\x8c\x08inactive",
    b"\x8c\x07address",
    b"\x8c\x0atotal_size",
    b"\x8c\x08segments",
    b"\x8c\x0ddevice_traces",
    b"\x8c\x05stage",
    b"\x8c\x03END",
    b"}(\x8c\x04nameN\x8c\x08filenameNu",
    b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01u",
];
