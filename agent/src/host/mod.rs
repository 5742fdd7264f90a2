//! Hosts trainers of other processes: takes their regions over a socket, empties them, measures them, and says how they died.
//!
//! One thread a trainer (beside its agent's two), one that accepts, one that measures, one for what earlier runs left
//! in the spool. A trainer is never waited for and never waits: it writes into its region whether somebody reads or not.
//! Guarantees: everything that was pushed before a trainer's death is taken; one trainer's end or delivery holds no other
//! up; threads and memory are bounded, whoever connects; the end of [`Host::finish`] has a limit.
//! Refuses: users other than its own, more trainers than [`HostConfig::trainers_max`], and to signal any process.
//! (Over 400 lines: its settings, its threads and what it knows are one state.)

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

use memctl_model::{SessionId, SessionInfo};

use crate::agent::{Breaker, SpoolConfig};
use crate::launcher;
use crate::ledger::Counts;
use crate::link;
use crate::source_paths::SourcePaths;
use crate::uplink::Daemon;
use crate::uplink::backoff::Backoff;

pub use crate::sample::host::Exit;
pub use leftover::{Waiting, deliver_spool, living_spools, spooled_bytes, waiting};
pub use wait::can_watch_processes;

/// How often a wait looks whether it was cut short.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// After giving up: time in which a worker has to get on with putting what it holds into the spool,
const SPILL_SILENCE: Duration = Duration::from_secs(5);
/// and in all, unless somebody is in a hurry.
const SPILL_MAX: Duration = Duration::from_secs(60);
/// Then it drops the rest, counts it and writes its last word, which takes milliseconds.
const LAST_WORD_MAX: Duration = Duration::from_secs(5);
/// Between two words of how far the end is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Sessions whose end is kept for the summary; more are counted.
const ENDED_MAX: usize = 4_096;
/// Accepting fails when descriptors run out; trying again at once would not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Trainers of one machine: two a device of the largest, and as many again that start while others end.
const TRAINERS_MAX: usize = 256;
/// Descriptors of a trainer: connection, region, pidfd, the agent's runtime (3), its spool (2) and its own connection.
const DESCRIPTORS_EACH: u64 = 10;
/// Descriptors of everybody else in the process: a store with its connections, standard streams, logs.
const DESCRIPTORS_KEPT: u64 = 64;

/// How many trainers a process can host that may have so many descriptors: a store in the same process must not run dry.
#[must_use]
pub fn trainers_max(descriptors: u64) -> usize {
    let room = descriptors.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_EACH;
    usize::try_from(room).map_or(TRAINERS_MAX, |room| room.clamp(1, TRAINERS_MAX))
}

/// What a host needs to know.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Where sessions go.
    pub daemon: Daemon,
    /// Disk for what the daemon has not taken yet.
    pub spool: Option<SpoolConfig>,
    /// Trainers at the same time, see [`trainers_max`].
    pub trainers_max: usize,
    /// Waits between attempts to reach the daemon.
    pub backoff: Backoff,
    /// How often trainers are measured.
    pub measure_every: Duration,
    /// What leaves the host of the paths of source files.
    pub source_paths: SourcePaths,
    /// The number of this launch, which its sessions have in common.
    pub launcher: u64,
    /// Whether trainers may be asked what holds their tensors.
    pub holders: bool,
    /// Whether the daemon may ask that by itself, once for each leak that it confirms.
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
            // Trainers wait for their delivery at the end of a run: a daemon that came back is to be noticed by then.
            backoff: Backoff { most: Duration::from_secs(2), ..Backoff::default() },
            measure_every: Duration::from_secs(1),
            source_paths: SourcePaths::default(),
            launcher: launcher::drawn(),
            holders: true,
            holders_unasked: false,
        }
    }
}

/// How long the end may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For trainers that are still connected.
    pub grace: Duration,
    /// For delivery, in all.
    pub patience: Duration,
    /// For delivery while nothing gets on: neither is anything packed, nor does the daemon acknowledge anything.
    pub silence: Duration,
}

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Sessions that are not delivered.
    pub sessions: usize,
    /// Their events that are neither stored nor dropped.
    pub events: u64,
}

/// A session that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Who it was.
    pub session: SessionInfo,
    /// How it failed, as the host saw it; the trainer's own words for it go before.
    pub failure: Option<String>,
    /// Everything is stored.
    pub delivered: bool,
    /// The daemon's words, when it refused the session for good.
    pub refused: Option<String>,
    /// Its events. Of a session that was given up only what is known: stored ones, and those that found no room.
    pub counts: Counts,
}

/// What a host has seen.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Sessions that have ended, the first 4,096 of them.
    pub ended: Vec<Ended>,
    /// Sessions beyond.
    pub more: u64,
    /// Connections that were refused, and the last reason.
    pub refused: u64,
    /// See [`Self::refused`].
    pub refused_because: Option<String>,
}

