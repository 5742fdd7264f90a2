//! The dependency rules of ARCHITECTURE.md: which crate may import which, what no crate may import, and that answers
//! and pages have no thresholds. A violated rule fails with its sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each crate with the crates of memctl that it may import, those that it must never import (normal dependencies), and
/// the sentence of the rule.
const RULES: [(&str, &[&str], &[&str], &str); 11] = [
    (
        "memctl-model",
        &[],
        &["serde", "prost", "sqlx", "tokio", "tonic", "bytes"],
        "model/ holds the nouns and imports std and thiserror only (serde as a feature)",
    ),
    (
        "memctl-zstd",
        &[],
        &["zstd", "prost", "tokio", "tonic", "serde", "tracing"],
        "zstd/ reads and writes zstd's frames in Rust alone",
    ),
    (
        "memctl-proto",
        &["memctl-model", "memctl-zstd"],
        &["sqlx", "tokio", "hyper-util"],
        "proto/ spells the nouns as bytes: model, prost, tonic, zstd; never sqlx, analysis or a runtime of its own",
    ),
    (
        "memctl-analysis",
        &["memctl-model"],
        &["tokio", "tonic", "prost", "sqlx", "serde", "tracing"],
        "analysis/ is pure: model only, no I/O and no clock",
    ),
    (
        "memctl-replay",
        &["memctl-model"],
        &["tokio", "tonic", "prost", "sqlx", "serde", "tracing"],
        "replay/ is pure: model only, no I/O and no clock",
    ),
    (
        "memctl-snapshot",
        &["memctl-model", "memctl-analysis", "memctl-zstd"],
        &["tokio", "tonic", "prost", "sqlx", "serde", "tracing"],
        "snapshot/ reads and writes PyTorch's files: model and analysis; no wire, no runtime, no agent",
    ),
    (
        "memctl-agent",
        &["memctl-model", "memctl-proto", "memctl-analysis"],
        &["sqlx", "zstd", "flate2"],
        "agent/ imports model, proto and analysis; never sqlx, the daemon or the reading of files",
    ),
    (
        "memctl-daemon",
        &["memctl-model", "memctl-zstd", "memctl-proto", "memctl-analysis", "memctl-answers", "memctl-replay"],
        &["cudarc", "pyo3", "nvml-wrapper"],
        "daemon/ imports model, proto, analysis, answers and replay; never the agent, cudarc or pyo3",
    ),
    (
        "memctl-answers",
        &["memctl-model", "memctl-proto", "memctl-analysis", "memctl-replay"],
        &["clap", "tokio", "tonic", "sqlx", "indicatif", "terminal_size", "unicode-width"],
        "answers/ says what JSON says, for whoever shows it: model, proto, analysis and replay; no terminal, no command line, no connection",
    ),
    (
        "memctl",
        &[
            "memctl-model",
            "memctl-proto",
            "memctl-analysis",
            "memctl-replay",
            "memctl-snapshot",
            "memctl-agent",
            "memctl-daemon",
            "memctl-answers",
        ],
        &["sqlx"],
        "cli/ uses all others through their front doors, never sqlx directly",
    ),
    (
        "memctl-browser",
        &["memctl-model", "memctl-proto", "memctl-analysis", "memctl-snapshot", "memctl-agent", "memctl-daemon"],
        &["sqlx", "zstd", "ring", "hyper", "axum", "libc"],
        "browser/ joins the importer, the batch stage and the daemon's views; no socket, no database, no C",
    ),
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn dependencies(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let normal =
                package["dependencies"].as_array().expect("dependencies").iter().filter(|it| it["kind"].is_null());
            // serde is an optional feature with derives for crates that store the structs; the agent does not enable
            // it.
            let normal = normal.filter(|it| !(it["name"] == "serde" && it["optional"] == true));
            let names = normal.map(|it| it["name"].as_str().expect("a name").to_owned()).collect();
            (package["name"].as_str().expect("a name").to_owned(), names)
        })
        .collect()
}

#[test]
fn crates_import_only_what_they_may() {
    let dependencies = dependencies(&metadata());
    for (name, may, never, sentence) in RULES {
        let found = dependencies.get(name).unwrap_or_else(|| panic!("{name} is not in the workspace"));
        for dependency in found {
            let ours = dependency.starts_with("memctl");
            assert!(!ours || may.contains(&dependency.as_str()), "{name} imports {dependency}: {sentence}");
            assert!(!never.contains(&dependency.as_str()), "{name} imports {dependency}: {sentence}");
        }
    }
}

