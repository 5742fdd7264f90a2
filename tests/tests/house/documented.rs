//! Compares docs/ with the program: every flag, key, variable and field of JSON is documented on its page, and
//! everything that is documented exists.
//!
//! The program itself shows what exists: `--help`, the errors of the readers of its files, `-o json`. Variables are
//! found in the sources, because they are literals there.
//! (Over 400 lines: one reader for each kind of documented item.)

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memctl_agent::{AgentConfig, Daemon};
use memctl_daemon::alerts::Rules;
use memctl_daemon::config;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::https::{Port, address};
use memctl_tests::recordings::folder;
use memctl_tests::streaming::until;
use memctl_tests::trainer::{Trainer, list_holds};
use memctl_tests::{commands_in, jobs, memctl, run, stdout};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The texts in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The lines of a page's section, including its subsections, without code blocks.
fn section<'t>(text: &'t str, heading: &str) -> &'t str {
    let start = text.find(&format!("## {heading}\n")).unwrap_or_else(|| panic!("no section {heading:?}"));
    let rest = &text[start + 3..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

// --- flags --------------------------------------------------------------------------------------

/// The flags in a help text: `--name`, at the beginning of a line or after a short one.
fn flags(help: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in help.lines() {
        let line = line.trim_start();
        let long = line.strip_prefix('-').and_then(|rest| rest.get(1..)).and_then(|rest| rest.strip_prefix(", "));
        if let Some(flag) = long.unwrap_or(line).strip_prefix("--") {
            found.insert(format!("--{}", flag.split([' ', '[', '<']).next().unwrap_or_default()));
        }
    }
    found
}

/// Every command, `alerts silence` among them, with its flags.
fn program() -> BTreeMap<String, BTreeSet<String>> {
    let help = |words: &[&str]| run(memctl().args(words).arg("--help"));
    let mut found = BTreeMap::new();
    for command in commands_in(&help(&[])) {
        let text = help(&[&command]);
        for below in commands_in(&text) {
            found.insert(format!("{command} {below}"), flags(&help(&[&command, &below])));
        }
        found.insert(command, flags(&text));
    }
    found
}

/// The rows of tables of a section: cells without their backquotes.
fn rows(section: &str) -> Vec<Vec<String>> {
    let rows = section.lines().filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()).collect()
}

/// The long flags that a cell names: `-o, --output FORMAT`.
fn named(cell: &str) -> Option<String> {
    let flag = cell.split([' ', ',']).find(|word| word.starts_with("--"))?;
    Some(flag.to_owned())
}

#[test]
fn every_flag_stands_in_configuration_and_no_other() {
    let (text, program) = (page("configuration.md"), program());
    assert!(program.len() > 20 && program["query"].contains("--fail-on"), "{:?}", program.keys());
    let first = |heading: &str, cell: usize| -> BTreeSet<String> {
        rows(section(&text, heading)).iter().filter_map(|row| named(row.get(cell)?)).collect()
    };
    let (global, narrow) = (first("Flags of every command", 0), first("Flags that select a part of a job", 0));
    let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows(section(&text, "Flags of single commands")) {
        if let Some(flag) = named(&row[1]) {
            documented.entry(row[0].clone()).or_default().insert(flag);
        }
    }
    documented.insert("daemon".into(), first("The daemon", 1));
    // A program that was built without the feature `parquet` lacks this flag of it.
    let help = stdout(&memctl().args(["export", "-h"]).output().unwrap());
    if !help.contains("parquet") {
        documented.get_mut("export").expect("flags of export").remove("--events");
    }
    for (command, flags) in &program {
        let own = documented.remove(command).unwrap_or_default();
        let selects = flags.contains("--epoch");
        let missing: Vec<_> = flags
            .iter()
            .filter(|flag| !(own.contains(*flag) || global.contains(*flag) || selects && narrow.contains(*flag)))
            .collect();
        assert!(missing.is_empty(), "docs/configuration.md does not name {missing:?} of `memctl {command}`");
        let invented: Vec<_> = own.iter().filter(|flag| !flags.contains(*flag)).collect();
        assert!(
            invented.is_empty(),
            "docs/configuration.md names {invented:?}, which `memctl {command}` does not have"
        );
        let lost: Vec<_> = narrow.iter().filter(|flag| selects && !flags.contains(*flag)).collect();
        assert!(lost.is_empty(), "docs/configuration.md names {lost:?} for all questions, not for `memctl {command}`");
    }
    assert!(documented.is_empty(), "docs/configuration.md names flags of commands that do not exist: {documented:?}");
    let whole = stdout(&memctl().arg("--help").output().unwrap());
    let strange: Vec<_> = global.iter().filter(|flag| !flags(&whole).contains(*flag)).collect();
    assert!(strange.is_empty(), "docs/configuration.md names {strange:?} for every command");
}

