//! What may come into memctl: `deny.toml`, held against every package of the lock file that a build for its targets takes.
//!
//! Guarantees: each has a licence that the list allows (SPDX expressions), comes from the registry or from this repository,
//! is not one of the banned, and names a version. The file is what `cargo deny check bans licenses sources` reads as well;
//! this says the same in a second, without a tool that takes minutes to build.
//! Refuses: keys and values of `deny.toml` that it does not hold, so that none is believed to be held.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// The one registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What of `deny.toml` is a choice: the rest has one value, which [`Policy::read`] checks.
#[derive(Debug, Default)]
struct Policy {
    targets: Vec<String>,
    banned: BTreeSet<String>,
    licenses: BTreeSet<String>,
}

impl Policy {
    fn read(text: &str) -> Self {
        let read: toml::Table = text.parse().expect("deny.toml is TOML");
        let mut keys: BTreeMap<String, toml::Value> = BTreeMap::new();
        for (section, entries) in read {
            for (key, value) in
                entries.as_table().unwrap_or_else(|| panic!("deny.toml: {section} is no section")).clone()
            {
                keys.insert(format!("{section}.{key}"), value);
            }
        }
        let mut take = |key: &str| keys.remove(key).unwrap_or_else(|| panic!("deny.toml: {key} is missing"));
        let field = |value: &toml::Value, name: &str| value.get(name).and_then(toml::Value::as_str).map(str::to_owned);
        let names = |value: toml::Value, name: &str| -> Vec<String> {
            let all = value.as_array().cloned().expect("a list");
            all.iter()
                .map(|each| field(each, name).unwrap_or_else(|| panic!("deny.toml: {each} has no {name}")))
                .collect()
        };
        let policy = Self {
            targets: names(take("graph.targets"), "triple"),
            banned: names(take("bans.deny"), "name").into_iter().collect(),
            licenses: take("licenses.allow").try_into().expect("a list of licences"),
        };
        for (key, held) in [
            ("bans.multiple-versions", "allow".into()),
            ("bans.wildcards", "deny".into()),
            ("bans.allow-wildcard-paths", true.into()),
            ("licenses.version", 2.into()),
            ("sources.unknown-registry", "deny".into()),
            ("sources.unknown-git", "deny".into()),
        ] {
            assert_eq!(take(key), held, "deny.toml: {key} has another value than this test holds");
        }
        assert!(keys.is_empty(), "deny.toml has keys that this test does not hold: {keys:?}");
        policy
    }

    /// What is wrong with the packages of `cargo metadata`, a sentence each.
    fn broken(&self, metadata: &Value) -> Vec<String> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let used: BTreeSet<String> = list(&metadata["resolve"]["nodes"])
            .iter()
            .filter_map(|node| node["id"].as_str().map(str::to_owned))
            .collect();
        assert!(!used.is_empty(), "cargo metadata resolves nothing");
        let packages = list(&metadata["packages"]);
        let used = packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)));
        used.flat_map(|package| self.broken_by(package)).collect()
    }

    fn broken_by(&self, package: &Value) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let mut broken = Vec::new();
        if self.banned.contains(&text(&package["name"])) {
            broken.push(format!("{name} is banned"));
        }
        if !package["source"].is_null() && package["source"] != REGISTRY {
            broken.push(format!("{name} comes from {}", package["source"]));
        }
        match package["license"].as_str().map(|license| (license, allows(license, &self.licenses))) {
            Some((_, Ok(true))) => {}
            Some((license, Ok(false))) => broken.push(format!("{name} is licensed {license}, which is not allowed")),
            Some((license, Err(why))) => broken.push(format!("{name} is licensed {license:?}: {why}")),
            None => broken.push(format!("{name} does not say its licence")),
        }
        let private = package["publish"].as_array().is_some_and(Vec::is_empty);
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["req"] == "*" && !(private && dependency["path"].is_string()) {
                broken.push(format!("{name} takes any version of {}", dependency["name"]));
            }
        }
        broken
    }
}

/// Whether an SPDX expression can be met by allowed licences alone; an error where it is none. `/` is an old `OR`.
fn allows(expression: &str, allowed: &BTreeSet<String>) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any(&mut rest, allowed)?;
    if rest.is_empty() { Ok(met) } else { Err(format!("not understood from {:?} on", rest.join(" "))) }
}

