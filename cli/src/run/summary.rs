//! What a run prints after the command has ended: the job's page, or how to query it, and what is still in the spool.
//!
//! Guarantees: everything goes to standard error, and nothing with `--quiet`; if several launchers were started for one
//! job, only the first prints the page; a store is closed with everything durable. Never changes the exit code.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memctl_answers::access::Role;
use memctl_answers::naming::shell_word;
use memctl_model::HumanBytes;
use memctl_proto::v1;

use super::child;
use super::destination::{Destination, Kind};
use super::programs::ProgramFacts;
use super::say;
use crate::args::{Format, Global};
use crate::client;
use crate::connect::{self, Connection, WhenMissing};
use crate::hosting::host::{self, Summary};
use crate::hosting::{self, Daemon};
use crate::output::print;
use crate::render::screen::Screen;
use crate::render::text::plural;

/// How long the end waits for a store that another program has open.
const STORE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two tries.
const STORE_WAIT_STEP: Duration = Duration::from_millis(250);
/// How long a daemon may take to identify the principal: it is known to be reachable.
const CALLER_MAX: Duration = Duration::from_secs(2);
/// Processes that get a line of their own.
const MISSED_MAX: usize = 4;
/// Time to find out why a daemon cannot be reached.
const REASON_WAIT: Duration = Duration::from_secs(4);
/// Jobs that get a line of their own.
const JOBS_MAX: usize = 8;

/// The state at the end of a run.
pub struct Closing<'a> {
    /// Flags.
    pub global: &'a Global,
    /// The run's job.
    pub job: &'a str,
    /// The number of this launch.
    pub launcher: u64,
    /// Whether this launcher prints the page. Of several launchers, one does.
    pub prints: bool,
    /// How the command ended.
    pub ended: &'a child::CommandEnd,
    /// What was recorded.
    pub summary: &'a Summary,
    /// The command's words.
    pub words: &'a [OsString],
    /// Which Python programs were recorded.
    pub seen: &'a ProgramFacts,
}

