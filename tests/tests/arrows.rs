//! The import arrows of ARCHITECTURE.md: which crate may know which, and what none may know. A broken one fails with its sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Crate, what of memctl it may import, what it must never import (normal dependencies), and the sentence.
const RULES: [(&str, &[&str], &[&str], &str); 6] = [
    (
        "memctl-model",
        &[],
        &["serde", "prost", "sqlx", "tokio", "tonic", "bytes"],
        "model/ holds the nouns and imports std and thiserror only",
    ),
    (
        "memctl-proto",
        &["memctl-model"],
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
        "memctl-agent",
        &["memctl-model", "memctl-proto", "memctl-analysis"],
        &["sqlx"],
        "agent/ imports model, proto and analysis; never sqlx or the daemon",
    ),
    (
        "memctl-daemon",
        &["memctl-model", "memctl-proto", "memctl-analysis"],
        &["cudarc", "pyo3", "nvml-wrapper"],
        "daemon/ imports model, proto and analysis; never the agent, cudarc or pyo3",
    ),
    (
        "memctl",
        &["memctl-model", "memctl-proto", "memctl-analysis", "memctl-agent", "memctl-daemon"],
        &["sqlx"],
        "cli/ uses all others through their front doors, never sqlx directly",
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
