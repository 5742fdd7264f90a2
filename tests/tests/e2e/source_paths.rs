//! Paths that must not be sent from the host: no name of a private folder or file reaches the store in any item, and
//! the findings are the same.

use std::path::Path;
use std::time::Duration;

use memctl_agent::source_paths::{Key, SourcePaths};
use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_model::{DeviceIndex, Frame, MarkKind};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::{jobs, memctl, run, run_json};
use serde_json::Value;
use sqlx::{Connection as _, Row as _, SqliteConnection};

const KEY: &str = "a key of this test alone";
const PATIENCE: Duration = Duration::from_secs(60);

/// Every value of every table, also unpacked.
async fn values(store: &Path) -> Vec<Vec<u8>> {
    let mut store = SqliteConnection::connect(&format!("sqlite:{}?mode=ro", store.display())).await.unwrap();
    let tables =
        sqlx::query("SELECT name FROM sqlite_master WHERE type = 'table'").fetch_all(&mut store).await.unwrap();
    let mut values = Vec::new();
    for table in tables {
        let table: String = table.get(0);
        let columns = sqlx::query("SELECT name FROM pragma_table_info($1)").bind(&table);
        for column in columns.fetch_all(&mut store).await.unwrap() {
            let column: String = column.get(0);
            let rows = sqlx::AssertSqlSafe(format!("SELECT CAST(\"{column}\" AS BLOB) FROM \"{table}\""));
            for row in sqlx::query(rows).fetch_all(&mut store).await.unwrap() {
                let Some(bytes) = row.get::<Option<Vec<u8>>, _>(0) else { continue };
                // An item may be preceded by a few bytes with its kind.
                for begin in (0..bytes.len().min(64)).filter(|&at| bytes[at..].starts_with(&[0x28, 0xb5, 0x2f, 0xfd])) {
                    values.extend(zstd::decode_all(&bytes[begin..]));
                }
                values.push(bytes);
            }
        }
    }
    values
}

/// How many stored values hold a text.
async fn count(store: &Path, text: &str) -> usize {
    let holds = |value: &&Vec<u8>| value.windows(text.len()).any(|window| window == text.as_bytes());
    values(store).await.iter().filter(holds).count()
}

fn import(data: &Path, name: &str, form: &str) -> Value {
    let of = |verb: &str| {
        let mut command = memctl();
        command.arg(verb).arg("--data-dir").arg(data).args(["--job", name]).env("MEMCTL_SOURCE_PATHS_KEY", KEY);
        command
    };
    run(of("import").args(["-q", "--source-paths", form]).arg(folder(name)));
    run_json(of("query").args(["-o", "json"]))
}

/// The findings, the growth and the ranks without file names. A finding's id depends on its file, so each id is
/// replaced by the finding's number.
fn facts(report: &Value) -> Value {
    fn without(value: &mut Value, ids: &[&str]) {
        match value {
            Value::Object(fields) => {
                for name in ["file", "found_by", "sentence", "title", "advice", "id", "stored_bytes"] {
                    fields.remove(name);
                }
                fields.values_mut().for_each(|value| without(value, ids));
            }
            Value::Array(values) => values.iter_mut().for_each(|value| without(value, ids)),
            Value::String(text) => {
                if let Some(at) = ids.iter().position(|id| id == text) {
                    *text = format!("finding {at}");
                }
            }
            _ => {}
        }
    }
    let findings = report["findings"].as_array().unwrap();
    let ids: Vec<&str> = findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect();
    let (growth, ranks) = (&report["growth"], &report["ranks"]);
    let mut facts = serde_json::json!({ "findings": findings, "growth": growth, "ranks": ranks });
    without(&mut facts, &ids);
    facts
}

