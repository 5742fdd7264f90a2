//! Hosts trainers that run in other processes: accepts their regions over a socket, empties the regions, measures the
//! processes, and reports how they died.
//!
//! Each trainer has one thread, and its agent has two more. One thread accepts trainers, one measures them, and one
//! delivers what earlier runs left in the spool. Trainer and host never wait for each other: a trainer writes into its
//! region whether or not the host reads it.
//! Guarantees: everything that was pushed before a trainer's death is taken. The end or the delivery of one trainer
//! does not delay another. Threads and memory are bounded for any number of connections. [`Host::finish`] has a time
//! limit.
//! Refuses: trainers of other users, more trainers than [`HostConfig::trainers_max`], and to signal any process.
//! (Over 400 lines: the settings, threads and registry of a host are one state.)

mod death;
mod leftover;
mod measure;
mod trainer;
mod wait;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memctl_model::Backoff;
use memctl_model::{SessionId, SessionInfo};

use crate::agent::{Breaker, SpoolConfig};
use crate::launch_id;
use crate::ledger::Counts;
use crate::link;
use crate::source_paths::SourcePaths;
use crate::uplink::Daemon;

pub use crate::sample::host::Exit;
pub use leftover::{Waiting, deliver_spool, living_spools, spooled_bytes, waiting};
pub use wait::can_watch_processes;

/// Interval at which a wait checks whether it was cut short.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// After giving up: the longest time without progress while workers put into the spool what they hold.
const SPILL_SILENCE: Duration = Duration::from_secs(5);
/// After giving up: the longest time for that in all, unless `hurry` is set.
const SPILL_MAX: Duration = Duration::from_secs(60);
/// After that: time for workers to drop and count the rest and to write the session's end. This takes milliseconds.
const LAST_WORD_MAX: Duration = Duration::from_secs(5);
/// Interval between reports of the progress.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of ended sessions in the summary. Further ones are only counted.
const ENDED_MAX: usize = 4_096;
/// Pause after a failed accept. Accepting fails when descriptors run out, so an immediate retry would not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of trainers of one machine: two per device of the largest machine, and as many again that start while
/// others end.
const TRAINERS_MAX: usize = 256;
/// Descriptors of a trainer: connection, region, pidfd, the agent's runtime (3), its spool (2) and its own connection.
const DESCRIPTORS_EACH: u64 = 10;
/// Descriptors for the rest of the process: a store with its connections, standard streams, logs.
const DESCRIPTORS_KEPT: u64 = 64;

/// How many trainers a process with this limit of descriptors can host. Enough descriptors remain for a store in the
/// same process.
#[must_use]
pub fn trainers_max(descriptors: u64) -> usize {
    let room = descriptors.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_EACH;
    usize::try_from(room).map_or(TRAINERS_MAX, |room| room.clamp(1, TRAINERS_MAX))
}

/// Configuration of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The daemon that receives the sessions.
    pub daemon: Daemon,
    /// Disk space for what the daemon has not accepted yet.
    pub spool: Option<SpoolConfig>,
    /// Maximum number of trainers at the same time, see [`trainers_max`].
    pub trainers_max: usize,
    /// Waits between attempts to reach the daemon.
    pub backoff: Backoff,
    /// How often trainers are measured.
    pub measure_every: Duration,
    /// How paths of source files are treated before they leave the host.
    pub source_paths: SourcePaths,
    /// The number of this launch. All its sessions have the same one.
    pub launcher: u64,
    /// Whether holders of their tensors may be requested from trainers.
    pub holders: bool,
    /// Whether the daemon may request that without a user, once for each leak that it confirms.
    pub holders_unasked: bool,
}

impl HostConfig {
    /// The usual configuration.
    #[must_use]
    pub fn new(daemon: Daemon, spool: Option<SpoolConfig>) -> Self {
        Self {
            daemon,
            spool,
            trainers_max: TRAINERS_MAX,
            // The end of a run waits for delivery. A daemon that is back must be noticed within that time.
            backoff: Backoff { most: Duration::from_secs(2), ..Backoff::default() },
            measure_every: Duration::from_secs(1),
            source_paths: SourcePaths::default(),
            launcher: launch_id::drawn(),
            holders: true,
            holders_unasked: false,
        }
    }
}

/// Time limits of [`Host::finish`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For trainers that are still connected.
    pub grace: Duration,
    /// For delivery, in all.
    pub patience: Duration,
    /// For delivery without progress, when nothing is packed and the daemon acknowledges nothing.
    pub silence: Duration,
}

/// What is not delivered yet when a host ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Number of sessions that are not delivered.
    pub sessions: usize,
    /// Number of their events that are neither stored nor dropped.
    pub events: u64,
}

