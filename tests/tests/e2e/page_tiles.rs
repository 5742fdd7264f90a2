//! Tiles over HTTP: columns compared with the stored events, browser caching, and expired data.

use std::io::{Read as _, Write as _};
use std::path::Path;

use memctl_analysis::{Birth, BlockMap};
use memctl_daemon::store::{Selection, SqliteStore, Store as _, Which};
use memctl_proto::chunk::Decoder;
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::ItemKind;
use memctl_tests::https::{Answer, Port};
use serde_json::Value;

use super::page::{JOB, ask, get, header, import, served};

const SLOTS: u64 = 512;

/// A tile: its head, and its columns by name.
struct Tile {
    head: Value,
    columns: Vec<(String, Vec<f64>)>,
}

impl Tile {
    fn number(&self, name: &str) -> u64 {
        self.head[name].as_u64().unwrap_or_else(|| panic!("{name}: {}", self.head))
    }

    fn column(&self, name: &str) -> &[f64] {
        &self.columns.iter().find(|(known, _)| known == name).unwrap().1
    }
}

/// A tile's bytes, unchanged.
fn tile(port: &Port, path: &str) -> Tile {
    let mut pipe = port.connect();
    write!(pipe, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", port.address).unwrap();
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).unwrap();
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&bytes));
    let body = &bytes[body..];
    let end = body.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    assert_eq!(end % 8, 0);
    let head: Value = serde_json::from_slice(&body[..end]).unwrap();
    let names: Vec<String> =
        head["columns"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    let count = head["count"].as_u64().unwrap() as usize;
    let numbers: Vec<f64> = body[end..].chunks(8).map(|eight| f64::from_le_bytes(eight.try_into().unwrap())).collect();
    assert_eq!(numbers.len(), count * names.len());
    let column = |at: usize| numbers[at * count..(at + 1) * count].to_vec();
    Tile { head, columns: names.into_iter().enumerate().map(|(at, name)| (name, column(at))).collect() }
}

/// The levels after every stored event of rank 0: time, allocated, reserved.
async fn levels(folder: &Path) -> Vec<(u64, u64, u64)> {
    let store = SqliteStore::open(&folder.join("memctl.db"), "a test").await.unwrap();
    let job = store.job(&Which::written(JOB), None).await.unwrap().unwrap();
    let session = store.sessions(job.key).await.unwrap().into_iter().find(|session| session.info.rank == 0).unwrap();
    let chunks = store.chunks(session.key, 0, Selection::default()).await.unwrap();
    let mut map = BlockMap::new(&session.info.settings);
    if let Some(row) = store.keyframe_before(session.key, 0, 0).await.unwrap() {
        let kind = ItemKind::try_from(row.kind).unwrap();
        let packed = Packed { kind, payload: row.payload, unpacked_bytes: row.unpacked_bytes };
        let Content::Keyframe(keyframe) = packed.open().unwrap() else { panic!("no keyframe") };
        map.restore(&keyframe);
    }
    let (mut decoder, mut found) = (Decoder::new().unwrap(), Vec::new());
    for chunk in chunks {
        let payloads = store.payloads(session.key, &[chunk.seq]).await.unwrap();
        let mut events = Vec::new();
        decoder.decode(&payloads[0].1, &mut events).unwrap();
        for event in events {
            map.apply(&event, Birth::default());
            let levels = map.levels();
            found.push((event.time_ns, levels.allocated_bytes, levels.reserved_bytes));
        }
    }
    store.close().await.unwrap();
    found
}

fn compare(tile: &Tile, levels: &[(u64, u64, u64)]) {
    let (level, index) = (tile.number("level"), tile.number("index"));
    let (first, count) = (tile.number("first_slot"), tile.number("count"));
    let last_ns = levels.last().unwrap().0;
    for slot in 0..SLOTS {
        let (start, end) = ((index * SLOTS + slot) << level, (index * SLOTS + slot + 1) << level);
        let from = levels.partition_point(|(time, ..)| *time < start);
        let to = levels.partition_point(|(time, ..)| *time < end);
        let held = &levels[from.saturating_sub(1)..to];
        let is_told = slot >= first && slot < first + count;
        assert_eq!(is_told, !held.is_empty() && start <= last_ns, "slot {slot} of tile {index}, level {level}");
        if !is_told {
            continue;
        }
        let at = (slot - first) as usize;
        let of = |name: &str| tile.column(name)[at] as u64;
        let allocated = || held.iter().map(|(_, allocated, _)| *allocated);
        let shown = [of("allocated_min_bytes"), of("allocated_max_bytes"), of("allocated_bytes")];
        let direct = [allocated().min().unwrap(), allocated().max().unwrap(), allocated().next_back().unwrap()];
        assert_eq!(shown, direct, "slot {slot} of tile {index}, level {level}");
        let reserved = held.iter().map(|(.., reserved)| *reserved).max().unwrap();
        assert_eq!(of("reserved_max_bytes"), reserved, "slot {slot} of tile {index}, level {level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_slot_is_what_the_stored_events_say() {
    let home = tempfile::tempdir().unwrap();
    import(JOB, &["--data-dir", home.path().to_str().unwrap()]);
    let levels = levels(home.path()).await;
    let (first_ns, last_ns) = (levels[0].0, levels[levels.len() - 1].0);
    let (daemon, port) = served(home.path(), &[]);
    let mut compared = 0;
    for level in [14, 18, 22, 26, 30, 34, 50] {
        let all: Vec<u64> = (first_ns / (SLOTS << level)..=last_ns / (SLOTS << level)).collect();
        for index in all.iter().step_by(all.len().div_ceil(12)).chain(all.last()) {
            let tile = tile(&port, &format!("/api/v1/jobs/{JOB}/tiles?rank=0&level={level}&index={index}"));
            assert_eq!((tile.head["detail"].as_str(), tile.head["is_final"].as_bool()), (Some("events"), Some(true)));
            compare(&tile, &levels);
            compared += tile.number("count");
        }
    }
    assert!(compared > 10 * SLOTS, "{compared} slots");
    assert_eq!(daemon.terminate(), 0);
}

/// The status and the `cache-control` header of a response.
fn kept(answer: &Answer) -> (u16, String) {
    (answer.status, header(answer, "cache-control").unwrap_or_default().to_owned())
}

#[test]
fn a_browser_keeps_what_never_changes_and_asks_again_for_the_rest() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    let path = format!("/api/v1/jobs/{JOB}/tiles?rank=0&level=50&index=2");
    let session = tile(&port, &path).head["session"].as_str().unwrap().to_owned();
    let by_name = get(&port, &path);
    assert_eq!(kept(&by_name), (200, "private, no-cache".into()), "another job may have this name later");
    let own = format!("{path}&session={session}");
    let answer = get(&port, &own);
    assert_eq!(kept(&answer), (200, "private, max-age=604800, immutable".into()));
    assert_eq!(header(&answer, "vary"), Some("Authorization, Cookie"), "it is one reader's");
    let tag = header(&answer, "etag").unwrap();
    let again = ask(&port, "GET", &own, &[&format!("If-None-Match: {tag}")]);
    assert_eq!((again.status, again.body.as_str(), header(&again, "etag")), (304, "", Some(tag)));
    assert_eq!(ask(&port, "GET", &own, &["If-None-Match: \"other\""]).status, 200);

    // The job is deleted and imported again, so it has other tiles.
    memctl_tests::run(memctl_tests::memctl().args(["delete", "--job", JOB, "--yes", "--daemon", &daemon.url]));
    assert_eq!(get(&port, &own).status, 404);
    assert_eq!(daemon.terminate(), 0);
}
