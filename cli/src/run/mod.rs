//! `memctl run -- CMD`: runs a command, records every training process in it, and ends as the command ended.
//!
//! Guarantees: the command gets this program's input, output, process group and signals, and its exit code becomes
//! ours; memctl never makes it fail or wait: if nothing can be recorded, a line says so and the command runs anyway.
//! Never writes to standard output, which is the command's, and removes its own folder.

mod alert_lines;
mod child;
mod destination;
mod flags;
mod folder;
mod group_witness;
mod launch;
mod name;
mod nodes;
mod programs;
mod progress;
mod signals;
mod summary;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::args::{Assert, Global, Run};
use crate::baseline_file::baseline;
use crate::checks::{check, unanswered};
use crate::exit::Failure;
use crate::hosting::host::{self, Host, HostConfig, Limits, Summary};
use crate::hosting::{self, SourcePaths};
use crate::service::keep;
use crate::unrecorded;
use child::CommandEnd;
use destination::{Destination, Kind};
use folder::Folder;
use programs::ProgramFacts;
use progress::Progress;
use signals::Relay;

/// How long trainers may outlive the command, such as a background process that is about to end.
const GRACE: Duration = Duration::from_secs(5);
/// At the end of a run, a daemon that acknowledges nothing for this long is treated as unreachable.
const SILENCE: Duration = Duration::from_secs(5);
/// The default time limit at the end of a run, which continues while storing makes progress.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// The least time for delivering what earlier runs left in the spool.
const SPOOL_PATIENCE: Duration = Duration::from_secs(30);

/// Runs the command and returns the exit code.
///
/// # Errors
/// Wrong usage only: other errors are printed, and the command runs anyway.
pub async fn run(args: &Run, global: &Global) -> Result<u8, Failure> {
    flags::check(&args.command)?;
    let name = name::of(args);
    let checks = args.checks(&name.job).map_err(Failure::usage)?;
    // A file that cannot be compared with is refused before the command, which may run for hours.
    if let Some(other) = &args.against {
        baseline(other)?;
    }
    if is_disabled() {
        if checks.is_some() {
            say(global, "MEMCTL_DISABLED is set: the command is not recorded and no condition is checked");
        }
        keep_unrecorded(global, &name);
        return Ok(child::replace(&args.command));
    }
    destination::check(global)?;
    for complaint in &name.complaints {
        say(global, complaint);
    }
    // From here on, signals are meant for the command.
    let relay = Arc::new(Relay::install());
    let paths = hosting::of_a_run(args.source_paths);
    let nodes = nodes::join(&args.command, &name, global).await;
    let (given, global) = (global, nodes.as_ref().map_or_else(|| global.clone(), |nodes| nodes.global.clone()));
    let opened = destination::open(&global).await;
    let opened = opened.and_then(|destination| Ok((destination, Folder::make()?, paths?)));
    let (destination, folder, source_paths) = match opened {
        Ok(made) => made,
        Err(failure) => {
            say(&global, &format!("{failure}; the command runs unrecorded"));
            keep_unrecorded(&global, &name);
            return unchecked(run_unrecorded(args, &relay).await, checks.as_ref()).await;
        }
    };
    if let Some(line) = &destination.notice {
        say(&global, line);
    }
    let prints = nodes.as_ref().map_or(name.rank == 0, nodes::Nodes::prints);
    Hosted { args, given, global, name, relay, destination, folder, source_paths, checks, nodes, prints }.run().await
}

/// Notes that nothing is recorded, so that an older run is not taken for this one. The first launcher of a job does it.
fn keep_unrecorded(global: &Global, name: &name::Name) {
    if name.rank == 0 {
        unrecorded::keep(global, &name.job);
    }
}

/// The exit code of a command that was not recorded. Its conditions are unknown, so a check must not pass.
async fn unchecked(code: u8, checks: Option<&Assert>) -> Result<u8, Failure> {
    let Some(checks) = checks else { return Ok(code) };
    let because = "the command ran unrecorded, so no condition was checked";
    let mut annotations = Vec::new();
    let written = unanswered(checks, because, &mut annotations).await;
    // A closed standard error is not an error here.
    let _ = std::io::stderr().write_all(&annotations);
    match code {
        0 => written.and(Err(Failure::found(format!("inconclusive: {because}")))),
        code => Ok(code),
    }
}

