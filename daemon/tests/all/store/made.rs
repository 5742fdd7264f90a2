//! Builds sessions, items and appends for tests. Every payload shows which item it belongs to.

use bytes::Bytes;
use memctl_daemon::store::{
    Append, ChunkLevels, EpochEndRow, HoldersIndex, HoldersRow, ItemIndex, Latest, NewItem, Says, Store,
};
use memctl_model::{Counters, DeviceIndex, DeviceInfo, Dropped, Peaks, SessionEnd, SessionId, SessionInfo};
use memctl_proto::v1;
use memctl_proto::v1::ItemKind;
use prost::Message as _;

/// The time of all test data: 2026, in nanoseconds.
pub const NOW_NS: u64 = 1_780_000_000_000_000_000;
/// One second.
pub const SECOND_NS: u64 = 1_000_000_000;

pub fn session(id: u32, job: &str, rank: u32) -> SessionInfo {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&id.to_be_bytes());
    SessionInfo {
        rank,
        world_size: Some(4),
        host: Some("node-1".into()),
        pid: Some(7),
        framework: Some("torch 2.11.0".into()),
        devices: vec![device(0)],
        resolution_ns: 1000,
        ..SessionInfo::live(SessionId(bytes), job, NOW_NS)
    }
}

pub fn device(index: u8) -> DeviceInfo {
    DeviceInfo {
        index: DeviceIndex(index),
        uuid: Some(format!("GPU-{index}")),
        name: Some("H200".into()),
        total_bytes: Some(141 << 30),
    }
}

/// Opens a session of a job and returns its key.
pub async fn open(store: &dyn Store, id: u32, job: &str, rank: u32) -> i64 {
    store.open_session(&session(id, job, rank), NOW_NS).await.unwrap().key
}

/// An append of items, which makes the session durable up to the last one.
pub fn append(session: i64, items: Vec<NewItem>) -> Append {
    Append {
        session,
        durable_seq: items.last().map_or(0, |item| item.seq),
        items,
        gaps: Vec::new(),
        duplicates: 0,
        heard_ns: NOW_NS,
        devices: Vec::new(),
        epoch_ends: Vec::new(),
        end: None,
        dropped: Dropped::default(),
    }
}

/// Bytes that are different for every item.
pub fn payload(seq: u64, len: usize) -> Bytes {
    let mut state = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// The `seq`-th chunk of a device. It follows the previous one by 10 events and 10 µs, and has 100 bytes.
pub fn chunk(seq: u64, device: u8) -> NewItem {
    let first_ns = NOW_NS + seq * 10_000;
    NewItem {
        seq,
        kind: ItemKind::Chunk,
        payload: payload(seq, 100),
        unpacked_bytes: 0,
        index: ItemIndex {
            device: Some(device),
            first_ns,
            last_ns: first_ns + 9_000,
            first_event: (seq - 1) * 10,
            count: 10,
            first_epoch: (seq / 10) as u32,
            last_epoch: (seq / 10) as u32,
            first_step: seq,
            last_step: seq + 1,
        },
        levels: Some(ChunkLevels {
            allocated_end: seq * 512,
            reserved_end: seq * 1024,
            allocated_min: seq,
            allocated_max: seq * 600,
            reserved_max: seq * 2048,
            ooms: seq % 2,
            dropped_before: 0,
            exact: seq.is_multiple_of(3),
        }),
    }
}

/// An item that is not a chunk.
pub fn item(seq: u64, kind: ItemKind, device: Option<u8>) -> NewItem {
    let chunk = chunk(seq, 0);
    NewItem {
        kind,
        payload: payload(seq, 50),
        unpacked_bytes: 80,
        index: ItemIndex { device, count: 3, ..chunk.index },
        levels: None,
        ..chunk
    }
}

/// A keyframe of device 0 before an event.
pub fn keyframe(seq: u64, event: u64) -> NewItem {
    let mut item = item(seq, ItemKind::Keyframe, Some(0));
    item.index.first_event = event;
    item
}

pub fn end(produced: u64) -> SessionEnd {
    SessionEnd { time_ns: NOW_NS, produced, failure: Some("killed by signal 9".into()), ..SessionEnd::default() }
}

pub fn counters(base: u64) -> Counters {
    Counters {
        allocated_bytes: base,
        active_bytes: base.wrapping_add(1),
        reserved_bytes: base.wrapping_add(2),
        requested_bytes: base.wrapping_add(3),
        inactive_split_bytes: base.wrapping_add(4),
        largest_free_bytes: base.wrapping_add(5),
        allocated_blocks: base.wrapping_add(6),
        segments: base.wrapping_add(7),
    }
}

pub fn latest(base: u64) -> Latest {
    Latest {
        time_ns: base,
        epoch: base as u32,
        step: base,
        counters: counters(base),
        peaks: Peaks { allocated_bytes: base, reserved_bytes: base / 2 },
        exact: base.is_multiple_of(2),
    }
}

pub fn epoch_end(device: u8, epoch: u32, base: u64) -> EpochEndRow {
    EpochEndRow {
        session: 0,
        device,
        epoch,
        step: base,
        time_ns: NOW_NS + u64::from(epoch),
        at_event: base,
        exact: base % 2 == 1,
        counters: counters(base),
        peaks: Peaks { allocated_bytes: base, reserved_bytes: base / 3 },
        peaks_within: Peaks { allocated_bytes: base / 4, reserved_bytes: base },
        table_seq: base,
    }
}

/// An answer about holders at a given time, of a given size plus a few bytes.
pub fn holders(session: i64, asked_ns: u64, bytes: usize) -> HoldersRow {
    let answer = v1::HoldersAsked {
        function: "keep".into(),
        file: "train.py".into(),
        line: 17,
        outcome: Some(v1::holders_asked::Outcome::Failure("x".repeat(bytes))),
        ..Default::default()
    };
    let answer = answer.encode_to_vec();
    let index = HoldersIndex {
        session,
        asked_ns,
        finding: Some(u64::MAX - 1),
        site: u64::MAX,
        unasked: true,
        says: Says::Holders,
        counted_epoch: Some(u32::MAX),
        bytes: answer.len() as u64,
    };
    HoldersRow { index, answer: answer.into() }
}
