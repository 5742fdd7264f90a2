//! `memctl completions`: the script with which a shell completes verbs, flags and the names of jobs.
//!
//! Guarantees: the script calls this program at every completion, so that job names are current.

use std::io::Write;

use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};

use crate::args::help;
use crate::args::job_names::ASKS;
use crate::exit::Failure;

/// Answers a shell's completion request and ends the program; returns if there is no request.
pub fn answer() {
    CompleteEnv::with_factory(help::command).var(ASKS).complete();
}

/// Prints the script for a shell.
pub fn run(shell: Shell, out: &mut dyn Write) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let Some(completer) = shells.completer(&name) else {
        return Err(Failure::usage(format!("there are no completions for {name}")));
    };
    let written = completer.write_registration(ASKS, "memctl", "memctl", "memctl", out);
    written.map_err(|error| Failure::output("standard output", &error))
}