/// The context of a recorded run.
struct Hosted<'a> {
    args: &'a Run,
    /// The user's flags.
    given: &'a Global,
    /// The flags that lead to the destination.
    global: Global,
    name: name::Name,
    relay: Arc<Relay>,
    destination: Destination,
    folder: Folder,
    source_paths: SourcePaths,
    checks: Option<Assert>,
    /// The launch, if it runs on several nodes and has a daemon of its own.
    nodes: Option<nodes::Nodes>,
    /// Whether this launcher prints the job's page and checks its conditions. Of several launchers, one does.
    prints: bool,
}

impl Hosted<'_> {
    async fn run(self) -> Result<u8, Failure> {
        let Self { args, given, name, relay, mut folder, source_paths, checks, .. } = self;
        let (mut global, mut destination, mut nodes, mut prints) =
            (self.global, self.destination, self.nodes, self.prints);
        let number = hosting::launch_id::drawn();
        let config = HostConfig {
            trainers_max: host::trainers_max(child::descriptors_max()),
            source_paths,
            launcher: number,
            holders: !forbids_holders(args),
            holders_unasked: !forbids_holders(args),
            ..HostConfig::new(destination.daemon.clone(), destination.spool.clone())
        };
        let host = match folder.listener().and_then(|listener| Host::start(listener, config)) {
            Ok(host) => host,
            Err(error) => {
                say(&global, &format!("nothing can be recorded: {error}; the command runs unrecorded"));
                destination.close().await;
                keep_unrecorded(&global, &name);
                return unchecked(run_unrecorded(args, &relay).await, checks.as_ref()).await;
            }
        };
        let mut environment = environment(args, &name, &folder);
        environment.extend(destination.environment());
        environment.extend(nodes.as_ref().map(nodes::Nodes::environment).unwrap_or_default());
        environment.push((hosting::launch_id::VARIABLE, number.to_string().into()));
        let running = follow(&args.command, &environment, &relay, Some((&host, folder.inject())));
        let ended = match &destination.kind {
            Kind::Service(service) => tokio::select! {
                ended = running => ended,
                never = keep(service.clone(), |line| say(&global, &format!("{line}; what is recorded waits in the spool"))) => never,
                never = alert_lines::alerts(&global, &name.job), if prints && !global.quiet => never,
            },
            Kind::Daemon if prints && !global.quiet => tokio::select! {
                ended = running => ended,
                never = alert_lines::alerts(&global, &name.job) => never,
            },
            _ => running.await,
        };
        let (ended, missed) = ended;
        let started = Instant::now();
        let patience = args.patience.unwrap_or(PATIENCE);
        let limits = destination.limits(Limits { grace: GRACE, patience, silence: SILENCE });
        let hurry = relay.hurry();
        let mut summary = finish(host, limits, hurry.clone(), Progress::of(&global, destination.spool.is_some())).await;
        let seen = ProgramFacts::read(folder.path(), missed);
        // The command has ended, so no process connects any more.
        drop(folder);
        match summary.ended.iter().any(|ended| ended.refused.is_none()) {
            true => unrecorded::forget(&global, &name.job),
            false => keep_unrecorded(&global, &name),
        }
        let left = args.patience.map_or(SPOOL_PATIENCE, |patience| patience.saturating_sub(started.elapsed()));
        if let Some(nodes) = nodes.as_ref().filter(|_| prints) {
            nodes.others_end(&hurry).await;
        }
        if let Some(nodes) = nodes.as_mut().filter(|_| summary::is_away(&summary))
            && let Some(other) = nodes.move_on(given, &destination, left, &hurry).await
        {
            destination.close().await;
            destination = other;
            (global, prints) = (nodes.global.clone(), nodes.prints());
            summary.ended.iter_mut().for_each(|ended| ended.delivered = true);
        }
        let (words, job) = (&args.command, &name.job);
        let page = summary::Closing {
            global: &global,
            job,
            launcher: number,
            words,
            prints,
            ended: &ended,
            summary: &summary,
            seen: &seen,
        };
        page.tell(destination, left, &hurry).await;
        let code = match checks.filter(|_| prints) {
            Some(checks) => checked(&checks, number, &global, &ended).await,
            None => Ok(ended.code),
        };
        if let Some(nodes) = nodes.filter(|_| prints) {
            nodes.end().await;
        }
        code
    }
}

