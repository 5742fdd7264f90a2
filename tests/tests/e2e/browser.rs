//! The page that needs no install gives the same answers as a daemon that has imported the same files: every view of
//! every bundled recording, tiles, comparisons, and the sentences about unusable files.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use memctl_browser::{ImportedFile, Page, PageAnswer};
use memctl_tests::https::Port;
use memctl_tests::recordings::{NAMES, folder};
use memctl_tests::{memctl, stderr};
use serde_json::Value;

use super::page::{import, served};

/// The views of a job and their parameters, each with an answer.
const VIEWS: [&str; 30] = [
    "query",
    "query?rank=1,2",
    "diagnose",
    "heat",
    "timeline",
    "timeline?points=97&floor=true",
    "sparkline",
    "sites",
    "sites?rank=0&at=peak",
    "sites?rank=3&at=end",
    "sites?rank=0&at=epoch:1",
    "ledger?rank=0",
    "ledger?rank=2&blocks=true&at=end",
    "oom",
    "flame?rank=0",
    "flame?rank=1&at=end&from=epoch:0",
    "blocks?rank=0",
    "blocks?rank=3&event=1000",
    "step?rank=0",
    "step?rank=1&step=2",
    "classes?rank=0",
    "anatomy?rank=0",
    "profile",
    "what-if?rank=0",
    "what-if?rank=1&limit=3221225472",
    "fit?rank=0&size=8",
    // Refusals.
    "timeline?points=x",
    "sites?at=never",
    "query?rank=7",
    "nothing",
];

/// Figures that depend on when and how a recording was stored. (A session's id is made from its import.)
const OWN: [&str; 3] = ["arrived_at", "stored_bytes", "session"];

fn without_own(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !OWN.contains(&name.as_str()));
            fields.values_mut().for_each(without_own);
        }
        Value::Array(values) => values.iter_mut().for_each(without_own),
        _ => {}
    }
}

/// The status and the bytes of an answer over HTTP.
fn of_daemon(port: &Port, address: &str) -> (u16, Vec<u8>) {
    let mut pipe = port.connect();
    write!(pipe, "GET /api/v1/{address} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", port.address).unwrap();
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).unwrap();
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&bytes[..body]).into_owned();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, bytes.split_off(body))
}

/// Where two values differ first.
fn difference(path: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let names = ours.keys().chain(theirs.keys().filter(|name| !ours.contains_key(*name)));
            let none = Value::Null;
            let of = |fields: &serde_json::Map<String, Value>, name: &str| fields.get(name).unwrap_or(&none).clone();
            names.into_iter().find_map(|name| difference(&format!("{path}.{name}"), &of(ours, name), &of(theirs, name)))
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let pairs = ours.iter().zip(theirs).enumerate();
            pairs.into_iter().find_map(|(at, (one, other))| difference(&format!("{path}[{at}]"), one, other))
        }
        _ => (ours != theirs).then(|| format!("{path}: {ours} here, {theirs} from the daemon")),
    }
}

fn assert_same(port: &Port, page: &Page, address: &str) {
    let (status, theirs) = of_daemon(port, address);
    let PageAnswer { status: own, content, .. } = page.get(address);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(own, status, "{address}: {}\n{}", text(&content), text(&theirs));
    if status != 200 {
        assert!(content == theirs, "{address}: {}\n{}", text(&content), text(&theirs));
        return;
    }
    // A tile is a line of JSON and columns of numbers.
    let tile = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    let [(ours, own_columns), (theirs, columns)] = [&content, &theirs]
        .map(|bytes| bytes.split_at(if address.contains("/tiles") { tile(bytes) } else { bytes.len() }));
    assert!(own_columns == columns, "{address}: the columns differ");
    let [mut ours, mut theirs] = [ours, theirs].map(|json| serde_json::from_slice::<Value>(json).unwrap());
    without_own(&mut ours);
    without_own(&mut theirs);
    assert_eq!(difference(address, &ours, &theirs), None);
}