#[test]
fn only_the_store_names_sqlx() {
    let daemon = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/src");
    let mut folders = vec![daemon.clone()];
    let mut looked_at = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                looked_at += 1;
                let text = std::fs::read_to_string(&path).expect("a source file");
                let inside = path.starts_with(daemon.join("store"));
                assert!(inside || !text.contains("sqlx"), "{}: sqlx is named in store/ only", path.display());
            }
        }
    }
    assert!(looked_at > 10);
}

/// Numbers that pages and answers may name: they limit the size of a page or message and never decide what is good or
/// bad. Numbers in `args/`, `conditions.rs`, `run/`, `export/`, `render/` and `format/` are about input and output, not
/// about jobs.
const LAYOUT: [(&str, &str); 82] = [
    ("cli/src/page/access.rs", "SECONDS"),
    ("cli/src/page/need.rs", "ROWS"),
    ("cli/src/page/need.rs", "SIZES"),
    ("answers/src/blocks.rs", "STACK_FRAMES_MAX"),
    ("answers/src/diagnose/mod.rs", "SITES_NAMED"),
    ("answers/src/diagnose/words.rs", "CALLERS"),
    ("answers/src/diagnose/words.rs", "CHAINS"),
    ("answers/src/dossier/flame.rs", "CALLS_SHOWN"),
    ("answers/src/dossier/tree.rs", "CALLS_MAX"),
    ("answers/src/dossier/tree.rs", "STACKS_MAX"),
    ("answers/src/fitting/sizes.rs", "QUARTERS"),
    ("answers/src/frag.rs", "SITES_NAMED"),
    ("answers/src/heat.rs", "EPOCHS_MAX"),
    ("answers/src/lib.rs", "SCHEMA"),
    ("cli/src/commands/access.rs", "ANSWER_BYTES_MAX"),
    ("cli/src/commands/alerts.rs", "ANSWER_BYTES_MAX"),
    ("cli/src/commands/doctor/mod.rs", "FREE_BYTES_LOW"),
    ("cli/src/commands/doctor/recording.rs", "ANSWER_BYTES_MAX"),
    ("answers/src/fitting/changes.rs", "NAMED_MAX"),
    ("answers/src/fitting/under.rs", "LISTED_MAX"),
    ("cli/src/commands/import/mod.rs", "TAKE_BACK_TRIES"),
    ("cli/src/commands/questions.rs", "DATA_POINTS"),
    ("cli/src/commands/questions.rs", "JOBS_OF_NODES"),
    ("cli/src/commands/report.rs", "POINTS"),
    ("cli/src/commands/report.rs", "RANKS_DRAWN"),
    ("cli/src/commands/report_views.rs", "FEWER"),
    ("cli/src/commands/report_views.rs", "FINDINGS_MOST"),
    ("cli/src/commands/report_views.rs", "RANKS_MOST"),
    ("cli/src/commands/report_views.rs", "ROWS_PART"),
    ("cli/src/page/alerts.rs", "LINES"),
    ("cli/src/page/assert.rs", "VERDICT"),
    ("cli/src/page/diagnose.rs", "GROWTH"),
    ("cli/src/page/diagnose.rs", "LINES"),
    ("cli/src/page/diagnose.rs", "OTHERS"),
    ("cli/src/page/finding.rs", "BARS"),
    ("cli/src/page/finding.rs", "CALLERS_SHOWN"),
    ("cli/src/page/finding.rs", "LABEL"),
    ("answers/src/baseline.rs", "FILE_BYTES_MAX"),
    ("answers/src/baseline.rs", "VERSION"),
    ("cli/src/page/diff.rs", "SHOWN"),
    ("cli/src/page/finding.rs", "SHOWN"),
    ("cli/src/page/fit.rs", "ROWS"),
    ("cli/src/page/frag.rs", "HOLDERS_SHOWN"),
    ("cli/src/page/frag.rs", "SIZES_SHOWN"),
    ("cli/src/page/html/inlined.rs", "REASON_MAX"),
    ("cli/src/page/html/mod.rs", "BESIDE"),
    ("cli/src/page/html/mod.rs", "FILE_MAX"),
    ("cli/src/page/html/mod.rs", "PARTS"),
    ("cli/src/page/html/mod.rs", "STATIC_MAX"),
    ("cli/src/page/html/tables.rs", "RANKS_SHOWN"),
    ("cli/src/page/html/tables.rs", "SITES_SHOWN"),
    ("cli/src/page/html/verdict.rs", "CALLERS_SHOWN"),
    ("cli/src/page/html/verdict.rs", "FINDINGS_SHOWN"),
    ("cli/src/page/ledger.rs", "OWNERS_SHOWN"),
    ("cli/src/page/ledger.rs", "RANKS_SHOWN"),
    ("cli/src/page/markdown.rs", "FINDINGS_SHOWN"),
    ("cli/src/page/markdown.rs", "RANKS_SHOWN"),
    ("cli/src/page/markdown.rs", "SITES_SHOWN"),
    ("cli/src/page/oom.rs", "SITES_SHOWN"),
    ("cli/src/page/processes.rs", "SHOWN"),
    ("cli/src/page/prose.rs", "COLUMNS"),
    ("cli/src/page/ranks.rs", "SHOWN"),
    ("cli/src/page/report.rs", "CALLERS_SHOWN"),
    ("cli/src/page/report.rs", "GROWTH_SHOWN"),
    ("cli/src/page/sites.rs", "OWNERS_SHOWN"),
    ("cli/src/page/timeline.rs", "COLUMNS_DEFAULT"),
    ("cli/src/page/timeline.rs", "COLUMNS_MAX"),
    ("cli/src/page/timeline.rs", "PLOTS_SHOWN"),
    ("cli/src/page/timeline.rs", "TALL_PLOTS"),
    ("cli/src/page/timeline.rs", "TICK_COLUMNS"),
    ("cli/src/commands/mcp/explain.rs", "MEANINGS_MAX"),
    ("cli/src/commands/mcp/http.rs", "REQUEST_BYTES_MAX"),
    ("cli/src/commands/mcp/http.rs", "TOKEN_BYTES_MAX"),
    ("cli/src/commands/mcp/next.rs", "QUESTIONS_MAX"),
    ("cli/src/commands/mcp/room.rs", "ANSWER_BYTES_MAX"),
    ("cli/src/commands/mcp/room.rs", "ANSWER_TOKENS_MAX"),
    ("cli/src/commands/mcp/room.rs", "STRING_BYTES_MAX"),
    ("cli/src/commands/mcp/room.rs", "TEXT_BYTES_MAX"),
    ("cli/src/commands/mcp/room.rs", "TOKEN_BYTES"),
    ("cli/src/commands/mcp/server.rs", "CALLS_MAX"),
    ("cli/src/commands/mcp/server.rs", "FRAME_BYTES"),
    ("cli/src/commands/mcp/tools.rs", "POINTS"),
];

