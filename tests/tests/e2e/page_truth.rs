//! The page's pictures over all bundled recordings, as sent over HTTP, compared with an exact replay of the stored
//! events: floors, differences, ledgers, classes, and the picture of a finding.

use std::collections::BTreeMap;
use std::path::Path;

use memctl_analysis::{Birth, BlockMap};
use memctl_answers::format::time::{Time, rfc3339};
use memctl_daemon::store::{EpochEndRow, Selection, SessionKey, SessionRow, SqliteStore, Store as _, Which};
use memctl_model::{Event, Mark};
use memctl_proto::chunk::Decoder;
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::ItemKind;
use memctl_tests::https::Port;
use memctl_tests::recordings::NAMES;
use serde_json::Value;

use super::page::{get, import, json, served};

/// The levels of a device after an event.
#[derive(Clone, Copy)]
pub(super) struct Level {
    pub time_ns: u64,
    pub allocated: u64,
    pub reserved: u64,
}

/// One device of a rank, replayed event by event.
pub(super) struct Truth {
    pub rank: u32,
    pub device: u8,
    /// The levels after each event; the first entry is the initial state.
    pub levels: Vec<Level>,
    /// The events themselves.
    pub events: Vec<Event>,
    /// The marks, by time.
    pub marks: Vec<Mark>,
    pub ends: Vec<EpochEndRow>,
}

impl Truth {
    /// The parameters that select it.
    pub(super) fn selection(&self) -> String {
        format!("rank={}&device={}", self.rank, self.device)
    }

    fn at_end(&self, end: &EpochEndRow) -> Level {
        self.levels[end.at_event as usize]
    }

    /// The most allocated bytes within a range, whose end is excluded unless it is the end of the recording.
    fn most(&self, from_ns: u64, until_ns: u64) -> u64 {
        let first = self.levels.partition_point(|level| level.time_ns < from_ns).saturating_sub(1);
        let is_last = self.levels.last().is_some_and(|last| last.time_ns == until_ns);
        let end = self.levels.partition_point(|level| level.time_ns < until_ns || is_last);
        self.levels[first..end.max(first + 1)].iter().map(|level| level.allocated).max().unwrap()
    }

    pub(super) fn at(&self, time_ns: u64) -> Level {
        self.levels[self.levels.partition_point(|level| level.time_ns <= time_ns) - 1]
    }
}

/// Nanoseconds since the Unix epoch.
pub(super) fn time_ns(time: &Value) -> u64 {
    serde_json::from_value::<Time>(time.clone()).unwrap().0
}

/// Every device with events of every rank of a job, from the stored events themselves.
pub(super) async fn truths(folder: &Path, job: &str) -> Vec<Truth> {
    let store = SqliteStore::open(&folder.join("memctl.db"), "a test").await.unwrap();
    let job = store.job(&Which::written(job), None).await.unwrap().unwrap();
    let ends = store.epoch_ends(job.key).await.unwrap();
    let devices = store.devices(job.key).await.unwrap();
    let mut all = Vec::new();
    for session in store.sessions(job.key).await.unwrap() {
        let own = devices.iter().filter(|device| device.session == session.key && device.events > 0);
        for device in own.map(|device| device.info.index.0) {
            let ends = ends.iter().filter(|end| (end.session, end.device) == (session.key, device)).cloned().collect();
            all.push(truth(&store, &session, device, ends).await);
        }
    }
    store.close().await.unwrap();
    all
}