// --- keys ---------------------------------------------------------------------------------------

/// The keys that a reader lists in its error for an unknown key.
fn known(error: &str, behind: &str) -> BTreeSet<String> {
    let said = error.split(behind).nth(1).unwrap_or_else(|| panic!("the error names no keys: {error}"));
    let line = said.lines().next().unwrap_or_default();
    line.split(", ").map(|key| key.trim().trim_start_matches("one of ").replace('`', "")).collect()
}

/// The keys in a page's table whose first heading is this.
fn keys(text: &str, heading: &str) -> BTreeSet<String> {
    let start = text.find(heading).unwrap_or_else(|| panic!("no table {heading:?}"));
    let table: Vec<&str> = text[start..].lines().take_while(|line| line.starts_with('|')).collect();
    table.iter().skip(2).flat_map(|row| quoted(row.split('|').nth(1).unwrap_or_default())).collect()
}

#[test]
fn every_key_of_the_daemons_file_stands_in_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memctl.toml");
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        known(&config::from_file(&file).unwrap_err().to_string(), "expected ")
    };
    let mut there = read("nothing = 1");
    let mut listed = keys(&page("configuration.md"), "| key in the file |");
    assert!(there.contains("retain_age"), "{there:?}");
    for table in ["alerts", "access", "http", "tls"] {
        assert!(there.remove(table), "{there:?}");
        there.extend(read(&format!("[{table}]\nnothing = 1")));
        assert!(listed.remove(&format!("[{table}]")), "the table `[{table}]` is named: {listed:?}");
    }
    assert_eq!(there, listed);
}

/// A key with its documented default as TOML. A default in words, such as `no limit`, has no backquotes.
fn default_setting(row: &str) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [key, _, _, default, _] = cells.as_slice() else { return None };
    let value = match default.strip_prefix('`').and_then(|value| value.strip_suffix('`')) {
        Some(value) => format!("{value:?}"),
        None if default.parse::<u64>().is_ok() => (*default).to_owned(),
        None => return None,
    };
    let mut words = key.split('`').skip(1).step_by(2);
    let key = words.next()?;
    Some(words.next().map_or_else(|| format!("{key} = {value}\n"), |table| format!("{table}\n{key} = {value}\n")))
}

#[test]
fn every_documented_default_of_the_daemon_can_be_set() {
    let text = page("configuration.md");
    let settings: Vec<String> = section(&text, "The daemon").lines().filter_map(default_setting).collect();
    assert!(settings.len() > 8, "{settings:?}");
    let defaults = config::Defaults { data_dir: Some("/d".into()), socket: Some("/s".into()) };
    for setting in settings {
        let layer = config::from_text(&setting, "a file").unwrap_or_else(|error| panic!("{setting}: {error}"));
        // These take effect only together with other keys.
        if !["[tls]", "socket_mode"].iter().any(|begin| setting.starts_with(begin)) {
            config::resolve(&[("a file".to_owned(), layer)], &defaults)
                .unwrap_or_else(|error| panic!("{setting}: {error}"));
        }
    }
}

#[test]
fn every_key_of_a_rules_file_stands_in_alerts() {
    let read = |text: &str| known(&Rules::parse(text, "here").unwrap_err().to_string(), "valid keys: ");
    let text = page("alerts.md");
    let mut top = read("nothing = 1");
    assert_eq!(top, keys(&text, "| key, top level |"));
    assert!(top.remove("rule"));
    assert_eq!(read("[[rule]]\nnothing = 1"), keys(&text, "| key of a `[[rule]]` |"));
    let mut receiver = BTreeSet::new();
    for kind in ["webhook", "alertmanager", "command"] {
        receiver.extend(read(&format!("[[receiver]]\nname = \"r\"\ntype = \"{kind}\"\nnothing = 1")));
    }
    assert_eq!(receiver, keys(&text, "| key of a `[[receiver]]` |"));
    let rules: BTreeSet<String> = Rules::default().rules.iter().map(|rule| rule.name.clone()).collect();
    assert_eq!(rules, keys(&text, "| rule | fires when |"));
}

// --- paths --------------------------------------------------------------------------------------