/// A session that has ended.
#[derive(Clone, Debug)]
pub struct EndedSession {
    /// The session.
    pub session: SessionInfo,
    /// How it failed, as the host saw it. The trainer's own description takes precedence.
    pub failure: Option<String>,
    /// Whether everything is stored.
    pub delivered: bool,
    /// The daemon's reason, when it refused the session permanently.
    pub refused: Option<String>,
    /// The daemon's reason, when it did not accept the last items for now.
    pub not_accepted: Option<String>,
    /// Counts of its events. A session that was given up has only the known counts: stored events, and events without
    /// room.
    pub counts: Counts,
}

/// What a host has recorded.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Sessions that have ended, the first 4,096 of them.
    pub ended: Vec<EndedSession>,
    /// Number of further sessions.
    pub more: u64,
    /// Number of connections that were refused.
    pub refused: u64,
    /// The reason of the last refusal.
    pub refused_because: Option<String>,
}

/// A running host.
pub struct Host {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that all threads of a host share.
struct Shared {
    config: HostConfig,
    /// Set when no more trainers are to be recorded.
    closing: wait::Order,
    exits: death::Exits,
    registry: Mutex<Registry>,
    changed: Condvar,
}

/// Current connections and sessions.
#[derive(Default)]
struct Registry {
    /// Number of threads that serve a connection, in any state.
    guests: usize,
    /// Sessions and regions (device and inode) that have a thread. Each has at most one.
    claimed: Vec<(SessionId, (u64, u64))>,
    /// Trainers that are being recorded, by number.
    recording: BTreeMap<u64, Arc<trainer::Trainer>>,
    /// Trainers that have ended and are being delivered.
    delivering: BTreeMap<u64, (SessionInfo, Option<String>, Breaker)>,
    next: u64,
    summary: Summary,
}

impl Registry {
    fn end(&mut self, ended: EndedSession) {
        if self.summary.ended.len() < ENDED_MAX {
            self.summary.ended.push(ended);
        } else {
            self.summary.more += 1;
        }
    }

    /// A value that changes while deliveries make progress.
    fn progress(&self) -> (usize, u64) {
        (self.delivering.len(), self.delivering.values().map(|(.., breaker)| breaker.progress()).sum())
    }