async fn truth(store: &SqliteStore, session: &SessionRow, device: u8, ends: Vec<EpochEndRow>) -> Truth {
    let chunks = store.chunks(session.key, device, Selection::default()).await.unwrap();
    let mut map = BlockMap::new(&session.info.settings);
    if let Some(row) = store.keyframe_before(session.key, device, 0).await.unwrap() {
        let kind = ItemKind::try_from(row.kind).unwrap();
        let packed = Packed { kind, payload: row.payload, unpacked_bytes: row.unpacked_bytes };
        let Content::Keyframe(keyframe) = packed.open().unwrap() else { panic!("no keyframe") };
        map.restore(&keyframe);
    }
    let level = |time_ns, map: &BlockMap| {
        let levels = map.levels();
        Level { time_ns, allocated: levels.allocated_bytes, reserved: levels.reserved_bytes }
    };
    let (mut decoder, mut levels, mut all_events) = (Decoder::new().unwrap(), vec![level(0, &map)], Vec::new());
    for chunk in chunks {
        let payloads = store.payloads(session.key, &[chunk.seq]).await.unwrap();
        let mut events = Vec::new();
        decoder.decode(&payloads[0].1, &mut events).unwrap();
        for event in events {
            map.apply(&event, Birth::default());
            levels.push(level(event.time_ns, &map));
            all_events.push(event);
        }
    }
    let marks = marks(store, session.key).await;
    Truth { rank: session.info.rank, device, levels, events: all_events, marks, ends }
}

async fn marks(store: &SqliteStore, session: SessionKey) -> Vec<Mark> {
    let mut marks = Vec::new();
    for row in store.items(session, ItemKind::Marks, None, Selection::default()).await.unwrap() {
        let kind = ItemKind::try_from(row.kind).unwrap();
        let packed = Packed { kind, payload: row.payload, unpacked_bytes: row.unpacked_bytes };
        let Content::Marks(found) = packed.open().unwrap() else { panic!("no marks") };
        marks.extend(found);
    }
    marks.sort_by_key(|mark| mark.time_ns);
    marks
}

/// A job's answers.
pub(super) struct JobAnswers<'p> {
    pub port: &'p Port,
    pub job: &'p str,
}

impl JobAnswers<'_> {
    pub(super) fn view(&self, asked: &str) -> Value {
        json(&get(self.port, &format!("/api/v1/jobs/{}/{asked}", self.job)))
    }
}

pub(super) fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("no number: {of}"))
}

pub(super) fn rows(of: &Value) -> &[Value] {
    of.as_array().map_or(&[], Vec::as_slice)
}

fn sum(of: &Value, name: &str) -> u64 {
    rows(of).iter().map(|row| number(&row[name])).sum()
}

/// The floor at every epoch's end is the lowest level from there to the last epoch's end, and ends with its level.
pub(super) fn floors(asked: &JobAnswers<'_>, truth: &Truth) {
    let answer = asked.view(&format!("timeline?{}&points=600&floor=true", truth.selection()));
    let floor: Vec<(u64, u64)> = rows(&answer["ranks"][0]["floor"])
        .iter()
        .map(|step| (time_ns(&step["until"]), number(&step["allocated_bytes"])))
        .collect();
    let name = format!("{} {}", asked.job, truth.selection());
    assert!(floor.is_sorted() && floor.is_sorted_by_key(|(_, bytes)| *bytes), "{name}");
    let last = truth.ends.last().unwrap();
    // The picture ends with the last event, if the boundary has none behind it.
    let end_ns = last.time_ns.min(truth.levels.last().unwrap().time_ns);
    assert_eq!(floor.last(), Some(&(end_ns, last.counters.allocated_bytes)), "{name}");
    for end in &truth.ends {
        let lowest = truth.levels[end.at_event as usize..=last.at_event as usize].iter().map(|level| level.allocated);
        let step = floor.iter().find(|(until_ns, _)| end.time_ns < *until_ns).or(floor.last());
        assert_eq!(step.map(|(_, bytes)| *bytes), lowest.min(), "{name}, end of epoch {}", end.epoch);
        assert_eq!(truth.at_end(end).allocated, end.counters.allocated_bytes, "{name}, end of epoch {}", end.epoch);
    }
}

