//! The daemon of a launch that runs on several nodes, when no daemon was named: the first node hosts it, and the
//! launchers of the other nodes find it through a folder that the nodes share ([`JobFolder`]).
//!
//! Guarantees: whichever node comes first hosts, and a node may come late or never. The hosting launcher is a client of
//! the daemon like any other: if it is killed, the daemon continues. If no daemon can be reached, the launch is recorded
//! as on a single node, and a line says so. If the daemon ends before a launcher of another node, what that launcher has
//! recorded goes to the daemon that follows, which may be its own.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memctl_proto::v1::StatusRequest;

use super::destination::{self, Destination};
use super::name::Name;
use super::summary::deliver;
use super::{launch, say};
use crate::args::Global;
use crate::connect::{self, WhenMissing};
use crate::hosting::host::spooled_bytes;
use crate::hosting::service::{self, Service};
use crate::hosting::{Guest, JobFolder, data_dirs, private_files};
use crate::job_lookup::job_daemon;
use crate::render::text::plural;
use crate::service::give_way;

/// How long a launcher waits for the job's daemon of another host, which may have to start it first. The training begins
/// after that time in any case.
const JOIN_MAX: Duration = Duration::from_secs(20);
/// Interval between two looks at the folder. (NFS clients cache what they read for seconds.)
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the host waits at its end for the ranks of other nodes. Ranks of one training end together.
const OTHERS_MAX: Duration = Duration::from_secs(120);
/// How long the processes of a launcher that has joined may take until they stream: they import their libraries first.
const GUEST_START_MAX: Duration = Duration::from_secs(60);
/// After this time a line says what the host waits for.
const QUIET_WAIT: Duration = Duration::from_secs(2);

/// What this launcher does for the launch.
enum Part {
    /// It runs on the host of the daemon. One launcher of that host has the file, and prints for all.
    Host { prints: Option<File> },
    /// It sends to the daemon on another host. The file says that it has joined; without it, the host may end early.
    Guest { _joined: Option<Guest> },
}

/// The launch, as this launcher sees it.
pub struct Nodes {
    /// The flags that lead to the job's daemon.
    pub global: Global,
    folder: JobFolder,
    part: Part,
}

/// Finds or starts the job's daemon. `None` if the launch runs on one node, if a daemon or a folder was named, or if
/// there is no daemon.
pub async fn join(command: &[OsString], name: &Name, global: &Global) -> Option<Nodes> {
    let is_elsewhere = global.daemon().is_some() || global.data_dir.is_some();
    if is_elsewhere || global.in_process || !service::is_allowed() {
        return None;
    }
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let launch = launch::launch_name(&words, &|name| std::env::var(name).ok())?;
    let Some(shared) = data_dirs::of_all_nodes(&|name| std::env::var_os(name).map(PathBuf::from)) else {
        let variable = data_dirs::NODES_VARIABLE;
        say(
            global,
            &format!(
                "this launch runs on several nodes, and each node records into its own store, because no folder that they share is known: name one with {variable}, or a daemon with MEMCTL_DAEMON"
            ),
        );
        return None;
    };
    let folder = JobFolder::of(&shared, &launch);
    let joined = match folder.make(&name.job, &name.labels) {
        Ok(()) => join_in(&folder, global).await,
        Err(error) => Err(format!("{}: {error}", folder.path().display())),
    };
    match joined {
        Ok(nodes) => Some(nodes),
        Err(reason) => {
            say(
                global,
                &format!("this node records into its own store, because the job's daemon is not there: {reason}"),
            );
            None
        }
    }
}

