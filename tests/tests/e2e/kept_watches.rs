//! The state that the judge keeps of a long session: continuing from it gives the same result as reading everything.
//!
//! The test fills the stores; the command line opens them itself, so each command is a judge that starts from what is
//! stored.

use std::path::Path;

use memctl_daemon::ingest::prepare::{Scale, prepare};
use memctl_daemon::store::{Append, SessionKey, SqliteStore, Store as _, WatchRow};
use memctl_model::{
    Boundary, Counters, DeviceIndex, Dropped, Frame, Peaks, Sample, SessionEnd, SiteRow, SiteTable, StackId,
};
use memctl_proto::StackSender;
use memctl_proto::item::Packed;
use memctl_tests::{jobs, memctl, run_json};
use serde_json::Value;

const STEPS: u32 = 50;
const SITES: u32 = 24;
/// The growing site in a job with a leak.
const LEAK: u32 = 7;

/// A session that is filled piece by piece.
struct Filling {
    store: SqliteStore,
    key: SessionKey,
    seq: u64,
    leaks: bool,
}

impl Filling {
    async fn begin(folder: &Path, job: &str, leaks: bool) -> Self {
        let store = SqliteStore::open(&folder.join("memctl.db"), "test").await.expect("a store");
        let key = store.open_session(&jobs::session(job, 0), 1).await.expect("a session").key;
        Self { store, key, seq: 0, leaks }
    }

    /// Appends epochs, preceded by the stacks of `stacks` additional sites.
    async fn epochs(
        &mut self,
        stacks: std::ops::RangeInclusive<u32>,
        epochs: std::ops::Range<u32>,
        sender: &mut StackSender,
    ) {
        for line in stacks {
            let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
            sender.add(&[
                frame("forward", "/opt/site-packages/torch/nn/modules/linear.py", 117),
                frame(&format!("layer_{line}"), "/home/user/model.py", line),
                frame("train", "/home/user/train.py", 7),
            ]);
        }
        let mut items = vec![Packed::stacks(&sender.take().expect("new stacks"))];
        for epoch in epochs {
            let mut tables: Vec<SiteTable> = (0..STEPS).map(|step| self.table(epoch, step)).collect();
            let end = tables.last().expect("steps").clone();
            tables.push(SiteTable { boundary: Boundary::EpochEnd, ..end });
            let device_used_bytes = Some((3 << 30) + (u64::from(epoch) << 20));
            let sample = Sample { time_ns: tables[0].time_ns, device_used_bytes, ..Sample::default() };
            items.extend([Packed::site_tables(&tables), Packed::samples(&[sample])]);
        }
        self.append(items).await;
    }

    fn table(&self, epoch: u32, of_epoch: u32) -> SiteTable {
        let step = u64::from(epoch * STEPS + of_epoch);
        let row = |stack: u32| {
            let (blocks, bytes) = match stack {
                LEAK if self.leaks => (1 + step / 20, (1 + step / 20) * 4_096),
                stack if stack > 12 => (1, ((step * u64::from(stack) * 7_919) % 4_093 + 1) << 12),
                stack => (4, u64::from(stack) << 16),
            };
            SiteRow { stack: StackId(stack), birth_epoch: 0, birth_phase: None, blocks, bytes }
        };
        let rows: Vec<SiteRow> = (1..=SITES).map(row).collect();
        let (allocated_bytes, reserved_bytes) = (rows.iter().map(|row| row.bytes).sum(), 2 << 30);
        SiteTable {
            device: DeviceIndex(0),
            boundary: Boundary::StepEnd,
            epoch,
            step,
            time_ns: (step + 1) * 50_000_000,
            at_event: (step + 1) * 900,
            exact: true,
            counters: Counters { allocated_bytes, reserved_bytes, ..Counters::default() },
            peaks: Peaks { allocated_bytes: 1 << 30, reserved_bytes },
            peaks_within: Peaks { allocated_bytes: (1 << 30) - (step % 97) * 4_096, reserved_bytes },
            found: false,
            private_pools: Vec::new(),
            rows,
        }
    }