/// Asserts that the change between two epochs' ends is the difference of their levels.
pub(super) fn differences(asked: &JobAnswers<'_>, truth: &Truth) {
    for pair in truth.ends.windows(2) {
        let [early, late] = pair else { continue };
        let path = format!("flame?{}&from=epoch:{}&at=epoch:{}", truth.selection(), early.epoch, late.epoch);
        let answer = asked.view(&path);
        let net =
            number(&answer["calls"][0]["grown_bytes"]) as i64 - number(&answer["calls"][0]["shrunk_bytes"]) as i64;
        let exact = truth.at_end(late).allocated as i64 - truth.at_end(early).allocated as i64;
        assert_eq!(net, exact, "{} {path}", asked.job);
        assert_eq!(answer["from"]["allocated_bytes"].as_u64(), Some(truth.at_end(early).allocated), "{path}");
        assert_eq!(answer["at"]["allocated_bytes"].as_u64(), Some(truth.at_end(late).allocated), "{path}");
    }
}

/// Asserts that a ledger is that of the requested moment.
pub(super) fn ledgers(asked: &JobAnswers<'_>, truth: &Truth) {
    let (first_ns, last_ns) = (truth.levels[1].time_ns, truth.levels.last().unwrap().time_ns);
    let between = |part: u64| first_ns + (last_ns - first_ns) / 7 * part;
    let times = [1, 3, 5, 6].map(between).map(|time_ns| (rfc3339(time_ns), truth.at(time_ns)));
    let ends = truth.ends.iter().map(|end| (format!("epoch:{}", end.epoch), truth.at_end(end)));
    for (at, level) in times.into_iter().chain(ends) {
        let answer = asked.view(&format!("ledger?{}&at={at}", truth.selection()));
        let answer = &answer["ranks"][0];
        let sums = [
            number(&answer["allocated_bytes"]),
            sum(&answer["classes"], "live_bytes"),
            number(&answer["allocated_bytes"]) + number(&answer["cached_bytes"]),
        ];
        assert_eq!(
            sums,
            [level.allocated, level.allocated, level.reserved],
            "{} {} {at}",
            asked.job,
            truth.selection()
        );
    }
}

