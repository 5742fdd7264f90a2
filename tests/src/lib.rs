//! The harness of memctl's end-to-end tests: real binaries, real sockets, real databases.
//!
//! Refuses to skip: if something is missing (the built binary, Postgres), the test fails and names the way to get it.

pub mod alertmanager;
pub mod attack;
pub mod bytes_codec;
pub mod certificates;
pub mod daemon;
pub mod fuzz;
pub mod http;
pub mod http2;
pub mod https;
pub mod jobs;
pub mod machine;
pub mod made;
pub mod otlp;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod raw;
pub mod recordings;
pub mod silent;
pub mod source;
pub mod stored;
pub mod streaming;
pub mod trainer;

use std::path::PathBuf;
use std::process::{Command, Output};

/// The built command line.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn memctl_path() -> PathBuf {
    if let Some(path) = std::env::var_os("MEMCTL_BIN") {
        return path.into();
    }
    let mut path = std::env::current_exe().expect("a test has a path");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("memctl");
    assert!(path.exists(), "{} is not there: run `cargo build -p memctl` first (./test does)", path.display());
    path
}

/// A command line without the `MEMCTL_` variables of this process, and without this user's own daemon. A test that
/// needs a data folder names it.
#[must_use]
pub fn memctl() -> Command {
    let mut command = Command::new(memctl_path());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEMCTL_") {
            command.env_remove(name);
        }
    }
    // Keeps this user's own daemon out: nothing listens in this folder.
    command.env("XDG_RUNTIME_DIR", unused_folder());
    // No process outlives a test; tests of the local service override this.
    command.env("MEMCTL_SERVICE", "off");
    command.env("NO_COLOR", "1").env("COLUMNS", "120").env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    command
}

/// A runtime folder in which no daemon listens; a test that needs a daemon there makes its own folder.
fn unused_folder() -> PathBuf {
    let folder = std::env::temp_dir().join("memctl-tests-nobody");
    std::fs::create_dir_all(&folder).expect("an empty runtime folder");
    folder
}

/// The commands that a help page lists, in groups or in one list; `help` itself is left out.
#[must_use]
pub fn commands_in(help: &str) -> Vec<String> {
    let lists = help.split("\nOptions:\n").next().unwrap_or_default();
    let names = lists.lines().skip_while(|line| !line.ends_with(':') || line.starts_with("Usage"));
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help" && !name.starts_with(['[', '<', '-'])).map(str::to_owned).collect()
}

/// A command's standard output.
#[must_use]
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A command's standard error.
#[must_use]
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed.
///
/// # Panics
/// When it does not.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?} ended with {}: {}", output.status, stderr(&output));
    stdout(&output)
}

/// The JSON of a command that must succeed.
///
/// # Panics
/// When it does not, or prints no JSON.
pub fn run_json(command: &mut Command) -> serde_json::Value {
    let text = run(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?} printed no JSON ({error}): {text}"))
}
