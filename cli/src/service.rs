//! The local service as a command uses it: whether to use one, which one, and how this process becomes one.
//!
//! Guarantees: with `MEMCTL_SERVICE=off` or `--in-process`, a command neither starts nor uses a service. Refuses the
//! folder of another user: the command opens that store itself, with the user's permissions.

use std::path::Path;
use std::time::Duration;

use memctl_proto::v1::{Status, StatusRequest};
use tonic::transport::{Channel, Endpoint};

use crate::args::Global;
use crate::exit::Failure;
use crate::hosting::service::{self, Service};
use crate::hosting::{Asking, Credentials, DaemonAddress};

/// Timeout for a service on this machine.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How often a command tries again when a service is just ending and is replaced.
const TRIES: u32 = 5;
/// Interval between checks that it is alive.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// A service without sessions ends within this time.
const GIVES_WAY_MAX: Duration = Duration::from_secs(15);
/// Interval between attempts to start it.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// The service of a folder; `None` if none is to be used.
pub fn of(folder: &Path, global: &Global) -> Option<Service> {
    if global.in_process || !service::is_allowed() {
        return None;
    }
    let program = std::env::current_exe().ok()?;
    Service::of(folder, &program).ok()
}

/// A connection to the service and its status; starts the service if it does not run.
///
/// # Errors
/// Why no service can be reached.
pub async fn reached(
    service: &Service,
    credentials: &Credentials,
    adjust: fn(Endpoint) -> Endpoint,
) -> Result<(Channel, Status), String> {
    let address = DaemonAddress::of_service(service.clone());
    let mut tries = 0;
    loop {
        tries += 1;
        let starting = service.clone();
        let started =
            tokio::task::spawn_blocking(move || starting.ensure()).await.map_err(|error| error.to_string())?;
        started.map_err(|unstarted| unstarted.to_string())?;
        let asked = tokio::time::timeout(ANSWER_MAX, async {
            let channel = address.connect(adjust).await.map_err(|error| error.to_string())?;
            let asking = Asking::new(channel.clone(), credentials.clone());
            let mut client = memctl_proto::v1::query_client::QueryClient::new(asking);
            let status = client.get_status(StatusRequest {}).await.map_err(|status| status.message().to_owned())?;
            Ok((channel, status.into_inner()))
        });
        match asked.await.unwrap_or_else(|_| Err(format!("it says nothing for {} s", ANSWER_MAX.as_secs()))) {
            Ok(reached) => return Ok(reached),
            Err(reason) if tries == TRIES => return Err(format!("the local service does not answer: {reason}")),
            // The service has ended in the meantime; the next attempt starts another one.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// How the version of a running service compares with this program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The same version.
    Same,
    /// Older: it ends as soon as nothing streams, and the next command starts this version.
    Older,
    /// Newer: it stays.
    Newer,
}

impl Version {
    /// Compares a service's version `theirs` with `mine`.
    #[must_use]
    pub fn of(theirs: &str, mine: &str) -> Self {
        let numbers = |text: &str| -> Vec<u64> {
            let plain = text.split(['-', '+']).next().unwrap_or_default();
            plain.split('.').map(|number| number.parse().unwrap_or(0)).collect()
        };
        match numbers(theirs).cmp(&numbers(mine)) {
            _ if theirs == mine => Self::Same,
            std::cmp::Ordering::Greater => Self::Newer,
            std::cmp::Ordering::Less | std::cmp::Ordering::Equal => Self::Older,
        }
    }
}

/// Reports a service of another version, and makes an older one end once nothing streams.
pub fn settle_version(service: &Service, theirs: &str, global: &Global) {
    let mine = env!("CARGO_PKG_VERSION");
    let line = match Version::of(theirs, mine) {
        Version::Same => return,
        Version::Newer => {
            format!("the local service is memctl {theirs}, and this is {mine}: use the newer program, too")
        }
        Version::Older => {
            let _ = signal(service, libc::SIGUSR1);
            format!(
                "the local service is memctl {theirs}, and this is {mine}: it ends once nothing streams, and {mine} follows"
            )
        }
    };
    if !global.quiet {
        eprintln!("memctl: {}", crate::render::text::safe(&line));
    }
}

/// Sends the service a signal; returns its process id.
///
/// # Errors
/// No service runs, or its process cannot be seen from here.
pub fn signal(service: &Service, number: i32) -> std::io::Result<i32> {
    let pid = service::server_process(&service.files().socket())?;
    // SAFETY: takes two numbers; the process is the one that listens at this moment.
    match unsafe { libc::kill(pid, number) } {
        0 => Ok(pid),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Makes the service of a folder end, if one runs: the user's own daemon, or a restored store, replaces it.
///
/// # Errors
/// Sessions stream to it.
pub async fn give_way(folder: &Path) -> Result<(), Failure> {
    let service = std::env::current_exe().ok().and_then(|program| Service::of(folder, &program).ok());
    let Some(service) = service.filter(|service| service.files().is_alive()) else { return Ok(()) };
    // A service that has just ended needs no signal.
    let _ = signal(&service, libc::SIGUSR1);
    let end = tokio::time::Instant::now() + GIVES_WAY_MAX;
    while service.files().is_alive() {
        if tokio::time::Instant::now() >= end {
            return Err(Failure::unreachable(format!(
                "the local service of {} takes events of processes that run: wait for their end, or end it with `memctl daemon stop`",
                folder.display()
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Keeps a service alive until dropped; calls `say` once if it cannot be started.
pub async fn keep<T>(service: Service, say: impl Fn(String)) -> T {
    let mut said = false;
    loop {
        tokio::time::sleep(WATCH_EVERY).await;
        if service.files().is_alive() {
            continue;
        }
        let starting = service.clone();
        let started = tokio::task::spawn_blocking(move || starting.ensure()).await;
        if let Ok(Err(unstarted)) = started {
            if !std::mem::replace(&mut said, true) {
                say(format!("the local service ended and does not start again: {unstarted}"));
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }
}

/// Leaves the session, the terminal and the open files of the parent process. Must be called before there is a second
/// thread.
///
/// # Errors
/// The system cannot create a process.
pub fn detach() -> Result<(), Failure> {
    let cannot =
        || Failure::unreachable(format!("no process for the local service: {}", std::io::Error::last_os_error()));
    // SAFETY: this process has one thread; the copy continues as this program, the original ends without cleaning up.
    match unsafe { libc::fork() } {
        -1 => return Err(cannot()),
        0 => {}
        // SAFETY: ends this process at once.
        _ => unsafe { libc::_exit(0) },
    }
    // SAFETY: no arguments; a new process does not lead a group yet.
    if unsafe { libc::setsid() } == -1 {
        return Err(cannot());
    }
    // SAFETY: this program has nothing open yet except the standard streams.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        for (theirs, mine, which) in [
            ("0.1.0", "0.1.0", Version::Same),
            ("0.9.0", "0.10.0", Version::Older),
            ("1.0.0", "0.10.0", Version::Newer),
            ("0.1.0-rc1", "0.1.0", Version::Older),
            ("", "0.1.0", Version::Older),
        ] {
            assert_eq!(Version::of(theirs, mine), which, "{theirs}");
        }
    }
}