/// Asserts that the classes of a boundary sum to its allocated bytes, and those of a slot to the slot's peak.
pub(super) fn classes(asked: &JobAnswers<'_>, truth: &Truth) {
    let answer = asked.view(&format!("classes?{}", truth.selection()));
    let points = rows(&answer["points"]);
    assert!(points.len() > truth.ends.len(), "{}", asked.job);
    for point in points {
        let all: u64 = rows(&point["bytes"]).iter().map(number).sum();
        let (time_ns, what) = (time_ns(&point["at"]), format!("{} {point}", asked.job));
        assert_eq!(all, truth.at(time_ns).allocated, "{what}");
    }
    let (first_ns, last_ns) = (truth.levels[1].time_ns, truth.levels.last().unwrap().time_ns);
    let part = (last_ns - first_ns) / 3;
    let closer = format!("&since={}&until={}", rfc3339(first_ns + part), rfc3339(first_ns + part + part / 9));
    for range in [String::new(), closer] {
        let answer = asked.view(&format!("classes?{}{range}", truth.selection()));
        let mut until_ns = None;
        for slot in rows(&answer["slots"]) {
            let [from, until] = ["from", "until"].map(|name| time_ns(&slot[name]));
            assert!(until_ns.is_none_or(|before| before == from), "{} {slot}: slots follow each other", asked.job);
            until_ns = Some(until);
            let all: u64 = rows(&slot["bytes"]).iter().map(number).sum();
            assert_eq!(all, truth.most(from, until), "{} {} {slot}", asked.job, truth.selection());
        }
        assert!(until_ns.is_some(), "{}", asked.job);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_picture_says_what_the_stored_events_say() {
    let home = tempfile::tempdir().unwrap();
    let mut all = BTreeMap::new();
    for name in NAMES {
        import(name, &["--data-dir", home.path().to_str().unwrap()]);
        all.insert(name, truths(home.path(), name).await);
    }
    let (daemon, port) = served(home.path(), &[]);
    for (job, truths) in all {
        let asked = JobAnswers { port: &port, job };
        assert_eq!(truths.len(), 4, "{job}");
        for truth in truths.iter().take(2) {
            ledgers(&asked, truth);
            classes(&asked, truth);
        }
        for truth in truths.iter().filter(|truth| !truth.ends.is_empty()) {
            floors(&asked, truth);
            differences(&asked, truth);
        }
        for failure in rows(&asked.view("oom")["failures"]) {
            let at = format!("rank={}&at={}", failure["rank"], failure["at"].as_str().unwrap());
            let answer = &asked.view(&format!("ledger?{at}"))["ranks"][0];
            assert_eq!(answer["allocated_bytes"], failure["allocated_bytes"], "{job} {at}");
            let cached = number(&failure["free_in_cache_bytes"]) - number(&failure["flushed_bytes"]);
            assert_eq!(number(&answer["cached_bytes"]), cached, "{job} {at}");
        }
    }
    assert_eq!(daemon.terminate(), 0);
}

/// The moments between which the page compares a finding: see `web/src/words/grown.ts`.
fn compared(finding: &Value, rank: &Value) -> Option<(String, String)> {
    let ends: Vec<u64> = rows(&rank["epoch_ends"]).iter().map(|end| number(&end["epoch"])).collect();
    let late = *ends.last()?;
    if finding["kind"] == "hidden_chain" {
        return Some((format!("epoch:{late}:first-step"), format!("epoch:{late}:last-step")));
    }
    let steady = if ends.len() > 2 { &ends[1..] } else { &ends[..] };
    let since = finding["first_seen"]["epoch"].as_u64().unwrap_or(0);
    let early = *steady.iter().find(|epoch| **epoch >= since && **epoch < late).or(steady.first())?;
    (early < late).then(|| (format!("epoch:{early}"), format!("epoch:{late}")))
}

/// The growth of the calls that pass through a frame.
fn grown_through(calls: &[Value], site: &Value) -> i64 {
    let is_it = |frame: &Value| ["function", "file", "line"].iter().all(|name| frame[name] == site[name]);
    let (mut within, mut grown) = (None, 0);
    for call in calls {
        let depth = number(&call["depth"]);
        within = within.filter(|above| depth > *above);
        if within.is_none() && rows(&call["frames"]).iter().any(is_it) {
            within = Some(depth);
            grown += number(&call["grown_bytes"]) as i64 - number(&call["shrunk_bytes"]) as i64;
        }
    }
    grown
}

#[test]
fn what_grew_is_shown_between_moments_at_which_it_grew() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let mut shown = Vec::new();
    for job in NAMES {
        import(job, &["--daemon", &daemon.url]);
        let asked = JobAnswers { port: &port, job };
        let report = asked.view("query");
        for finding in rows(&report["findings"]) {
            let kinds = ["leak", "eval_graph", "graph_kept", "hidden_chain"];
            if !kinds.contains(&finding["kind"].as_str().unwrap()) || finding["site"].is_null() {
                continue;
            }
            let rank =
                rows(&report["ranks"]).iter().find(|rank| rows(&finding["ranks"]).contains(&rank["rank"])).unwrap();
            let (from, at) = compared(finding, rank).unwrap();
            let answer = asked.view(&format!("flame?rank={}&from={from}&at={at}", rank["rank"]));
            let all =
                number(&answer["calls"][0]["grown_bytes"]) as i64 - number(&answer["calls"][0]["shrunk_bytes"]) as i64;
            let own = grown_through(rows(&answer["calls"]), &finding["site"]);
            assert!(answer["from"]["at"].as_str() < answer["at"]["at"].as_str(), "{job}: time runs forwards");
            assert!(own > 0 && all > 0 && 10 * own > 9 * all, "{job} {from} {at}: {own} of {all}");
            shown.push(job);
        }
    }
    assert!(shown.contains(&"gpt_val_graph_leak") && shown.contains(&"lstm_hidden_chain"), "{shown:?}");
    assert_eq!(daemon.terminate(), 0);
}