impl Closing<'_> {
    /// Prints the summary, delivers the spool for at most `patience`, and closes.
    pub async fn tell(&self, mut destination: Destination, patience: Duration, hurry: &Arc<AtomicBool>) {
        if destination.kind == Kind::Deferred && !self.summary.ended.is_empty() {
            self.open_again(&mut destination, patience.min(STORE_WAIT_MAX), hurry).await;
        }
        let is_away = is_away(self.summary);
        let may_take = match destination.kind {
            Kind::Deferred => false,
            Kind::InProcess => true,
            Kind::Daemon | Kind::Service(_) => !is_away,
        };
        if let (Some(folder), true) = (destination.folder(), may_take) {
            deliver(folder, destination.daemon.clone(), patience, hurry.clone()).await;
        }
        let why = if is_away { self.why_away().await } else { None };
        self.say_what_is_wrong(&destination, why.as_deref());
        let jobs = self.jobs();
        self.say_what_was_missed(!jobs.is_empty());
        if jobs.is_empty() {
            if self.ended.ran && self.summary.refused == 0 {
                say(self.global, &self.seen.nothing_recorded(self.words));
            }
        } else if self.prints {
            self.answer(&mut destination, &jobs, why.is_none()).await;
        }
        destination.close().await;
    }

    /// Programs that used torch and were not recorded while others were.
    fn say_what_was_missed(&self, others: bool) {
        let missed = self.seen.missed.iter().filter(|_| others);
        for (pid, why) in missed.take(MISSED_MAX) {
            say(self.global, &format!("process {pid} was not recorded: {why}"));
        }
        let events: u64 = self.summary.ended.iter().map(|ended| ended.counts.produced).sum();
        if let (true, 0, Some(why)) = (others, events, self.seen.reason()) {
            say(self.global, &format!("no allocator events were recorded: {why}"));
        }
    }

    /// Sessions and events by job.
    fn jobs(&self) -> BTreeMap<&str, (u64, u64)> {
        let mut jobs: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for ended in &self.summary.ended {
            let (sessions, events) = jobs.entry(&ended.session.job).or_default();
            *sessions += 1;
            *events += ended.counts.stored;
        }
        jobs
    }

    /// Opens the store, which was in use when the run began.
    async fn open_again(&self, destination: &mut Destination, wait: Duration, hurry: &AtomicBool) {
        let end = Instant::now() + wait;
        // Relaxed: only a hint; nothing else is synchronized by it.
        while !hurry.load(Ordering::Relaxed) {
            if let Ok(connection) = connect::connect(self.global, WhenMissing::Make).await {
                destination.daemon = connection.daemon();
                destination.kind = Kind::of(&connection.place);
                destination.connection = Some(connection);
                return;
            }
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep(STORE_WAIT_STEP).await;
        }
    }

    /// Why the daemon of `--daemon` cannot be reached, or does not accept this caller.
    async fn why_away(&self) -> Option<String> {
        self.global.daemon_address()?;
        let asked = async {
            let connection = connect::connect(self.global, WhenMissing::Refuse).await?;
            let answer = client::caller(&connection).await.map_err(|status| connection.failure(&status));
            connection.close().await;
            answer
        };
        tokio::time::timeout(REASON_WAIT, asked).await.ok()?.err().map(|failure| failure.to_string())
    }

    fn say_what_is_wrong(&self, destination: &Destination, why: Option<&str>) {
        let Summary { ended, refused, refused_because, more: _ } = self.summary;
        if let (1.., Some(reason)) = (*refused, refused_because) {
            say(self.global, &format!("{} refused: {reason}", plural(*refused, "connection")));
        }
        if let Some(reason) = ended.iter().find_map(|ended| ended.refused.as_deref()) {
            say(self.global, &format!("the daemon refused a session: {reason}"));
        }
        let waiting = destination.folder().map_or(0, |folder| host::spooled_bytes(&folder));
        let undelivered = ended.iter().filter(|ended| !ended.delivered && ended.refused.is_none()).count() as u64;
        if waiting > 0
            && let Some(folder) = destination.folder()
        {
            let (size, folder) = (HumanBytes::of(waiting), folder.display());
            let to = self.global.daemon_address().map_or_else(String::new, |address| format!(" to {address}"));
            let is_refused = ended.iter().any(|ended| ended.refused.is_some());
            let next = match is_refused {
                true => "`memctl spool` lists it, delivers it elsewhere or discards it",
                false => "the next `memctl run` with this destination delivers it",
            };
            say(self.global, &format!("{size} could not be delivered{to}, and is kept in {folder}; {next}"));
            let not_accepted = ended.iter().find_map(|ended| ended.not_accepted.as_deref());
            match (why, not_accepted) {
                (Some(why), _) => say(self.global, why),
                (None, Some(reason)) => say(self.global, &format!("the daemon did not accept it: {reason}")),
                (None, None) => {}
            }
        } else if undelivered > 0 && destination.spool.is_none() {
            say(
                self.global,
                &format!("{} could not be delivered in full and there was no spool", plural(undelivered, "session")),
            );
        }
        let undelivered = ended.iter().filter(|ended| !ended.delivered && ended.refused.is_none());
        let lost: u64 = undelivered.map(|ended| ended.counts.dropped).sum();
        if lost > 0
            && let Some(folder) = destination.folder()
        {
            let (events, folder) = (plural(lost, "event"), folder.display());
            say(self.global, &format!("{events} had no room and are lost; check whether the disk of {folder} is full"));
        }
    }

    /// The page, or how to query it if the daemon answers this caller.
    async fn answer(&self, destination: &mut Destination, jobs: &BTreeMap<&str, (u64, u64)>, answers: bool) {
        if self.global.quiet {
            return;
        }
        let shown = jobs.get_key_value(self.job).or_else(|| jobs.first_key_value()).map(|(job, _)| *job);
        let page = match (&mut destination.connection, shown) {
            (Some(connection), Some(job)) if destination.kind.is_local() => self.page(connection, job).await,
            _ => false,
        };
        let flags = match (self.global.daemon_address(), &destination.connection) {
            (Some(address), _) => format!(" {}", connect::flags(self.global, &address)),
            (None, Some(connection)) if !connection.flags.is_empty() => format!(" {}", connection.flags),
            _ => String::new(),
        };
        let writes_alone = self.writes_alone().await;
        let rest = jobs.iter().filter(|(job, _)| !page || Some(**job) != shown);
        for (job, &(sessions, events)) in rest.take(JOBS_MAX) {
            let hint = match &writes_alone {
                Some(_) => String::new(),
                None if !answers => String::new(),
                None => format!("; `memctl query --job {}{flags}` shows it", shell_word(job)),
            };
            say(self.global, &self.stored(job, (sessions, events), destination.spool.is_some(), &hint));
        }
        let is_any_stored = jobs.values().any(|&(_, events)| events > 0);
        if let Some(who) = writes_alone.filter(|_| is_any_stored) {
            say(
                self.global,
                &format!(
                    "{who} writes and does not read: the page needs a token of the role reader, operator or admin (`memctl token create NAME --role reader`); with its file, `memctl query --job {}{} --token-file READER` shows it",
                    shell_word(shown.unwrap_or(self.job)),
                    self.flags_without_token(),
                ),
            );
        }
    }

    /// The flags that lead to the daemon, for a caller with another token.
    fn flags_without_token(&self) -> String {
        let global = Global { token_file: None, ..self.global.clone() };
        let address = self.global.daemon_address();
        address.map_or_else(String::new, |address| format!(" {}", connect::flags(&global, &address)))
    }

    /// What is stored of a job, and how to see it.
    fn stored(&self, job: &str, (sessions, events): (u64, u64), has_spool: bool, hint: &str) -> String {
        let of_job = || self.summary.ended.iter().filter(|ended| ended.session.job == job);
        if events == 0 && of_job().any(|ended| ended.refused.is_some()) {
            return format!("job {job}: nothing is stored: the daemon refused it");
        }
        if events == 0 && of_job().all(|ended| !ended.delivered) {
            return match has_spool {
                true => format!("job {job}: nothing is stored yet"),
                false => format!("job {job}: nothing is stored, and the recording is lost"),
            };
        }
        format!("job {job}: {} of {} stored{hint}", plural(events, "event"), plural(sessions, "session"))
    }

    /// The principal's name, if the daemon allows it to write but not to read. The printed hint then names the missing
    /// role.
    async fn writes_alone(&self) -> Option<String> {
        self.global.daemon()?;
        let connection = tokio::time::timeout(CALLER_MAX, connect::connect(self.global, WhenMissing::Refuse)).await;
        let connection = connection.ok()?.ok()?;
        let caller = tokio::time::timeout(CALLER_MAX, client::caller(&connection)).await;
        connection.close().await;
        // Without a known principal there is no warning: the query itself will report what is missing.
        let caller = caller.ok()?.ok()??;
        (caller.role == Role::Agent).then_some(caller.name)
    }

    /// Prints the job's page; `false` when there is none.
    async fn page(&self, connection: &mut Connection, job: &str) -> bool {
        let selection =
            v1::Selection { job: job.to_owned(), launcher: Some(self.launcher), ..v1::Selection::default() };
        let report = match client::report(connection, selection, self.global).await {
            Ok(report) => report,
            Err(failure) => {
                say(self.global, &failure.to_string());
                return false;
            }
        };
        let mut page = b"\n".to_vec();
        print(&report, Format::Table, &screen(self.global), &mut page).is_ok()
            // A closed standard error is not an error here.
            && std::io::stderr().write_all(&page).is_ok()
    }
}

/// The screen behind standard error.
pub fn screen(global: &Global) -> Screen {
    let is_terminal = std::io::stderr().is_terminal();
    Screen::of(is_terminal, global.colour())
}

/// Whether the daemon did not take a recording in full, without refusing it.
pub fn is_away(summary: &Summary) -> bool {
    summary.ended.iter().any(|ended| !ended.delivered && ended.refused.is_none())
}

/// Delivers spooled sessions whose process has ended.
pub async fn deliver(folder: PathBuf, daemon: Daemon, patience: Duration, hurry: Arc<AtomicBool>) {
    let end = Instant::now() + patience;
    let work = move || {
        // Relaxed: only a hint; nothing else is synchronized by it.
        let enough = || hurry.load(Ordering::Relaxed) || Instant::now() >= end;
        host::deliver_spool(Path::new(&folder), &daemon, hosting::backoff(), &enough)
    };
    // A panic there was logged; the spool keeps its sessions.
    let _ = tokio::task::spawn_blocking(work).await;
}
