//! The whole text that commands print for people and scripts: the real command line against jobs of every kind, served
//! by a daemon of the tests.
//!
//! Guarantees: pages, data, exit codes and sentences are those of the built program. Other tests cover the responses of
//! real daemons about real recordings.

mod commands;
mod explain;
mod findings;
mod fixture;
mod memory_viz;
mod trace;

use std::fmt;

use fixture::FakeDaemon;
use memctl_tests::{memctl, stderr, stdout};

/// The text that replaces the daemon's address, which differs in every run.
const DAEMON: &str = "http://gpu-7:7717";

/// The screen on which a page is shown.
#[derive(Clone, Copy)]
struct Screen {
    /// Columns; `None` = no limit.
    columns: Option<usize>,
    /// More than ASCII.
    unicode: bool,
}

/// How a command failed.
#[derive(Debug)]
struct Failure {
    /// The exit code.
    code: i32,
    /// The sentence.
    words: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// Runs a command line against the daemon at this address; returns its output and its result.
fn against(url: &str, line: &str, screen: Screen) -> (String, Result<(), Failure>) {
    let mut command = memctl();
    command.args(["--daemon", url]).args(line.split_whitespace());
    match screen.columns {
        Some(columns) => command.env("COLUMNS", columns.to_string()),
        None => command.env_remove("COLUMNS"),
    };
    command.env("LC_ALL", if screen.unicode { "C.UTF-8" } else { "C" });
    let output = command.output().expect("memctl starts");
    let text = stdout(&output).replace(url, DAEMON);
    let code = output.status.code().expect("an exit code");
    let words = stderr(&output).trim_end().trim_start_matches("memctl: ").to_owned();
    (text, if code == 0 { Ok(()) } else { Err(Failure { code, words }) })
}

/// The same against a daemon that runs only for this command line.
fn ended(line: &str, screen: Screen) -> (String, Result<(), Failure>) {
    let daemon = FakeDaemon::start();
    against(daemon.url(), line, screen)
}

/// The records of newline-delimited JSON.
fn records(lines: &str) -> Vec<serde_json::Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}