    async fn append(&mut self, items: Vec<Packed>) {
        let mut append = Append {
            session: self.key,
            items: Vec::new(),
            gaps: Vec::new(),
            durable_seq: 0,
            duplicates: 0,
            heard_ns: 1,
            devices: Vec::new(),
            epoch_ends: Vec::new(),
            end: None,
            dropped: Dropped::default(),
        };
        for packed in items {
            self.seq += 1;
            let prepared = prepare(self.key, &[0], &packed.numbered(self.seq), &Scale::default()).expect("sound items");
            append.items.push(prepared.item);
            append.devices.extend(prepared.devices);
            append.epoch_ends.extend(prepared.epoch_ends);
            append.end = prepared.end.or(append.end);
        }
        append.durable_seq = self.seq;
        self.store.append(vec![append]).await.expect("room");
    }

    async fn end(&mut self) {
        self.append(vec![Packed::end(&SessionEnd { time_ns: 1 << 50, ..SessionEnd::default() })]).await;
    }

    async fn close(self) -> (SessionKey, u64) {
        self.store.close().await.expect("closed");
        (self.key, self.seq)
    }
}

fn ask(folder: &Path, job: &str) -> Value {
    let folder = folder.to_str().expect("a plain path");
    let mut answer = run_json(memctl().args(["query", "-o", "json", "--data-dir", folder, "--job", job]));
    // If the first half was queried, watches were written, so the store is larger.
    answer.as_object_mut().expect("an object").remove("store");
    answer
}

async fn watch(folder: &Path, session: SessionKey) -> Option<WatchRow> {
    let store = SqliteStore::open(&folder.join("memctl.db"), "test").await.expect("a store");
    let row = store.watch(session).await.expect("an answer");
    store.close().await.expect("closed");
    row
}

async fn put(folder: &Path, session: SessionKey, row: &WatchRow) {
    let store = SqliteStore::open(&folder.join("memctl.db"), "test").await.expect("a store");
    store.put_watch(session, row).await.expect("room");
    store.close().await.expect("closed");
}

fn kinds(answer: &Value) -> Vec<&str> {
    answer["findings"].as_array().expect("findings").iter().filter_map(|finding| finding["kind"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_where_it_was_kept_and_says_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sender = StackSender::default();
    let mut filling = Filling::begin(folder.path(), "long", true).await;
    filling.epochs(1..=SITES - 2, 0..120, &mut sender).await;
    let (key, half) = filling.close().await;
    let first = ask(folder.path(), "long");
    assert!(kinds(&first).contains(&"leak"), "{first:#}");
    let kept = watch(folder.path(), key).await.expect("half of the session is kept");
    assert_eq!(kept.seq, half);

    let mut filling = Filling::begin(folder.path(), "long", true).await;
    filling.seq = half;
    filling.epochs(SITES - 1..=SITES, 120..240, &mut sender).await;
    filling.end().await;
    let (_, whole) = filling.close().await;
    let resumed = ask(folder.path(), "long");
    let kept = watch(folder.path(), key).await.expect("all of it is kept");
    assert_eq!(kept.seq, whole);
    assert_eq!(ask(folder.path(), "long"), resumed, "nothing is left to be read");

    // Watches of another version, damaged ones and truncated ones: everything is read again, and stored again.
    let cut = kept.state.slice(..kept.state.len() / 2);
    let bad = [
        WatchRow { form: "another".to_owned(), ..kept.clone() },
        WatchRow { state: cut, ..kept.clone() },
        WatchRow { state: b"no state at all".as_slice().into(), ..kept.clone() },
        WatchRow { seq: whole + 1, ..kept.clone() },
    ];
    for row in bad {
        put(folder.path(), key, &row).await;
        assert_eq!(ask(folder.path(), "long"), resumed);
        let again = watch(folder.path(), key).await.expect("it is kept again");
        assert_eq!((again.seq, &again.form), (whole, &kept.form));
    }
}

/// The opposite case: stored watches are really used.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_is_read_and_the_items_before_it_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut keys = Vec::new();
    for (job, leaks) in [("leaks", true), ("clean", false)] {
        let mut filling = Filling::begin(folder.path(), job, leaks).await;
        filling.epochs(1..=SITES, 0..120, &mut StackSender::default()).await;
        filling.end().await;
        keys.push(filling.close().await.0);
    }
    assert!(kinds(&ask(folder.path(), "leaks")).contains(&"leak"));
    assert!(!kinds(&ask(folder.path(), "clean")).contains(&"leak"));
    let leaky = watch(folder.path(), keys[0]).await.expect("kept");
    put(folder.path(), keys[1], &leaky).await;
    assert!(kinds(&ask(folder.path(), "clean")).contains(&"leak"), "the state of the other session is used");
}
