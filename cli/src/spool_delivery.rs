//! Stores spooled sessions, recorded while no daemon accepted them, before a request is sent.
//!
//! Guarantees: delivery has a time limit; sessions that were not stored are reported with the reason.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memctl_model::{HumanBytes, SessionInfo};

use crate::args::Global;
use crate::connect::{Connection, default_data_dir, flags};
use crate::hosting::{self, Credentials, data_dirs, host};
use crate::render::text::{plural, safe};
use crate::unrecorded;

/// The longest time for storing spooled sessions before a request.
const TAKING_MAX: Duration = Duration::from_secs(120);
/// How many running processes are named.
const LIVING_MAX: usize = 8;
/// How many jobs are named of which sessions were stored.
const JOBS_MAX: usize = 8;
/// Above this size, storing takes long enough to be announced.
const SAID_BYTES_MIN: u64 = 8 << 20;

/// Stores the sessions that wait in the spool for a connection's destination, so that requests see them. Such sessions
/// ended, or were killed, while no daemon accepted them.
pub async fn take_in(connection: &Connection, global: &Global) {
    let Some(data_dir) = global.data_dir.clone().or_else(|| default_data_dir().ok()) else { return };
    let folder = data_dirs::spool_folder(&data_dir, global.daemon());
    let say = |line: String| {
        if !global.quiet {
            eprintln!("memctl: {line}");
        }
    };
    for session in host::living_spools(&folder).iter().take(LIVING_MAX) {
        let process = session.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        let job = safe(&session.job);
        say(format!(
            "{process} records job {job} to disk: it reached no daemon, or the daemon refused it. This answer lacks it until it is \
             delivered; `memctl spool` lists it"
        ));
    }
    let bytes = host::spooled_bytes(&folder);
    if bytes == 0 {
        return;
    }
    if presents_identity(global) {
        say(format!(
            "{} wait in {} for this daemon and are not in this answer: `memctl spool deliver{}` stores them with your token or certificate, and so does the next `memctl run`",
            HumanBytes::of(bytes),
            folder.display(),
            global.daemon_address().map_or_else(String::new, |address| format!(" {}", flags(global, &address))),
        ));
        return;
    }
    let daemon = connection.daemon();
    if bytes > SAID_BYTES_MIN {
        say(format!("storing {} that wait in {}", HumanBytes::of(bytes), folder.display()));
    }
    let end = Instant::now() + TAKING_MAX;
    let work = {
        let folder = folder.clone();
        move || host::deliver_spool(&folder, &daemon, hosting::backoff(), &|| Instant::now() >= end)
    };
    // A panic there was logged; the spool keeps its sessions.
    let stored = tokio::task::spawn_blocking(work).await.unwrap_or_default();
    stored.iter().for_each(|session| unrecorded::forget(global, &session.job));
    for line in stored_lines(&stored) {
        say(line);
    }
    let left = host::spooled_bytes(&folder);
    if left > 0 {
        let (left, place) = (HumanBytes::of(left), &connection.place);
        say(format!(
            "{left} still wait in {} and are not in this answer: {place} did not accept them",
            folder.display()
        ));
    }
}

/// Whether this command names a daemon and proves who asks. What it delivers would belong to its own tenant, which may not
/// be that of the training, so a query delivers nothing then.
fn presents_identity(global: &Global) -> bool {
    let Credentials { token, tenant } = global.credentials();
    global.daemon().is_some() && (token.is_some() || tenant.is_some() || global.tls().cert.is_some())
}

/// A line for each job whose sessions were stored: the data comes from this disk, and is delivered with the identity of
/// this command, which may differ from that of the training.
fn stored_lines(stored: &[SessionInfo]) -> Vec<String> {
    let mut by_job: BTreeMap<&str, u64> = BTreeMap::new();
    for session in stored {
        *by_job.entry(session.job.as_str()).or_default() += 1;
    }
    let line = |(job, sessions): (&str, u64)| {
        let (job, sessions) = (safe(job), plural(sessions, "session"));
        format!("stored job {job} ({sessions}): it waited on this disk, because no daemon had accepted it")
    };
    by_job.into_iter().take(JOBS_MAX).map(line).collect()
}
