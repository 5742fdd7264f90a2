//! `memctl`: the command line of memctl.
//!
//! Guarantees: answers on standard output and everything else on standard error; the exit codes of
//! [`exit`]; a failure is one line that names the thing and the way out.
//! Refuses: to know how events are stored or read. It asks the daemon, its own or another one.

mod advising;
mod allocator;
mod args;
mod ask;
mod commands;
mod confirm;
mod connect;
mod exit;
mod export;
mod logs;
mod page;
mod render;
mod run;
mod seams;
mod service;
mod show;
mod spooled;
mod target;

use std::io::Write;
use std::pin::Pin;
use std::process::ExitCode;

use clap::FromArgMatches as _;

use args::Cli;
use exit::Outcome;
use logs::Logging;
use render::screen::Screen;

fn main() -> ExitCode {
    commands::completions::answer();
    let parsed = args::help::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => Cli { global: cli.global.or_environment(std::env::var("MEMCTL_DAEMON").ok()), ..cli },
        // Prints help to standard output and errors to standard error; exit codes 0 and 2.
        Err(error) => error.exit(),
    };
    if let args::Command::Daemon(args::Daemon { local: Some(args::LocalService::Service), .. }) = &cli.command
        && let Err(failure) = commands::service::begin()
    {
        return report(&failure);
    }
    if let Err(failure) = logs::start(logging(&cli.command)) {
        return report(&failure);
    }
    let mut screen = Screen::detect(cli.global.colour());
    if cli.global.output != args::Format::Table {
        screen.colour = false;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&exit::Failure::unreachable(format!("threads cannot be started: {error}"))),
    };
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let result = runtime
        // (Boxed: the runtime's own code would be compiled several times around every command's.)
        .block_on(Box::pin(async {
            survive_file_limits();
            commands::run(&cli, &screen, &mut out).await
        }) as Pin<Box<dyn Future<Output = Result<ExitCode, exit::Failure>> + '_>>)
        .and_then(|code| out.flush().map(|()| code).map_err(|error| exit::Failure::output("standard output", &error)));
    // What still runs belongs to nobody: after Ctrl-C a thread may read a pipe or a dead network drive, for ever.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => {
            // What was written before the failure belongs to the reader; that it cannot be written is the smaller news.
            let _ = out.flush();
            report(&failure)
        }
    }
}

/// A file that may not grow further (`ulimit -f`, a service's limit) shall be an error of its writer, not the end of the process.
fn survive_file_limits() {
    use tokio::signal::unix::{SignalKind, signal};
    // The handler stays when the stream is dropped. Without it all works as before, so failing is no news.
    let _ = signal(SignalKind::from_raw(libc::SIGXFSZ));
}

fn report(failure: &exit::Failure) -> ExitCode {
    if failure.outcome != Outcome::Done {
        eprintln!("memctl: {failure}");
    }
    failure.outcome.into()
}

/// A daemon logs from `info` on, a run from `warn` on (a daemon that is away is said once, at its end), other commands from
/// `error` on.
fn logging(command: &args::Command) -> Logging {
    let (default, is_json) = match command {
        args::Command::Daemon(args::Daemon {
            local: Some(args::LocalService::Status | args::LocalService::Stop),
            ..
        }) => ("error", false),
        args::Command::Daemon(daemon) => ("info", daemon.log_format == args::LogFormat::Json),
        args::Command::Run(_) => ("warn,memctl_agent::uplink=error", false),
        _ => ("error", false),
    };
    // (A wrong filter is no reason for a command to find no service.)
    let is_strict = matches!(command, args::Command::Daemon(args::Daemon { local: None, .. }));
    Logging { default, is_json, is_strict }
}