/// Every file and folder below `folder`, relative to `root`, except built and hidden ones.
fn tree(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with('.') || ["target", "__pycache__", "node_modules"].contains(&name.as_str()) {
            continue;
        }
        found.insert(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
        if entry.file_type().unwrap().is_dir() {
            tree(root, &path, found);
        }
    }
}

/// The paths of sources that a page names: in backquotes or as links, relative to the root or to some folder.
fn paths(text: &str, there: &BTreeSet<String>) -> BTreeSet<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links = links.map(|link| link.trim_start_matches("../").to_owned());
    let is_path = |name: &String| {
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
        let from_root = name.split('/').next().is_some_and(|first| there.contains(first));
        plain && name.contains('/') && (from_root || [".rs", ".py", ".proto"].iter().any(|end| name.ends_with(end)))
    };
    quoted(text).into_iter().chain(links).filter(is_path).collect()
}

#[test]
fn every_source_that_a_page_names_is_there() {
    let (root, mut there) = (root(), BTreeSet::new());
    tree(&root, &root, &mut there);
    let mut pages = vec!["ARCHITECTURE.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    pages.extend(there.iter().filter(|path| path.starts_with("docs/") && path.ends_with(".md")).cloned());
    let mut named = 0;
    for page in &pages {
        for path in paths(&std::fs::read_to_string(root.join(page)).unwrap(), &there) {
            let (path, below) = (path.trim_end_matches('/'), format!("/{}", path.trim_end_matches('/')));
            let is_there = there.iter().any(|known| known == path || known.ends_with(&below));
            assert!(is_there, "{page} names {path}, which does not exist");
            named += 1;
        }
    }
    assert!(pages.len() > 5 && named > 20, "{named} paths on {pages:?}");
}

// --- variables ----------------------------------------------------------------------------------

/// The folders with the sources of programs for users.
const SOURCES: [&str; 6] =
    ["answers/src", "cli/src", "daemon/src", "agent/src", "agent/python/src", "agent/python/memctl_agent"];
/// The text before a variable's name where the variable is read.
const READS: [&str; 10] = [
    "env::var(\"",
    "env::var_os(\"",
    "environment(\"",
    "variable(\"",
    "set(environment, \"",
    "environ.get(\"",
    "environ[\"",
    "env = \"",
    "absolute(\"",
    "number(environment, \"",
];
/// Variables of cargo and of the system that are only passed on.
const PASSED_ON: [&str; 4] = ["CARGO_MANIFEST_DIR", "CARGO_PKG_VERSION", "PATH", "PYTHONPATH"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, found);
        } else if (name.ends_with(".rs") || name.ends_with(".py")) && !name.contains("test") {
            found.push(path);
        }
    }
}