/// The first difference between two responses; `None` if they are equal.
fn difference(one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            one.iter().find_map(|(name, value)| Some(format!(".{name}{}", difference(value, &other[name])?)))
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.find_map(|(at, (one, other))| Some(format!("[{at}]{}", difference(one, other)?)))
        }
        _ => (one != other).then(|| format!(": {one} and {other}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_in_a_recording_does_not_depend_on_its_paths() {
    let place = tempfile::tempdir().unwrap();
    for (name, site) in [("cnn_rank0_cache", "remember_features"), ("gpt_val_graph_leak", "")] {
        let data = |form: &str| place.path().join(format!("{name}-{form}"));
        let full = import(&data("full"), name, "full");
        assert!(!full["findings"].as_array().unwrap().is_empty(), "{name} has something to find");
        assert!(full.to_string().contains(site));
        assert!(count(&data("full").join("memctl.db"), "scenarios").await > 0, "the search finds what is there");
        for form in ["short", "hashed"] {
            let difference = difference(&facts(&import(&data(form), name, form)), &facts(&full));
            assert_eq!(difference, None, "{name}, {form}");
        }
        assert_eq!(count(&data("hashed").join("memctl.db"), "scenarios").await, 0, "{name}");
        assert!(count(&data("hashed").join("memctl.db"), "/site-packages/torch/nn/").await > 0, "public names stay");
    }
}

/// Records a process whose files, marks and failure text contain private names.
fn record(url: &str, rank: u32, source_paths: SourcePaths) {
    let session = jobs::session("private", rank);
    let config = AgentConfig { source_paths, ..AgentConfig::new(session, Daemon::Address(url.into())) };
    let agent = Agent::start(config).unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    let frame = |file: &str| Frame { function: "forward".into(), file: file.into(), line: 7 };
    let own = format!("/mnt/node{rank}/acme-secret/model/secret_net.py");
    let stack = agent.stack(&[
        frame("/home/ann/.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"),
        frame("/home/ann/.venv/lib/python3.11/site-packages/acme_secret/layers.py"),
        frame(&own),
    ]);
    agent.epoch_begin(0);
    agent.mark(MarkKind::RegionBegin("load /home/ann/acme-secret/data".into()));
    assert!(recorder.alloc(0x7f00_0000_0000, 4 << 20, 0, stack));
    agent.mark(MarkKind::Note("see acme-secret/notes.txt".into()));
    agent.epoch_end(0);
    let failure = "FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/acme-secret/data x/train.bin'";
    let outcome = agent.stop(Some(failure.to_owned()), PATIENCE);
    assert!(outcome.delivered, "{outcome:?}");
    assert!(outcome.end.failure.unwrap().starts_with("FileNotFoundError: [Errno 2] No such file"), "its words stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_private_of_a_live_process_reaches_the_store() {
    let place = tempfile::tempdir().unwrap();
    for (form, private) in [("full", true), ("hashed", false)] {
        let data = place.path().join(form);
        let port = free_port();
        let daemon = DaemonProcess::sqlite(&data, port);
        let url = daemon.url.clone();
        for rank in 0..2 {
            // Each process started in a folder of its own node.
            let root = format!("/mnt/node{rank}/acme-secret");
            let paths = match private {
                true => SourcePaths::default(),
                false => SourcePaths::hashed(Key::given(KEY).unwrap(), &[root.into()]),
            };
            let url = url.clone();
            tokio::task::spawn_blocking(move || record(&url, rank, paths)).await.unwrap();
        }
        let sites = run_json(memctl().args([
            "sites",
            "--job",
            "private",
            "--end",
            "--all-frames",
            "-o",
            "json",
            "--daemon",
            &url,
        ]));
        assert_eq!(daemon.terminate(), 0);
        let store = data.join("memctl.db");
        for name in ["acme", "secret", "/home/ann", "train.bin", "notes.txt"] {
            assert_eq!(count(&store, name).await > 0, private, "{form}: {name}");
        }
        if !private {
            // Ranks of two nodes have the same name for the same file.
            let named = Key::given(KEY).unwrap().hash("model/secret_net.py");
            let text = sites.to_string();
            assert!(text.contains(&named), "{named} is not in {text}");
        }
    }
}