/// Checks the conditions of a run. A failure of the command has precedence over one of a condition.
async fn checked(checks: &Assert, launcher: u64, global: &Global, ended: &CommandEnd) -> Result<u8, Failure> {
    // Standard output belongs to the command.
    let mut page = b"\n".to_vec();
    let screen = summary::screen(global);
    let outcome = check(checks, Some(launcher), global, &screen, Timestamp::now(), &mut page).await;
    let annotates = checks.results.github;
    if annotates || !global.quiet {
        // A closed standard error is not an error here.
        let _ = std::io::stderr().write_all(&page);
    }
    match outcome {
        Ok(()) => Ok(ended.code),
        Err(failure) if ended.code == 0 => Err(failure),
        Err(failure) => {
            say(global, &failure.to_string());
            Ok(ended.code)
        }
    }
}

async fn finish(host: Host, limits: Limits, hurry: Arc<AtomicBool>, progress: Progress) -> Summary {
    let work = move || {
        let summary = host.finish(limits, &hurry, &|remaining| progress.tell(remaining));
        progress.end();
        summary
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_default()
}

async fn run_unrecorded(args: &Run, relay: &Arc<Relay>) -> u8 {
    follow(&args.command, &[], relay, None).await.0.code
}

/// Starts the command, relays signals to it, and waits for its end. Returns how it ended, and the processes that were
/// not recorded and why.
async fn follow(
    command: &[OsString],
    environment: &[(&'static str, OsString)],
    relay: &Arc<Relay>,
    host: Option<(&Host, PathBuf)>,
) -> (CommandEnd, BTreeMap<u32, String>) {
    let mut child = match child::start(command, environment) {
        Ok(child) => child,
        Err(ended) => return (ended, BTreeMap::new()),
    };
    // After the start, so that the command keeps its own limit.
    child::raise_descriptor_limit();
    let pid = child.id();
    relay.begin(pid);
    let (over, running) = std::sync::mpsc::channel();
    let watching = host.as_ref().map(|(_, inject)| {
        let inject = inject.clone();
        tokio::task::spawn_blocking(move || programs::watch(pid, &inject, &running))
    });
    let exit = child::ended(pid).await;
    // The host reads a dead process's exit from the kernel, and after reaping from us.
    if let (Some((host, _)), Some(exit)) = (host, exit) {
        host.child_ended(pid, exit);
    }
    relay.end();
    let status = child.wait();
    drop(over);
    let missed = match watching {
        Some(watching) => watching.await.unwrap_or_default(),
        None => BTreeMap::new(),
    };
    (CommandEnd::of(exit, status), missed)
}

/// What memctl adds to the command's environment.
fn environment(args: &Run, name: &name::Name, folder: &Folder) -> Vec<(&'static str, OsString)> {
    let mut environment = vec![
        ("MEMCTL_RUN_SOCKET", folder.socket().into_os_string()),
        ("MEMCTL_JOB", OsString::from(&name.job)),
        ("PYTHONPATH", folder.python_path(std::env::var_os("PYTHONPATH"))),
    ];
    // For a process that attaches without this launcher.
    environment.push((hosting::SOURCE_PATHS_VARIABLE, args.source_paths.name().into()));
    if args.no_stacks {
        environment.push(("MEMCTL_STACKS", "0".into()));
    }
    // For a process that attaches without this launcher.
    if forbids_holders(args) {
        environment.push(("MEMCTL_HOLDERS", "off".into()));
    } else if args.holders {
        environment.push(("MEMCTL_HOLDERS", "on".into()));
    }
    if let Some(attempt) = args.attempt {
        environment.push(("MEMCTL_ATTEMPT", attempt.to_string().into()));
    }
    if !name.labels.is_empty() {
        let pairs: Vec<String> = name.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        environment.push(("MEMCTL_LABELS", pairs.join(",").into()));
    }
    environment
}

/// Whether the search for holders is off: by the flag, or by any value of the variable that does not allow it.
fn forbids_holders(args: &Run) -> bool {
    let of_variable = std::env::var("MEMCTL_HOLDERS").is_ok_and(|value| !matches!(&*value, "" | "on" | "leaks"));
    args.no_holders || (of_variable && !args.holders)
}

/// `MEMCTL_DISABLED` in the environment, as the agent in Python reads it: not empty and not 0.
fn is_disabled() -> bool {
    std::env::var_os("MEMCTL_DISABLED").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Prints one line on standard error.
fn say(global: &Global, line: &str) {
    if !global.quiet {
        eprintln!("memctl: {}", crate::render::text::safe(line));
    }
}
