//! `memctl`: the command line of memctl.
//!
//! Guarantees: results on standard output and everything else on standard error; the exit codes of [`exit`]; a failure
//! is one line that names the problem and the remedy. Does not know how events are stored or read: it queries a daemon,
//! its own or another one.

/// Like the standard library's macro, which would panic if standard error is closed (`memctl … 2>&1 | head`).
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// The same without a line end.
macro_rules! eprint {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

mod allocator;
mod args;
mod baseline_file;
mod checks;
mod client;
mod commands;
mod confirm;
mod connect;
mod exit;
mod export;
mod hosting;
mod job_lookup;
mod logs;
mod output;
mod output_file;
mod page;
mod process_owner;
mod render;
mod run;
mod service;
mod spool_delivery;
mod unrecorded;

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
        // (Boxed: otherwise the runtime's own code is compiled several times with every command's.)
        .block_on(Box::pin(async {
            survive_file_limits();
            commands::run(&cli, &screen, &mut out).await
        }) as Pin<Box<dyn Future<Output = Result<ExitCode, exit::Failure>> + '_>>)
        .and_then(|code| out.flush().map(|()| code).map_err(|error| exit::Failure::output("standard output", &error)));
    // Do not wait for threads that still run: after Ctrl-C a thread may read a pipe or a dead network drive forever.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => {
            // Flush what was written before the failure; an error in flushing matters less than the failure.
            let _ = out.flush();
            report(&failure)
        }
    }
}

/// Makes a file-size limit (`ulimit -f`, a service's limit) an error for the writer instead of the end of the process.
fn survive_file_limits() {
    use tokio::signal::unix::{SignalKind, signal};
    // The handler stays when the stream is dropped. If it cannot be installed, everything else still works.
    let _ = signal(SignalKind::from_raw(libc::SIGXFSZ));
}

fn report(failure: &exit::Failure) -> ExitCode {
    if failure.outcome != Outcome::Done {
        eprintln!("memctl: {failure}");
    }
    failure.outcome.into()
}

/// Default log levels: `info` for a daemon, `warn` for a run (an unreachable daemon is reported once, at its end),
/// `error` for other commands. A command that delivers what waited in a spool prints a refusal itself.
fn logging(command: &args::Command) -> Logging {
    let (default, is_json) = match command {
        args::Command::Daemon(args::Daemon {
            local: Some(args::LocalService::Status | args::LocalService::Stop),
            ..
        }) => ("error", false),
        args::Command::Daemon(daemon) => ("info", daemon.log_format == args::LogFormat::Json),
        args::Command::Run(_) => ("warn,memctl_agent::uplink=error", false),
        _ => ("error,memctl_agent::uplink::refused=off", false),
    };
    // (An invalid filter must not prevent a command from starting a service.)
    let is_strict = matches!(command, args::Command::Daemon(args::Daemon { local: None, .. }));
    Logging { default, is_json, is_strict }
}
