//! The commands. Each one connects, sends requests, prints the responses and closes what it opened.

mod access;
mod alerts;
mod assert;
mod backup;
mod baseline;
mod check;
pub mod completions;
mod daemon;
mod delete;
mod demo;
mod diagnose;
mod diff;
mod doctor;
mod explain;
mod export;
mod fit;
mod holders;
mod import;
mod leaks;
mod mcp;
mod need;
mod node;
pub mod questions;
mod ranks;
mod report;
mod report_moments;
mod report_views;
mod run;
pub mod service;
mod spool;
mod ui;
mod what_if;

use std::io::Write;
use std::process::ExitCode;

use jiff::Timestamp;

use crate::args::{self, Cli, Command, Global, LocalService};
use crate::connect::default_data_dir;
use crate::exit::{Failure, Outcome};
use crate::hosting::stores::Place;
use crate::job_lookup::of_several_nodes;
use crate::render::screen::Screen;

/// Runs a command and writes its output to `out`. The exit code is 0, or that of the program that `memctl run` ran.
///
/// # Errors
/// The reason of the failure, with the exit code.
pub async fn run(cli: &Cli, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<ExitCode, Failure> {
    let Cli { command, global } = cli;
    let failure = match run_with(command, global, screen, out).await {
        Err(failure) if matches!(failure.outcome, Outcome::NoSuchJob | Outcome::Unreachable) => failure,
        done => return done,
    };
    let Some(job) = command.job() else { return Err(failure) };
    match of_several_nodes(&job, global).await {
        Some(global) => run_with(command, &global, screen, out).await,
        None => Err(failure),
    }
}

async fn run_with(
    command: &Command,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<ExitCode, Failure> {
    let now = Timestamp::now();
    let done = match command {
        Command::Run(args) => return run::run(args, global).await,
        Command::Demo(args) => demo::run(args, global, screen, out).await,
        Command::Ui(args) => ui::run(args, global, out).await,
        Command::Daemon(args::Daemon { local: Some(LocalService::Status), .. }) => service::status(global, out).await,
        Command::Daemon(args::Daemon { local: Some(LocalService::Stop), .. }) => service::stop(global).await,
        Command::Daemon(args::Daemon { local: Some(LocalService::Service), .. }) => service::serve(global).await,
        Command::Daemon(flags) => daemon::run(flags, global).await,
        Command::Mcp(args) => mcp::run(args, global).await,
        Command::Import(args) => import::run(args, global, screen, out).await,
        Command::Jobs(args) => questions::jobs(args, global, screen, out).await,
        Command::Query(args) => questions::query(args, global, screen, now, out).await,
        Command::Leaks(args) => leaks::run(args, global, screen, now, out).await,
        Command::Ranks(args) => ranks::run(args, global, screen, now, out).await,
        Command::Diagnose(args) => diagnose::run(args, global, screen, now, out).await,
        Command::Report(args) => report::run(args, global, now, out).await,
        Command::Assert(args) => assert::run(args, global, screen, now, out).await,
        Command::Frag(args) => explain::frag(args, global, screen, now, out).await,
        Command::Oom(args) => explain::oom(args, global, screen, now, out).await,
        Command::WhatIf(args) => what_if::run(args, global, screen, out).await,
        Command::Node(args) => node::run(args, global, screen, out),
        Command::Need(args) => need::run(args, global, screen, out).await,
        Command::Fit(args) => fit::run(args, global, screen, out).await,
        Command::Holders(args) => holders::run(args, global, screen, out).await,
        Command::Ledger(args) => explain::ledger(args, global, screen, now, out).await,
        Command::Diff(args) => diff::run(args, global, screen, out).await,
        Command::Baseline(args) => baseline::run(args, global, out).await,
        Command::Timeline(args) => questions::timeline(args, global, screen, now, out).await,
        Command::Sites(args) => questions::sites(args, global, screen, now, out).await,
        Command::Alerts(args) => return alerts::run(args, global, screen, now, out).await,
        Command::Token(args) => access::token(args, global, screen, out).await,
        Command::Audit(args) => access::audit(args, global, screen, out).await,
        Command::Export(args) => export::run(args, global, now, out).await,
        Command::Spool(args) => spool::run(args, global, screen, out).await,
        Command::Doctor => doctor::run(global, screen, out).await,
        Command::Delete(args) => delete::run(args, global).await,
        Command::Backup(args) => backup::backup(args, global).await,
        Command::Restore(args) => backup::restore(args, global).await,
        Command::Check(args) => check::run(args, global, out).await,
        Command::Completions { shell } => completions::run(*shell, out),
        Command::Version => writeln!(out, "memctl {}", env!("CARGO_PKG_VERSION"))
            .map_err(|error| Failure::output("standard output", &error)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The store that a command uses without a daemon.
fn store_place(command: &str, store: Option<&str>, global: &Global) -> Result<Place, Failure> {
    if global.daemon.as_deref().is_some_and(|url| !url.is_empty()) && global.data_dir.is_none() && store.is_none() {
        return Err(Failure::usage(format!(
            "`memctl {command}` works where the store is, beside the daemon: give --data-dir DIR or --store URL as the daemon has them. MEMCTL_DAEMON or --daemon names a daemon's address, which is not used then"
        )));
    }
    let folder = match &global.data_dir {
        Some(folder) => folder.clone(),
        None => default_data_dir()?,
    };
    Place::of(store, &folder)
}