/// Types whose constants are numbers.
const NUMBERS: [&str; 12] = ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "f32", "f64"];

/// A source without its comments, its texts and its tests.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut code = String::new();
    let mut letters = source.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '/' if letters.peek() == Some(&'/') => while letters.next_if(|&next| next != '\n').is_some() {},
            '"' => {
                code.push_str("text");
                while let Some(inside) = letters.next() {
                    match inside {
                        '\\' => drop(letters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            _ => code.push(letter),
        }
    }
    code
}

/// A word as a number, without the brackets and signs around it: `(-0.05),` is 0.05, `MIB` is none.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric()).replace('_', "");
    let digits = NUMBERS.iter().find_map(|kind| word.strip_suffix(kind)).unwrap_or(&word);
    let starts = digits.starts_with(|letter: char| letter.is_ascii_digit());
    starts.then(|| digits.parse().ok())?
}

/// Whether a word at this place is a number that decides: 0 and 1 are not thresholds, `1 << 20` is one.
fn decides(words: &[&str], at: usize) -> bool {
    let Some(found) = words.get(at).and_then(|word| number(word)) else { return false };
    let shifted = words.get(at + 1) == Some(&"<<") || at > 1 && words.get(at - 1) == Some(&"<<");
    shifted || (found != 0.0 && found != 1.0)
}

/// Whether a comparison at this place is with a number, or with a multiple: `hit * 10 < steps`.
fn decides_beside(words: &[&str], at: usize) -> bool {
    let multiple = |sign: usize, factor: usize| words.get(sign) == Some(&"*") && decides(words, factor);
    let left = at > 0 && decides(words, at - 1) || at > 2 && multiple(at - 2, at - 3);
    left || decides(words, at + 1) || multiple(at + 2, at + 3)
}