/// A host at work.
pub struct Host {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads of a host share.
struct Shared {
    config: HostConfig,
    /// Given when nobody is to be recorded any more.
    closing: wait::Order,
    exits: death::Exits,
    registry: Mutex<Registry>,
    changed: Condvar,
}

/// Who is here.
#[derive(Default)]
struct Registry {
    /// Threads that serve a connection, in whatever state.
    guests: usize,
    /// Sessions and regions (device and inode) that have a thread: each has one.
    claimed: Vec<(SessionId, (u64, u64))>,
    /// Trainers being recorded, by number.
    recording: BTreeMap<u64, Arc<trainer::Trainer>>,
    /// Trainers that have ended and are being delivered.
    delivering: BTreeMap<u64, (SessionInfo, Option<String>, Breaker)>,
    next: u64,
    summary: Summary,
}

impl Registry {
    fn end(&mut self, ended: Ended) {
        if self.summary.ended.len() < ENDED_MAX {
            self.summary.ended.push(ended);
        } else {
            self.summary.more += 1;
        }
    }

    /// Grows as long as those being delivered get on.
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

    /// Waits until `done`, at most until `end`, and not when `hurry` is set. Says whether it is done.
    fn wait(&self, end: Instant, hurry: &AtomicBool, mut done: impl FnMut(&Registry) -> bool) -> bool {
        let mut registry = self.registry();
        loop {
            if done(&registry) {
                return true;
            }
            // Relaxed: a wish; nothing else is seen with it.
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
    /// The system gives no thread or no descriptor.
    pub fn start(listener: UnixListener, config: HostConfig) -> io::Result<Self> {
        // `accept` follows a look: a connection that vanished in between must not hold it.
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
        // Dropping the host ends what has started when a later thread does not.
        host.threads.push(spawn("memctl-accept", Box::new(move || accept(&accepting, &listener)))?);
        host.threads.push(spawn("memctl-measure", Box::new(move || measure::run(&measuring)))?);
        if host.shared.config.spool.is_some() {
            host.threads.push(spawn("memctl-leftover", Box::new(move || leftover::run(&leftover)))?);
        }
        Ok(host)
    }

    /// A child of this process has ended and is about to be reaped: after that only this process knows how.
    pub fn child_ended(&self, pid: u32, exit: Exit) {
        self.shared.exits.add(pid, exit);
    }

    /// Trainers being recorded.
    #[must_use]
    pub fn recording(&self) -> usize {
        self.shared.registry().recording.len()
    }

    /// Ends: waits for trainers that are still connected, closes the rest, and waits for delivery as long as it gets on;
    /// `tell` hears once a second how far it is. `hurry` cuts every wait short. What is not delivered then lies in the
    /// spool, if there is one, and is counted as dropped otherwise; every session has its last word in either case.
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

    /// Waits until `done` as long as deliveries get on. Says whether it is done.
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
            // Relaxed: a wish; nothing else is seen with it.
            if Instant::now() >= end || hurry.load(Ordering::Relaxed) {
                return false;
            }
            let remaining = self.shared.registry().remaining();
            tell(remaining);
        }
    }

    /// Gives up what is not delivered: into the spool with it.
    fn give_up(&self, hurry: &AtomicBool, tell: &dyn Fn(Remaining)) {
        let never = AtomicBool::new(false);
        self.shared.wait(Instant::now() + SPILL_SILENCE, &never, |registry| registry.recording.is_empty());
        // A breaker's lock is held while its spool is written: not under ours.
        let breakers = || -> Vec<Breaker> {
            self.shared.registry().delivering.values().map(|(.., breaker)| breaker.clone()).collect()
        };
        breakers().iter().for_each(Breaker::give_up);
        // Workers that were still emptying a ring find the way into the spool. Who is in a hurry waits for nothing but that
        // what is dropped is counted.
        self.wait_in_progress(SPILL_MAX, SPILL_SILENCE, hurry, tell, |registry| registry.delivering.is_empty());
        breakers().iter().for_each(Breaker::cut_short);
        self.shared.wait(Instant::now() + LAST_WORD_MAX, &never, |registry| registry.delivering.is_empty());
        let mut registry = self.shared.registry();
        for (session, failure, breaker) in std::mem::take(&mut registry.delivering).into_values() {
            let (stored, dropped) = (breaker.stored_events(), breaker.lost_events());
            let counts = Counts { stored, dropped, ..Counts::default() };
            registry.end(Ended { session, failure, delivered: false, refused: None, counts });
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

/// Gives a connection its thread.
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
        // The connection went with the closure: the trainer sees its end and runs unrecorded.
        tracing::warn!(%error, "no thread for a trainer; it runs unrecorded");
    }
}

/// A thread that serves a connection, for as long as it does.
struct Guest(Arc<Shared>);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.registry().guests -= 1;
        self.0.changed.notify_all();
    }
}

/// Says no. A peer that never listens does not matter: the words fit the socket's buffer.
fn turn_away(shared: &Shared, stream: &mut UnixStream, reason: &str) {
    tracing::debug!(reason, "a connection was refused");
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = link::answer(stream, Some(reason));
    let mut registry = shared.registry();
    registry.summary.refused += 1;
    registry.summary.refused_because = Some(reason.to_owned());
}
