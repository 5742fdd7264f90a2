//! The verbs: each asks, prints and closes what it opened.

mod alerts;
mod assert;
pub mod completions;
mod daemon;
mod delete;
mod demo;
mod diagnose;
mod doctor;
mod explain;
mod export;
mod import;
mod leaks;
pub mod questions;
mod ranks;
mod run;

use std::io::Write;
use std::process::ExitCode;

use jiff::Timestamp;

use crate::args::{Cli, Command};
use crate::exit::Failure;
use crate::render::screen::Screen;

/// Runs a command; its answer goes to `out`. The exit code is 0, or that of the command that was run.
///
/// # Errors
/// Why it did not do what it was asked, with the exit code.
pub async fn run(cli: &Cli, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    let now = Timestamp::now();
    let done = match &cli.command {
        Command::Run(args) => return run::run(args, global).await,
        Command::Demo => demo::run(global, screen, out).await,
        Command::Daemon(flags) => daemon::run(flags, global).await,
        Command::Import(args) => import::run(args, global, screen, out).await,
        Command::Jobs(args) => questions::jobs(args, global, screen, out).await,
        Command::Query(args) => questions::query(args, global, screen, now, out).await,
        Command::Leaks(args) => leaks::run(args, global, screen, now, out).await,
        Command::Ranks(args) => ranks::run(args, global, screen, now, out).await,
        Command::Diagnose(args) => diagnose::run(args, global, screen, now, out).await,
        Command::Assert(args) => assert::run(args, global, screen, now, out).await,
        Command::Frag(args) => explain::frag(args, global, screen, now, out).await,
        Command::Oom(args) => explain::oom(args, global, screen, now, out).await,
        Command::Ledger(args) => explain::ledger(args, global, screen, now, out).await,
        Command::Timeline(args) => questions::timeline(args, global, screen, now, out).await,
        Command::Sites(args) => questions::sites(args, global, screen, now, out).await,
        Command::Alerts(args) => return alerts::run(args, global, screen, now, out).await,
        Command::Export(args) => export::run(args, global, now, out).await,
        Command::Doctor => doctor::run(global, screen, out).await,
        Command::Delete(args) => delete::run(args, global).await,
        Command::Completions { shell } => completions::run(*shell, out),
    };
    done.map(|()| ExitCode::SUCCESS)
}
