//! The whole text that `frag`, `oom` and `ledger` print for people and scripts.

use unicode_width::UnicodeWidthStr;

use super::{Screen, ended, records};

fn on(line: &str, columns: usize) -> String {
    let (text, result) = ended(line, Screen { columns: Some(columns), unicode: true });
    result.unwrap();
    text
}

fn memctl(line: &str) -> String {
    on(line, 120)
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(&memctl(&format!("{line} -o json"))).unwrap()
}

#[test]
fn frag() {
    insta::assert_snapshot!(memctl("frag --job kind/fragmentation"));
    insta::assert_snapshot!(memctl("frag --job gpt_clean --rank 0 --quiet"));
    assert!(memctl("frag --job nothing_recorded --quiet").contains("Nothing is known about the blocks"));
}

#[test]
fn frag_as_data() {
    insta::assert_snapshot!(memctl("frag --job kind/fragmentation --rank 0-1 -o csv"));
    let json = json("frag --job kind/fragmentation");
    assert_eq!((&json["schema"], &json["ranks_left_out"]), (&2.into(), &12.into()));
    let rank = &json["ranks"][1];
    assert_eq!((&rank["cause"], &rank["severity"]), (&"varying_sizes".into(), &"warning".into()));
    assert_eq!(rank["held_by"][0]["site"]["function"], "remember_features");
    assert_eq!(rank["held_by"][1]["site"], serde_json::Value::Null);
    assert_eq!(rank["unusable_free"][20]["unusable"], 1.0);
    assert_eq!(rank["free_lists"][0]["pool"], "0:0");
    assert_eq!(self::json("frag --job gpt_clean")["ranks"][0]["idle_bytes"], serde_json::Value::Null);
    let lines = memctl("frag --job kind/fragmentation -o ndjson");
    let records = records(&lines);
    let kinds: Vec<&str> = records.iter().map(|record| record["record"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["job", "rank", "rank", "rank", "rank", "finding"]);
}

#[test]
fn oom() {
    insta::assert_snapshot!(memctl("oom --job kind/oom"));
    insta::assert_snapshot!(memctl("oom --job gpt_clean --quiet"));
}

#[test]
fn oom_as_data() {
    insta::assert_snapshot!(memctl("oom --job kind/oom -o csv"));
    let json = json("oom --job kind/oom");
    assert_eq!((&json["failed"], &json["failures"][0]["cause"]), (&3.into(), &"capacity".into()));
    assert_eq!(json["failures"][0]["limit_below_bytes"], serde_json::Value::Null);
    assert_eq!(json["failures"][0]["sites"][0]["before_bytes"], 2_u64 << 30);
    let lines = memctl("oom --job kind/oom -o ndjson");
    let records = records(&lines);
    let kinds: Vec<&str> = records.iter().map(|record| record["record"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["job", "failure", "finding"]);
}

#[test]
fn pages_fit_narrow_screens() {
    for line in [
        "frag --job kind/fragmentation --quiet",
        "oom --job kind/oom --quiet",
        "frag --job gpt_clean --quiet",
        "ledger --job gpt_clean --quiet",
    ] {
        for columns in [40, 60, 80] {
            let text = on(line, columns);
            let widest = text.lines().max_by_key(|line| line.width()).unwrap_or_default();
            assert!(widest.width() <= columns, "{line} at {columns}: {widest:?}");
        }
    }
}

#[test]
fn ledger() {
    insta::assert_snapshot!(memctl("ledger --job gpt_clean"));
    insta::assert_snapshot!(on("ledger --job gpt_clean --rank 0 --epoch-end 2 --quiet", 44));
    assert!(memctl("ledger --job nothing_recorded --quiet").contains("there is no ledger"));
}

#[test]
fn ledger_as_data() {
    insta::assert_snapshot!(memctl("ledger --job gpt_clean -o csv"));
    insta::assert_snapshot!(memctl("ledger --job gpt_clean --rank 0 --blocks -o csv"));
    let plain = json("ledger --job gpt_clean");
    let rank = &plain["ranks"][0];
    assert_eq!((&rank["blocks"], &rank["others_bytes"]), (&serde_json::Value::Null, &(2_u64 << 30).into()));
    assert_eq!((&rank["classes"][0]["class"], &rank["classes"][4]["class"]), (&"parameters".into(), &"unknown".into()));
    assert_eq!(plain["ranks"][1]["context_bytes"], serde_json::Value::Null);
    assert_eq!(plain["ranks"][1]["unexplained_bytes"], -5 * (1 << 20));
    let parts = ["allocated_bytes", "cached_bytes", "nccl_bytes", "context_bytes", "others_bytes", "unexplained_bytes"];
    let sum: i64 = parts.iter().map(|part| rank[part].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), rank["device_used_bytes"].as_i64());
    let full = json("ledger --job gpt_clean --rank 2 --blocks");
    let rank = &full["ranks"][0];
    assert_eq!((rank["blocks"].as_array().unwrap().len(), &rank["blocks_left_out"]), (3, &3.into()));
    let owners: Vec<&serde_json::Value> = rank["blocks"].as_array().unwrap().iter().map(|it| &it["owner"]).collect();
    assert_eq!(owners, [&serde_json::Value::Null, &"KV cache".into(), &serde_json::Value::Null]);
    assert_eq!(
        (&rank["owners"][0]["owner"], &rank["owners"][0]["live_bytes"]),
        (&"KV cache".into(), &(64 << 20).into())
    );
    assert_eq!((&rank["pools"][0]["pool"], &rank["pools"][0]["owner"]), (&"0.1".into(), &"graph's inputs".into()));
    assert_eq!((&rank["pools"][1]["owner"], &rank["nccl_bytes"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert_eq!(rank["blocks"][1]["site"]["function"], "forward");
    assert_eq!(
        (&rank["blocks"][2]["site"], &rank["blocks"][2]["birth_phase"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    let lines = memctl("ledger --job gpt_clean --rank 0-1 --blocks -o ndjson");
    let records = records(&lines);
    let kinds: Vec<&str> = records.iter().map(|record| record["record"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["job", "rank", "block", "block", "block", "rank", "block", "block", "block"]);
    assert_eq!(records[8]["rank"], 1);
}

#[test]
fn blocks_are_no_page() {
    let failure = ended("ledger --job gpt_clean --blocks", Screen { columns: None, unicode: true }).1.unwrap_err();
    assert_eq!(failure.code, 2, "{failure}");
}
