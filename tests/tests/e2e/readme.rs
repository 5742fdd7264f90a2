//! The commands of README.md and then of docs/, run unchanged and in order, by a user with a fresh clone. Each must
//! succeed. The first text block of README equals the output of the demo.
//!
//! Blocks of `console` (lines that begin with `$ `) and of `sh` are commands; other pages have none. Commands that
//! build and test are left out; the built program replaces `cargo run --release --`. A command that ends with `&` runs
//! until the last command has ended.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memctl_tests::daemon::free_port;
use memctl_tests::{memctl, memctl_path, run, stderr};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The commands of a Markdown text, continued lines joined.
fn commands(text: &str) -> Vec<String> {
    let (mut found, mut block) = (Vec::new(), None);
    let text = text.replace("\\\n", " ");
    for line in text.lines() {
        match (block, line.trim().strip_prefix("```")) {
            (None, Some(language)) => block = Some(language.trim()),
            (Some(_), Some(_)) => block = None,
            (Some("console"), None) => found.extend(line.trim().strip_prefix("$ ").map(str::to_owned)),
            (Some("sh" | "bash"), None) if !line.trim().is_empty() && !line.trim().starts_with('#') => {
                found.push(line.trim().to_owned());
            }
            _ => {}
        }
    }
    found
}

/// The command as the built program runs it; `None` for commands that build and test.
fn runnable(command: &str, port: u16) -> Option<String> {
    let builds = ["./test", "cargo install", "cargo build", "cargo test", "cargo bench", "git clone", "cd "];
    if builds.iter().any(|start| command.starts_with(start)) {
        return None;
    }
    // `tests/readers/check` runs these with Go's own reader.
    if command.starts_with("go tool ") {
        return None;
    }
    let command = command.replace("cargo run --release --", "memctl").replace("./target/release/memctl", "memctl");
    // The documented port may be in use.
    let mut parts = command.split("127.0.0.1:");
    let mut moved = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        moved.push_str(&format!("127.0.0.1:{port}{}", part.trim_start_matches(|c: char| c.is_ascii_digit())));
    }
    Some(moved)
}

/// A home folder and a clone: the program on the path, the repository's data below the working folder.
struct Clone {
    folder: tempfile::TempDir,
}

impl Clone {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "clone", "run"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink(memctl_path(), folder.path().join("bin/memctl")).unwrap();
        std::os::unix::fs::symlink(root().join("tests"), folder.path().join("clone/tests")).unwrap();
        Self { folder }
    }

    fn shell(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        // The harness's command has a clean environment; a shell in that environment is needed here.
        let clean = memctl();
        let mut shell = Command::new("sh");
        for (name, value) in clean.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.args(["-c", line]).current_dir(self.folder.path().join("clone"));
        shell.env("HOME", self.folder.path().join("home")).env_remove("XDG_DATA_HOME");
        shell.env("XDG_RUNTIME_DIR", self.folder.path().join("run"));
        shell.env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()));
        shell
    }
}

/// A command that runs in the background; killed when a test fails.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_background(mut shell: Command, line: &str) -> Background {
    let mut child = Background(shell.stdout(Stdio::piped()).spawn().unwrap());
    let mut first = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("listens on"), "{line}: {first:?}");
    child
}

/// The pages below a folder, README.md first, without built or downloaded folders.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !matches!(name.as_str(), "target" | "node_modules") {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The pages whose commands are run: README.md, then docs/ in the order of their names.
fn pages_with_commands() -> Vec<PathBuf> {
    let mut docs = Vec::new();
    pages(&root().join("docs"), &mut docs);
    docs.sort();
    docs.insert(0, root().join("README.md"));
    docs
}

#[test]
fn no_other_page_has_commands() {
    let (run, mut all) = (pages_with_commands(), Vec::new());
    pages(&root(), &mut all);
    assert!(run.len() > 3 && all.len() > run.len(), "{run:?}");
    for page in all.iter().filter(|page| !run.contains(page)) {
        let found = commands(&std::fs::read_to_string(page).unwrap());
        assert!(found.is_empty(), "{}: {found:?} is not run: make it a block of `text`", page.display());
    }
}

#[test]
fn the_readme_fits_two_screens_and_begins_with_what_the_demo_prints() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 120, "README.md has {} lines", text.lines().count());
    let block = text.split("```").nth(1).and_then(|block| block.strip_prefix("text\n")).expect("a first block");
    let shown: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    assert!(shown.len() > 5 && shown.iter().any(|line| line.starts_with("!  ")), "no finding: {block}");
    let mut demo = memctl();
    demo.arg("demo").envs([("COLUMNS", "120"), ("LC_ALL", "C.UTF-8"), ("NO_COLOR", "1"), ("TZ", "UTC")]);
    let printed = run(&mut demo);
    let mut lines = printed.lines();
    for line in shown {
        assert!(lines.any(|printed| printed.trim_end() == line), "the demo does not print, in this order: {line}");
    }
}

#[test]
fn every_command_of_the_readme_and_of_docs_works() {
    let text: String = pages_with_commands().iter().map(|page| std::fs::read_to_string(page).unwrap() + "\n").collect();
    let (clone, port) = (Clone::new(), free_port());
    let lines: Vec<String> = commands(&text).iter().filter_map(|line| runnable(line, port)).collect();
    let ours = lines.iter().filter(|line| line.starts_with("memctl ")).count();
    assert!(ours >= 5, "only {ours} commands of memctl were found");
    let mut running = Vec::new();
    for line in &lines {
        if let Some(line) = line.strip_suffix('&') {
            running.push(in_background(clone.shell(&format!("exec {line}")), line));
            continue;
        }
        let output = clone.shell(line).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "$ {line}\n{}", stderr(&output));
        // A command prints something or writes a file (`-f`).
        let said = !output.stdout.is_empty() || !output.stderr.is_empty();
        assert!(said || line.contains(" -f "), "$ {line} said nothing");
    }
    for mut child in running {
        let status = Command::new("kill").arg(child.0.id().to_string()).status().unwrap();
        assert!(status.success(), "what was started in the background still runs at the end");
        assert_eq!(child.0.wait().unwrap().code(), Some(0), "it drains on SIGTERM");
    }
}

#[test]
fn commands_are_found() {
    let text =
        "a\n```console\n$ memctl a \\\n  --b\nits output\n```\n```sh\n# no\nmemctl c &\n```\n```toml\nx = 1\n```\n";
    assert_eq!(commands(text), ["memctl a    --b", "memctl c &"]);
    assert_eq!(runnable("cargo run --release -- demo", 1).unwrap(), "memctl demo");
    let moved = runnable("memctl jobs --daemon http://127.0.0.1:7718 -q", 9).unwrap();
    assert_eq!(moved, "memctl jobs --daemon http://127.0.0.1:9 -q");
    assert_eq!(runnable("./test", 1), None);
}