/// The thresholds in a source: comparisons with numbers, ranges, patterns with numbers, and numeric constants.
/// Constants that `layout` accepts are left out, because they only limit what is shown.
fn thresholds(source: &str, layout: &dyn Fn(&str) -> bool) -> Vec<String> {
    let code = code(source);
    let words: Vec<&str> = code.split_whitespace().collect();
    let around = |at: usize| words[at.saturating_sub(4)..(at + 5).min(words.len())].join(" ");
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let compares = ["<", ">", "<=", ">=", "==", "!="].contains(word);
        let matched = ["=>", "|"].contains(words.get(at + 1).unwrap_or(&""));
        let range = word.contains("..") && (word.contains(".contains(") || matched);
        let range_of_numbers = range
            && word.split("..").any(|end| {
                let end =
                    end.rsplit(|letter: char| "(!&".contains(letter)).find(|part| !part.is_empty()).unwrap_or(end);
                decides(&[end.trim_start_matches('=').split(')').next().unwrap_or_default()], 0)
            });
        if compares && decides_beside(&words, at)
            || range_of_numbers
            || matched && word.starts_with(|letter: char| letter.is_ascii_digit()) && decides(&words, at)
        {
            found.push(around(at));
        }
        if let ("const" | "static", Some(name), Some(kind)) = (*word, words.get(at + 1), words.get(at + 2)) {
            let bytes = kind.contains('&');
            let kind = kind.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
            let (name, float) = (name.trim_end_matches(':'), kind.starts_with('f'));
            if NUMBERS.contains(&kind) && !bytes && (float || !layout(name)) {
                found.push(around(at));
            }
        }
    }
    found
}

#[test]
fn answers_and_pages_decide_nothing_by_numbers() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<_> = ["answers/src", "cli/src/page", "cli/src/commands"].map(|name| root.join(name)).into();
    let (mut found, mut named, mut looked_at) = (Vec::new(), BTreeSet::<&(&str, &str)>::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(&root).expect("below").to_string_lossy().into_owned();
            if ["answers/src/format", "answers/src/conditions.rs"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                looked_at += 1;
                let text = std::fs::read_to_string(&path).expect("a source file");
                let layout = |constant: &str| LAYOUT.contains(&(name.as_str(), constant));
                found.extend(thresholds(&text, &layout).into_iter().map(|place| format!("{name}: {place}")));
                let there = LAYOUT.iter().filter(|(file, _)| *file == name);
                named.extend(there.filter(|(_, constant)| text.contains(&format!("const {constant}:"))));
            }
        }
    }
    assert!(looked_at > 40, "{looked_at} files");
    assert!(
        found.is_empty(),
        "answers/ and cli/ show and decide nothing by numbers; these belong to analysis/:\n{}",
        found.join("\n")
    );
    assert_eq!(named.len(), LAYOUT.len(), "a name in the list that is in no file any more");
}

#[test]
fn a_threshold_in_the_command_line_is_seen() {
    let seen = |source: &str| !thresholds(source, &|name| name == "ROWS").is_empty();
    for threshold in [
        "if rank.growth_bytes > 1 << 20 {",
        "if ends.len() >= 3 {",
        "let odd = value > 0.25 * median;",
        "let odd = 3 * spread < distance;",
        "let odd = hit * 10 < steps;",
        "if share\n        >= 0.05\n {",
        "if (2..6).contains(&ends) {",
        "matches!(ends, 3.. | 0)",
        "match ends {\n    5 => warn(),",
        "const EPOCHS_MIN: usize = 3;",
        "const SHARES: [f64; 2] = [0.1, 0.2];",
        "const ROWS: f64 = 0.5;",
        "if severity != 2 {",
    ] {
        assert!(seen(threshold), "{threshold}");
    }
    for other in [
        "if ranks.len() > 1 && bytes > 0 {",
        "const ROWS: usize = 8;",
        "// more than > 3 are left out",
        "let text = \"share > 3 %\";",
        "let head = format!(\"{:>9} < 5\", \"\\\"BYTES > 2\");",
        "Vec<u8> -> Option<f64> => 7",
        "let shown = &ranks[..8];",
        "if worst.by <= worst.tolerance {",
        "let mib = bytes.div_ceil(1 << 20);",
        "#[cfg(test)]\nmod tests {\n assert!(x > 3);",
    ] {
        assert!(!seen(other), "{other}");
    }
}