async fn join_in(folder: &JobFolder, global: &Global) -> Result<Nodes, String> {
    let end = Instant::now() + JOIN_MAX;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let service = Service::of(folder.path(), &program).map_err(|error| error.to_string())?;
    loop {
        let reason = match folder.other_host() {
            Some(host) => match job_daemon(folder, global).await {
                Some(global) => {
                    let part = Part::Guest { _joined: folder.enter().ok() };
                    return Ok(Nodes { global, folder: folder.clone(), part });
                }
                None => format!("host {host} runs it, and it does not answer"),
            },
            None => {
                let starting = service.clone();
                match tokio::task::spawn_blocking(move || starting.ensure()).await {
                    Ok(Ok(())) => return Ok(host(folder, global)),
                    // Another host was faster, or this one cannot host.
                    Ok(Err(unstarted)) if folder.other_host().is_some() => unstarted.to_string(),
                    Ok(Err(unstarted)) => return Err(unstarted.to_string()),
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        if Instant::now() >= end {
            return Err(reason);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn host(folder: &JobFolder, global: &Global) -> Nodes {
    let global = Global { data_dir: Some(folder.path().to_owned()), ..global.clone() };
    let lock = private_files::file().write(true).create(true).truncate(false).open(folder.path().join("launcher.lock"));
    let prints = lock.ok().filter(|file| file.try_lock().is_ok());
    Nodes { global, folder: folder.clone(), part: Part::Host { prints } }
}

impl Nodes {
    /// Whether this launcher prints the job's page and checks its conditions.
    pub const fn prints(&self) -> bool {
        matches!(self.part, Part::Host { prints: Some(_) })
    }

    /// Variables by which processes reach the daemon if they outlive their launcher.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        match self.part {
            Part::Host { .. } => Vec::new(),
            Part::Guest { .. } => {
                let file = self.folder.certificate().into_os_string();
                let files = ["MEMCTL_TLS_CA", "MEMCTL_TLS_CERT", "MEMCTL_TLS_KEY"].map(|name| (name, file.clone()));
                let none = ["MEMCTL_TOKEN", "MEMCTL_TOKEN_FILE"].map(|name| (name, OsString::new()));
                files.into_iter().chain(none).collect()
            }
        }
    }

    /// Joins the launch again, for a launcher of another node whose daemon has ended before it took the whole recording,
    /// and delivers the rest. `given` has the user's flags. Returns where the rest is now; `None` if it stays in the
    /// spool.
    pub async fn move_on(
        &mut self,
        given: &Global,
        former: &Destination,
        patience: Duration,
        hurry: &Arc<AtomicBool>,
    ) -> Option<Destination> {
        let spool = match self.part {
            Part::Guest { .. } => former.folder()?,
            Part::Host { .. } => return None,
        };
        let joined = join_in(&self.folder, given).await.ok()?;
        let destination = destination::open(&joined.global).await.ok()?;
        deliver(spool.clone(), destination.daemon.clone(), patience, hurry.clone()).await;
        if spooled_bytes(&spool) == 0 {
            *self = joined;
            return Some(destination);
        }
        destination.close().await;
        if joined.prints() {
            joined.end().await;
        }
        None
    }

    /// At the end of the launcher that prints: waits until the ranks of the other nodes have ended, too, or for two
    /// minutes.
    pub async fn others_end(&self, hurry: &AtomicBool) {
        let (began, mut said) = (Instant::now(), false);
        // Relaxed: only a hint; nothing else is synchronized by it.
        while began.elapsed() < OTHERS_MAX && !hurry.load(Ordering::Relaxed) {
            match self.streaming().await.map(|sessions| sessions.max(self.folder.guests(GUEST_START_MAX))) {
                None | Some(0) => return,
                Some(sessions) if began.elapsed() >= QUIET_WAIT && !said => {
                    said = true;
                    let sessions = plural(sessions, "process");
                    say(&self.global, &format!("waiting for {sessions} of other nodes to end (Ctrl-C ends the wait)"));
                }
                Some(_) => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Processes that stream to the job's daemon; `None` if it does not answer.
    async fn streaming(&self) -> Option<u64> {
        let mut connection = connect::connect(&self.global, WhenMissing::Refuse).await.ok()?;
        let status = connection.query.get_status(StatusRequest {}).await;
        connection.close().await;
        Some(status.ok()?.into_inner().sessions_streaming)
    }

    /// Ends the job's daemon once no process streams, so that any host may open the store. The launcher that prints
    /// calls it last.
    pub async fn end(self) {
        if let Err(failure) = give_way(self.folder.path()).await {
            say(&self.global, &failure.to_string());
        }
    }
}