    fn remaining(&self) -> Remaining {
        let events = self.delivering.values().map(|(.., breaker)| breaker.counts().in_flight).sum();
        Remaining { sessions: self.guests, events }
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` holds. Stops waiting at `end`, or when `hurry` is set. Returns whether `done` holds.
    fn wait(&self, end: Instant, hurry: &AtomicBool, mut done: impl FnMut(&Registry) -> bool) -> bool {
        let mut registry = self.registry();
        loop {
            if done(&registry) {
                return true;
            }
            // Relaxed: a flag; it orders no other memory.
            if Instant::now() >= end || hurry.load(Ordering::Relaxed) {
                return false;
            }
            registry = self.changed.wait_timeout(registry, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Host {
    /// Begins to host trainers that connect to `listener`.
    ///
    /// # Errors
    /// The system could not create a thread or a descriptor.
    pub fn start(listener: UnixListener, config: HostConfig) -> io::Result<Self> {
        // `accept` follows a poll: a connection that vanished in between must not block it.
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            config,
            closing: wait::Order::new()?,
            exits: death::Exits::default(),
            registry: Mutex::default(),
            changed: Condvar::new(),
        });
        let spawn =
            |name: &str, work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(work);
        let (accepting, measuring, leftover) = (shared.clone(), shared.clone(), shared.clone());
        let mut host = Self { shared, threads: Vec::new() };
        // If a later thread fails to start, dropping the host ends the earlier ones.
        host.threads.push(spawn("memctl-accept", Box::new(move || accept(&accepting, &listener)))?);
        host.threads.push(spawn("memctl-measure", Box::new(move || measure::run(&measuring)))?);
        if host.shared.config.spool.is_some() {
            host.threads.push(spawn("memctl-leftover", Box::new(move || leftover::run(&leftover)))?);
        }
        Ok(host)
    }

    /// Reports that a child of this process has ended and is about to be reaped. After that only this process knows its
    /// exit status.
    pub fn child_ended(&self, pid: u32, exit: Exit) {
        self.shared.exits.add(pid, exit);
    }

    /// Number of trainers that are being recorded.
    #[must_use]
    pub fn recording(&self) -> usize {
        self.shared.registry().recording.len()
    }

    /// Ends the host. Waits for trainers that are still connected, closes the rest, and waits for delivery while there
    /// is progress. Calls `tell` once a second with what remains. `hurry` cuts every wait short. What is not delivered
    /// by then is in the spool, or is counted as dropped when there is no spool. In both cases the end of every session
    /// is recorded.
    #[must_use]
    pub fn finish(mut self, limits: Limits, hurry: &AtomicBool, tell: &dyn Fn(Remaining)) -> Summary {
        let grace = Instant::now() + limits.grace;
        self.shared.wait(grace, hurry, |registry| registry.recording.is_empty());
        self.shared.closing.give();
        for thread in self.threads.drain(..) {
            // A panic in it was logged there.
            let _ = thread.join();
        }
        if !self.wait_in_progress(limits.patience, limits.silence, hurry, tell, |registry| registry.guests == 0) {
            self.give_up(hurry, tell);
        }
        std::mem::take(&mut self.shared.registry().summary)
    }

    /// Waits until `done` holds, as long as deliveries make progress. Returns whether `done` holds.
    fn wait_in_progress(
        &self,
        most: Duration,
        silence: Duration,
        hurry: &AtomicBool,
        tell: &dyn Fn(Remaining),
        done: impl Fn(&Registry) -> bool,
    ) -> bool {
        let end = Instant::now() + most;
        let mut last = (Instant::now(), (usize::MAX, 0));
        loop {
            let pause = end.min(Instant::now() + TELL_EVERY);
            let mut is_silent = false;
            let stopped = self.shared.wait(pause, hurry, |registry| {
                let progress = registry.progress();
                if progress != last.1 {
                    last = (Instant::now(), progress);
                }
                is_silent = last.0.elapsed() >= silence;
                done(registry) || is_silent
            });
            if stopped {
                return !is_silent || done(&self.shared.registry());
            }
            // Relaxed: a flag; it orders no other memory.
            if Instant::now() >= end || hurry.load(Ordering::Relaxed) {
                return false;
            }
            let remaining = self.shared.registry().remaining();
            tell(remaining);
        }
    }

    /// Gives up what is not delivered and moves it into the spool.
    fn give_up(&self, hurry: &AtomicBool, tell: &dyn Fn(Remaining)) {
        let never = AtomicBool::new(false);
        self.shared.wait(Instant::now() + SPILL_SILENCE, &never, |registry| registry.recording.is_empty());
        // A breaker's lock is held while its spool is written, so it must not be taken under the registry's lock.
        let breakers = || -> Vec<Breaker> {
            self.shared.registry().delivering.values().map(|(.., breaker)| breaker.clone()).collect()
        };
        breakers().iter().for_each(Breaker::give_up);
        // Workers that were still emptying a ring write into the spool now. In a hurry, the wait only lasts until
        // dropped events are counted.
        self.wait_in_progress(SPILL_MAX, SPILL_SILENCE, hurry, tell, |registry| registry.delivering.is_empty());
        breakers().iter().for_each(Breaker::cut_short);
        self.shared.wait(Instant::now() + LAST_WORD_MAX, &never, |registry| registry.delivering.is_empty());
        let mut registry = self.shared.registry();
        for (session, failure, breaker) in std::mem::take(&mut registry.delivering).into_values() {
            let (stored, dropped) = (breaker.stored_events(), breaker.lost_events());
            let counts = Counts { stored, dropped, ..Counts::default() };
            let not_accepted = breaker.not_accepted();
            registry.end(EndedSession { session, failure, delivered: false, refused: None, not_accepted, counts });
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shared.closing.give();
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    let mut said = false;
    loop {
        if let [_, true] = wait::ready([listener.as_raw_fd(), shared.closing.fd()], None) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => welcome(shared, stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(%error, "trainers cannot be accepted; they run unrecorded");
                }
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Starts a thread for a connection.
fn welcome(shared: &Arc<Shared>, mut stream: UnixStream) {
    let full = {
        let mut registry = shared.registry();
        let full = registry.guests >= shared.config.trainers_max;
        registry.guests += usize::from(!full);
        full
    };
    if full {
        let most = shared.config.trainers_max;
        turn_away(shared, &mut stream, &format!("{most} trainers are recorded here already, which is the most"));
        return;
    }
    let guest = Guest(shared.clone());
    let started =
        std::thread::Builder::new().name("memctl-trainer".into()).spawn(move || trainer::serve(&guest.0, stream));
    if let Err(error) = started {
        // The closure owned the connection: the trainer sees it closed and runs unrecorded.
        tracing::warn!(%error, "no thread for a trainer; it runs unrecorded");
    }
}

/// A thread that serves a connection. Dropping it reduces the count of guests.
struct Guest(Arc<Shared>);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.registry().guests -= 1;
        self.0.changed.notify_all();
    }
}

/// Refuses a connection. A peer that never reads does not block it: the text fits the socket's buffer.
fn turn_away(shared: &Shared, stream: &mut UnixStream, reason: &str) {
    tracing::debug!(reason, "a connection was refused");
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = link::answer(stream, Some(reason));
    let mut registry = shared.registry();
    registry.summary.refused += 1;
    registry.summary.refused_because = Some(reason.to_owned());
}