fn any(rest: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool, String> {
    let mut met = all(rest, allowed)?;
    while let Some(("OR", after)) = rest.split_first().map(|(word, after)| (*word, after)) {
        *rest = after;
        met |= all(rest, allowed)?;
    }
    Ok(met)
}

fn all(rest: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool, String> {
    let mut met = one(rest, allowed)?;
    while let Some(("AND", after)) = rest.split_first().map(|(word, after)| (*word, after)) {
        *rest = after;
        met &= one(rest, allowed)?;
    }
    Ok(met)
}

fn one(rest: &mut &[&str], allowed: &BTreeSet<String>) -> Result<bool, String> {
    let Some((word, after)) = rest.split_first() else { return Err("it ends too early".into()) };
    *rest = after;
    match *word {
        "(" => {
            let met = any(rest, allowed)?;
            let Some((&")", after)) = rest.split_first() else { return Err("a bracket is not closed".into()) };
            *rest = after;
            Ok(met)
        }
        ")" | "AND" | "OR" | "WITH" => Err(format!("{word} stands where a licence should")),
        license => match rest {
            ["WITH", exception, after @ ..] => {
                *rest = after;
                Ok(allowed.contains(&format!("{license} WITH {exception}")))
            }
            _ => Ok(allowed.contains(license)),
        },
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository")
}

fn policy() -> Policy {
    Policy::read(&std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml is read"))
}

#[test]
fn what_comes_in_is_allowed() {
    let policy = policy();
    assert!(!policy.targets.is_empty(), "deny.toml names no target");
    for target in &policy.targets {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target])
            .current_dir(root())
            .output()
            .expect("cargo metadata runs");
        assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let broken = policy.broken(&serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON"));
        assert!(broken.is_empty(), "{target}:\n{}", broken.join("\n"));
    }
}

#[test]
fn what_is_not_allowed_is_named() {
    let policy = policy();
    let sound =
        json!({"id": "a", "name": "a", "version": "1.0.0", "source": REGISTRY, "license": "MIT", "dependencies": []});
    let broken = |change: Value| {
        let mut package = sound.clone();
        change.as_object().unwrap().iter().for_each(|(key, value)| package[key] = value.clone());
        policy.broken(&json!({"packages": [package], "resolve": {"nodes": [{"id": "a"}]}}))
    };
    assert_eq!(broken(json!({})), [""; 0]);
    assert_eq!(broken(json!({"name": "openssl"})), ["openssl 1.0.0 is banned"]);
    assert_eq!(broken(json!({"license": "GPL-3.0-only"})), ["a 1.0.0 is licensed GPL-3.0-only, which is not allowed"]);
    assert_eq!(broken(json!({"license": null})), ["a 1.0.0 does not say its licence"]);
    assert!(broken(json!({"license": "MIT OR"}))[0].contains("it ends too early"));
    assert!(broken(json!({"source": "git+https://example.org/a"}))[0].contains("comes from"));
    let any = json!([{"name": "b", "req": "*", "path": null}]);
    assert_eq!(broken(json!({"dependencies": any})), ["a 1.0.0 takes any version of \"b\""]);
    let ours = json!([{"name": "b", "req": "*", "path": "/b"}]);
    assert_eq!(broken(json!({"dependencies": ours})).len(), 1, "a package that may be published");
    assert_eq!(broken(json!({"dependencies": ours, "publish": []})), [""; 0]);
    // What no target takes is nobody's concern.
    let unused = json!({"packages": [{"id": "b", "name": "openssl"}, sound], "resolve": {"nodes": [{"id": "a"}]}});
    assert_eq!(policy.broken(&unused), [""; 0]);
}

#[test]
fn licences_are_expressions() {
    let allowed = ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for (expression, met) in [
        ("MIT", true),
        ("GPL-2.0", false),
        ("MIT/GPL-2.0", true),
        ("GPL-2.0 OR MIT", true),
        ("GPL-2.0 AND MIT", false),
        ("MIT AND (GPL-2.0 OR ISC)", true),
        ("MIT OR GPL-2.0 AND GPL-3.0", true),
        ("(MIT OR GPL-2.0) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ("MIT WITH LLVM-exception", false),
    ] {
        assert_eq!(allows(expression, &allowed), Ok(met), "{expression}");
    }
    for expression in ["", "MIT MIT", "(MIT", "MIT)", "AND MIT", "MIT OR OR MIT", "MIT WITH"] {
        assert!(allows(expression, &allowed).is_err(), "{expression}");
    }
}

#[test]
#[should_panic(expected = "keys that this test does not hold")]
fn a_key_that_is_not_held_is_refused() {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml is read");
    Policy::read(&format!("{text}\n[advisories]\nyanked = \"deny\"\n"));
}