fn is_variable(name: &str) -> bool {
    name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The variables that a source reads.
fn variables(text: &str) -> BTreeSet<String> {
    // (Unit tests are last in a file.)
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    let literals = || text.split('"').skip(1).step_by(2);
    // (The prefix alone is not a name.)
    found.extend(literals().filter(|name| name.starts_with("MEMCTL_") && !name.ends_with('_')).map(str::to_owned));
    for read in READS {
        found.extend(text.split(read).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    // Tables of launchers' variables: ("RANK", Source::Torchrun).
    let before = text.split("\", Source::").collect::<Vec<_>>();
    found.extend(before.iter().rev().skip(1).filter_map(|rest| rest.rsplit('"').next()).map(str::to_owned));
    found.retain(|name| is_variable(name) && !PASSED_ON.contains(&name.as_str()));
    found
}

#[test]
fn variables_are_found() {
    let text = "a(\"x\"); env::var(\"ONE\"); const T: &str = \"MEMCTL_TWO\"; (\"THREE\", Source::Memctl),\n";
    let expected = ["MEMCTL_TWO", "ONE", "THREE"].map(str::to_owned);
    assert_eq!(variables(text), BTreeSet::from(expected));
}

#[test]
fn every_variable_stands_in_configuration_and_no_other_of_memctls_own() {
    let (mut files, mut there) = (Vec::new(), BTreeSet::new());
    SOURCES.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    for file in &files {
        let found = variables(&std::fs::read_to_string(file).unwrap());
        // (Those of the tests are in CONTRIBUTING.md.)
        let of_tests = |name: &String| name.starts_with("MEMCTL_TEST_") || name == "MEMCTL_REGENERATE";
        there.extend(found.into_iter().filter(|name| !of_tests(name)));
    }
    assert!(there.contains("MEMCTL_LOG") && there.contains("RANK") && there.len() > 40, "{there:?}");
    let named = quoted(&page("configuration.md"));
    let missing: Vec<_> = there.iter().filter(|name| !named.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/configuration.md does not name {missing:?}");
    let invented: Vec<_> = named.iter().filter(|name| name.starts_with("MEMCTL_") && !there.contains(*name)).collect();
    assert!(invented.is_empty(), "docs/configuration.md names {invented:?}, which nothing reads");
}

// --- JSON ---------------------------------------------------------------------------------------

/// The shapes of docs/json.md: by name, each field with its type.
struct Shapes(BTreeMap<String, BTreeMap<String, String>>);

impl Shapes {
    fn read(text: &str) -> Self {
        let (mut shapes, mut name) = (BTreeMap::<String, BTreeMap<String, String>>::new(), None);
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("**").and_then(|rest| rest.strip_suffix("**")) {
                assert!(!shapes.contains_key(title), "docs/json.md describes {title} twice");
                shapes.insert(title.to_owned(), BTreeMap::new());
                name = Some(title.to_owned());
            }
            let (Some(row), Some(name)) = (line.strip_prefix("| `"), &name) else { continue };
            let (field, rest) = row.split_once("` | ").expect("a field");
            let shape = rest.split(" | ").next().expect("a type");
            shapes.get_mut(name).unwrap().insert(field.to_owned(), shape.to_owned());
        }
        Self(shapes)
    }

    /// The shape that a command prints: the first of its section.
    fn of_command(text: &str, command: &str) -> String {
        let section = section(text, &format!("`memctl {command}`"));
        section.split("**").nth(1).unwrap_or_else(|| panic!("no shape for {command}")).to_owned()
    }

    /// Collects the reasons why a value does not have a type.
    fn faults(&self, value: &serde_json::Value, shape: &str, path: &str, found: &mut BTreeSet<String>) {
        use serde_json::Value;
        let shape = shape.strip_prefix('(').and_then(|shape| shape.strip_suffix(')')).unwrap_or(shape);
        if let Some(shape) = shape.strip_suffix(" or null") {
            if !value.is_null() {
                self.faults(value, shape, path, found);
            }
            return;
        }
        let is_right = match (shape, value) {
            ("string", Value::String(_)) | ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => true,
            ("integer", Value::Number(number)) => number.is_i64() || number.is_u64(),
            ("object", Value::Object(_)) => true,
            ("object of strings", Value::Object(object)) => object.values().all(Value::is_string),
            (list, Value::Array(values)) if list.starts_with("list of ") => {
                values.iter().for_each(|value| self.faults(value, &list[8..], &format!("{path}[]"), found));
                true
            }
            (name, Value::Object(object)) => match self.0.get(name) {
                Some(fields) => {
                    let unknown = object.keys().filter(|key| !fields.contains_key(*key));
                    found.extend(unknown.map(|key| format!("{path}.{key} is not in {name}")));
                    for (field, shape) in fields {
                        match object.get(field) {
                            Some(value) => self.faults(value, shape, &format!("{path}.{field}"), found),
                            None => drop(found.insert(format!("{path}.{field} is in {name} and was not printed"))),
                        }
                    }
                    true
                }
                None => false,
            },
            _ => false,
        };
        if !is_right {
            found.insert(format!("{path} is no {shape}: {}", value.to_string().chars().take(80).collect::<String>()));
        }
    }
}

#[test]
fn json_is_what_its_page_says() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite_with(store.path(), free_port(), &["--http-listen", "http://127.0.0.1:0"]);
    let imported = ["gpt_val_graph_leak", "oom_by_fragmentation"];
    for name in imported {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
    }
    let ask = |line: &str| -> serde_json::Value {
        let output = memctl().args(line.split(' ')).args(["-o", "json", "--daemon", &daemon.url]).output().unwrap();
        let text = stdout(&output);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("memctl {line}: {error}: {text}"))
    };
    run(memctl().args(["alerts", "silence", "--job", "j", "--daemon", &daemon.url]));
    let mut lines: Vec<(&str, String)> = ["jobs", "alerts", "alerts silences", "alerts test", "alerts rules", "doctor"]
        .map(|line| (line, line.to_owned()))
        .to_vec();
    for job in imported {
        for verb in ["query", "leaks", "ranks", "frag", "oom", "diagnose", "timeline", "sites"] {
            lines.push((verb, format!("{verb} --job {job}")));
        }
        lines.push(("ledger", format!("ledger --job {job} --blocks --rank 0")));
        lines.push(("what-if", format!("what-if --job {job} --limit 3GiB")));
        lines.push(("need", format!("need --job {job} --size 1500MiB")));
        lines.push(("diff", format!("diff oom_by_fragmentation {job}")));
        lines.push(("assert", format!("assert --job {job} no-leak peak<1GiB")));
    }
    for size in ["4", "8"] {
        let file = root().join(format!("replay/tests/data/fit_resnet50_amp_b{size}/rank0.pickle.zst"));
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", size]).arg(file));
    }
    lines.push(("fit", "fit --job 4=4 --job 8=8 --at 16 --device-memory 1GiB".to_owned()));
    for change in ["--without fit.py:17", "--checkpoint all", "--under 700MiB", "--at 16"] {
        lines.push(("fit", format!("fit --job 8=8 {change}")));
    }
    let text = page("json.md");
    let (shapes, mut found) = (Shapes::read(&text), BTreeSet::new());
    for (command, line) in &lines {
        shapes.faults(&ask(line), &Shapes::of_command(&text, command), &format!("memctl {line}: "), &mut found);
    }
    // Responses that only HTTP has.
    let port = Port::plain(address(&daemon.http[0]));
    for (path, shape) in [
        ("caller", "Caller"),
        ("jobs/gpt_val_graph_leak/flame?rank=0", "Flame"),
        ("jobs/gpt_val_graph_leak/flame?rank=0&from=epoch:0&at=epoch:1", "Flame"),
        ("jobs/gpt_val_graph_leak/sparkline", "Sparkline"),
        ("jobs/gpt_val_graph_leak/heat", "Heat"),
        ("jobs/gpt_val_graph_leak/classes?rank=0", "Classes"),
        ("jobs/gpt_val_graph_leak/anatomy?rank=0", "Anatomy"),
        ("jobs/gpt_val_graph_leak/profile", "Profile"),
        ("jobs/gpt_val_graph_leak/step?rank=0", "StepMemory"),
        ("jobs/oom_by_fragmentation/step?rank=0&at=end", "StepMemory"),
        ("jobs/oom_by_fragmentation/what-if?rank=0", "WhatIf"),
        ("jobs/4/fit?rank=0&size=4&limit=1073741824", "Fit"),
        // (Its head is one line; numbers follow.)
        ("jobs/gpt_val_graph_leak/tiles?rank=0&level=50&index=2", "TileHead"),
        ("jobs/oom_by_fragmentation/blocks?rank=0&at=end", "Blocks"),
    ] {
        let request = format!("GET /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        let answer = port.send(request.as_bytes()).unwrap();
        let line = answer.body.lines().next().unwrap_or_default();
        let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.body));
        shapes.faults(&value, shape, &format!("{path}: "), &mut found);
    }
    // Responses that need a running process.
    let to = Daemon::Address(daemon.url.as_str().into());
    let mut trainer = Trainer::start(AgentConfig::new(jobs::session("live", 0), to));
    trainer.leak();
    let mut held = None;
    until("the process answers", || {
        let mut ask = memctl();
        ask.args(["holders", "--job", "live", "--site", "keep", "-o", "json", "--daemon", &daemon.url]);
        let output = trainer.meanwhile(&mut ask, |trainer, asked| trainer.answer(asked.ask, &list_holds(asked)));
        held = serde_json::from_slice(&output.stdout).ok();
        held.is_some()
    });
    let held = held.unwrap_or_default();
    shapes.faults(&held, &Shapes::of_command(&text, "holders"), "memctl holders: ", &mut found);
    let mut leaks = serde_json::Value::Null;
    until("the answer is part of its finding", || {
        leaks = ask("leaks --job live");
        leaks["findings"][0]["holders"].is_object()
    });
    shapes.faults(&leaks, &Shapes::of_command(&text, "leaks"), "memctl leaks --job live: ", &mut found);
    trainer.end();
    // `check` reads the store itself, without the daemon.
    let checked = run(memctl().args(["check", "--deep", "-o", "json", "--data-dir"]).arg(store.path()));
    let checked = serde_json::from_str(&checked).unwrap();
    shapes.faults(&checked, &Shapes::of_command(&text, "check"), "memctl check: ", &mut found);
    assert!(
        found.is_empty(),
        "docs/json.md and the program differ:\n{}",
        found.into_iter().collect::<Vec<_>>().join("\n")
    );
}