fn files(folder: &Path, ranks: u32) -> Vec<ImportedFile<File>> {
    let file = |rank| folder.join(format!("rank{rank}.pickle.zst"));
    (0..ranks).map(file).map(|name| ImportedFile { reader: File::open(&name).unwrap(), name }).collect()
}

#[test]
fn every_view_of_every_recording_is_the_daemons() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let mut page = Page::new().unwrap();
    for name in NAMES {
        import(name, &["--daemon", &daemon.url]);
        let mut events = 0;
        let imported = page.import(name, files(&folder(name), 4), &mut |_, now| events = now.events).unwrap();
        assert!(imported.ranks == 4 && imported.events > 0 && events > 0, "{imported:?}");
        for view in VIEWS {
            assert_same(&port, &page, &format!("jobs/{name}/{view}"));
        }
        let course: Value = serde_json::from_slice(&page.get(&format!("jobs/{name}/timeline")).content).unwrap();
        let first_ns = nanoseconds(&course["job"]["started_at"]);
        for level in [14, 20, 24] {
            let index = first_ns / (512 << level);
            for index in [index, index + 1] {
                assert_same(&port, &page, &format!("jobs/{name}/tiles?rank=2&level={level}&index={index}"));
            }
        }
    }
    assert_same(&port, &page, "jobs/gpt_val_graph_leak/diff?before=gpt_clean");
    assert_same(&port, &page, "jobs/nothing/query");
    let jobs = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap()["jobs"].clone();
    let (ours, theirs) = (jobs(&page.get("jobs").content), jobs(&of_daemon(&port, "jobs").1));
    let [mut ours, mut theirs] = [ours, theirs];
    without_own(&mut ours);
    without_own(&mut theirs);
    assert_eq!(ours.as_array().unwrap().len(), NAMES.len());
    assert_eq!(difference("jobs", &ours, &theirs), None);
}

/// A time as nanoseconds since the Unix epoch.
fn nanoseconds(time: &Value) -> u64 {
    let time: memctl_answers::format::time::Time = serde_json::from_value(time.clone()).unwrap();
    time.0
}

#[test]
fn an_unusable_file_ends_with_the_commands_sentence_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let good = std::fs::read(folder("oom_by_fragmentation").join("rank0.pickle.zst")).unwrap();
    let cases: [(&str, Vec<u8>); 5] = [
        ("code", b"\x80\x04cos\nsystem\n(S'id'\ntR.".to_vec()),
        ("text", b"hello, this is no pickle at all".to_vec()),
        ("empty", Vec::new()),
        ("list", b"\x80\x04]\x94.".to_vec()),
        ("plain", zstd::decode_all(&*good).unwrap()[..20_000].to_vec()),
    ];
    for (name, bytes) in cases {
        let path = place.path().join(format!("{name}-rank1.pickle"));
        std::fs::write(&path, bytes).unwrap();
        let mut command = memctl();
        command.args(["import", "-q", "--job", "j", "--data-dir"]).arg(place.path().join("d")).arg(&path);
        let refused = command.output().unwrap();
        assert!(!refused.status.success(), "{name}");
        let mut page = Page::new().unwrap();
        let first = folder("oom_by_fragmentation").join("rank0.pickle.zst");
        let both = [&first, &path].map(|name| ImportedFile { name: name.clone(), reader: File::open(name).unwrap() });
        let why = page.import("j", both.into(), &mut |_, _| {}).unwrap_err();
        assert!(stderr(&refused).contains(&why), "{name}: {why}\n{}", stderr(&refused));
        let jobs: Value = serde_json::from_slice(&page.get("jobs").content).unwrap();
        assert_eq!(jobs["jobs"], serde_json::json!([]), "{name}: the first rank was stored");
        page.import("j", files(&folder("oom_by_fragmentation"), 4), &mut |_, _| {}).unwrap();
        assert_eq!(page.get("jobs/j/query").status, 200, "the page goes on");
    }
}
