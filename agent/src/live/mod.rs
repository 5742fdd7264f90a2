//! The agent inside a training process that is written in another language. The Python package calls these functions.
//!
//! A process has one session at a time: [`start`], [`Live::attach_hook`], marks, [`stop`]. Recorded data goes into a
//! [`Region`]. The launcher empties the region; without a launcher, threads of this process do.
//!
//! Guarantees: after [`start`] no call except [`stop`] waits for a daemon, a launcher or a disk. A forked child records
//! nothing until it starts its own session. The hook stays in memory while an allocator may be inside it.
//! Refuses: to force CUDA to initialise, and to record events from before the session.
//!
//! (Over 400 lines: a session's start, its calls and its end share one state and one set of guarantees.)

pub mod foreign;
mod shim;
mod takeover;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use memctl_model::{DeviceIndex, Keyframe, KeyframeReason, MarkKind, Sample, SessionInfo};

use crate::agent::{Agent, AgentConfig, SpoolConfig, StartError};
use crate::clock::{now_ns, ticks};
use crate::credentials::Credentials;
use crate::hook::frames::Version;
use crate::hook::proof;
use crate::hook::{self, Hook};
use crate::link;
use crate::reach::DaemonAddress;
use crate::region::{Region, messages, notes};
use crate::ring::Position;
use crate::source_paths::SourcePaths;
use crate::uplink::Daemon;
use shim::{RawOutOfMemory, Shim};
use takeover::Launcher;

pub use crate::hook::code_deaths::died as code_died;
pub use crate::hook::proof::InterpreterFrame;
pub use crate::link::LinkError;
pub use crate::region::holders::HolderSearchRequest;
pub use crate::region::messages::mark_kind;
pub use crate::region::{Level, RegionError};
pub use shim::{ABI as SHIM_ABI, ShimError};

/// Minimum interval between queries of the device's memory. One query takes 6 to 9 µs on an H200.
const DEVICE_EVERY_NS: u64 = 100_000_000;

/// Configuration of a session in a training process.
#[derive(Clone)]
pub struct LiveConfig {
    /// The session. Its devices are CUDA ordinals, numbered from 0 without gaps.
    pub session: SessionInfo,
    /// Number of events that a ring can hold.
    pub ring_events: usize,
    /// The launcher's socket, when there is a launcher.
    pub launcher: Option<PathBuf>,
    /// The daemon's address. It is used when there is no launcher, or after the launcher has gone.
    pub daemon: DaemonAddress,
    /// Disk space for what that daemon does not accept.
    pub spool: Option<SpoolConfig>,
    /// How paths of source files are treated before they leave the host. A launcher uses its own setting instead.
    pub source_paths: SourcePaths,
    /// Returns the calling thread's Python thread state, 0 when it has none.
    pub thread_state: extern "C" fn() -> usize,
    /// Python's version, when there is a Python.
    pub python: Option<(u8, u8)>,
    /// Whether holders of its tensors may be requested from the process.
    pub holders: bool,
    /// Whether the daemon may request that without a user, once for each leak that it confirms.
    pub holders_unasked: bool,
}

/// Why a session in a training process did not start. Training continues without it.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// A process has one session at a time.
    #[error("this process is recorded already, as job {0}: detach first")]
    Attached(String),
    /// The shared memory cannot be created.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The launcher cannot be reached or refused the session.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The agent's threads did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The shim cannot be used.
    #[error(transparent)]
    Shim(#[from] ShimError),
    /// The system gave no random id for a session.
    #[error("no random number is available: {0}")]
    NoRandom(String),
    /// PyTorch's allocator is recorded already, and a session has one source of events.
    #[error("PyTorch's allocator is recorded here, and a session has one source of events: detach first")]
    Hooked,
    /// Another allocator is recorded already: the reverse of `Hooked`.
    #[error("another allocator than PyTorch's is recorded here, and a session has one source of events: detach first")]
    Foreign,
    /// This process has no session.
    #[error("nothing is recorded here: attach first")]
    Detached,
}

enum Host {
    /// A launcher. The session ends with the connection.
    Launcher(Launcher),
    /// Threads of this process.
    Threads(Option<Box<Agent>>),
}

/// The recording of this process.
pub struct Live {
    session: SessionInfo,
    region: Arc<Region>,
    notes: Mutex<notes::Writer>,
    /// Created by `attach_hook`, removed by `stop`. The allocator's callbacks reach it without this lock, see
    /// `close_gate`.
    hook: RwLock<Option<Box<Hook>>>,
    shim: OnceLock<Shim>,
    /// Set when an allocator reports its events itself; locked before `hook`.
    foreign: Mutex<Option<foreign::Foreign>>,
    host: Mutex<Host>,
    thread_state: extern "C" fn() -> usize,
    device_asked_ns: AtomicU64,
    daemon: String,
}

/// The session, if there is one.
static LIVE: Mutex<Option<Arc<Live>>> = Mutex::new(None);
/// The process that owns the session: a forked child has another pid.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The shim whose tracker is attached, for the life of the process.
static SHIM: OnceLock<Shim> = OnceLock::new();
/// Whether recording has ended permanently in this process.
static SILENT: AtomicBool = AtomicBool::new(false);

fn live() -> MutexGuard<'static, Option<Arc<Live>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the gate in this process at once, without a lock. A forked child calls this, and so does the interpreter's
/// shutdown.
pub fn silence() {
    // SAFETY: nothing is installed.
    unsafe { hook::install(None) };
    // Relaxed: in a forked child only this thread exists; otherwise the order in which other threads see it does not
    // matter.
    SILENT.store(true, Ordering::Relaxed);
}

fn is_silent() -> bool {
    // Relaxed: see `silence`.
    SILENT.load(Ordering::Relaxed) || OWNER.load(Ordering::Relaxed) != std::process::id()
}

/// The session of this process, if it has one.
#[must_use]
pub fn current() -> Option<Arc<Live>> {
    if is_silent() { None } else { live().clone() }
}

/// Starts a session of this process.
///
/// # Errors
/// See [`LiveError`]; nothing is recorded then.
pub fn start(config: LiveConfig) -> Result<Arc<Live>, LiveError> {
    let mut slot = live();
    // Relaxed: under the lock.
    if OWNER.swap(std::process::id(), Ordering::Relaxed) != std::process::id() {
        // This is the parent's session in a forked child. Its threads do not exist here, so it must not be dropped.
        std::mem::forget(slot.take());
    }
    if let Some(running) = &*slot {
        return Err(LiveError::Attached(running.session.job.clone()));
    }
    let alone = config.launcher.is_some().then(|| config.clone());
    let session = Arc::new(made(config)?);
    SILENT.store(false, Ordering::Relaxed);
    *slot = Some(session.clone());
    if let (Host::Launcher(launcher), Some(alone)) = (&*session.host(), alone) {
        launcher.watch(&session, alone);
    }
    Ok(session)
}

/// Makes a session; the caller publishes it.
fn made(config: LiveConfig) -> Result<Live, LiveError> {
    let region = Region::create(config.session.devices.len() as u32, config.ring_events)?;
    if let Some((major, minor)) = config.python {
        region.set_python(major, minor);
    }
    if !config.holders {
        region.forbid_holders();
    }
    let host = match &config.launcher {
        Some(socket) => Host::Launcher(Launcher::new(link::greet(socket, &config.session, region.fd())?)),
        None => Host::Threads(Some(Box::new(own_host(&config, &region)?))),
    };
    Ok(Live {
        notes: Mutex::new(region.notes_writer()),
        session: config.session,
        region,
        hook: RwLock::new(None),
        shim: OnceLock::new(),
        foreign: Mutex::new(None),
        host: Mutex::new(host),
        thread_state: config.thread_state,
        device_asked_ns: AtomicU64::new(0),
        daemon: config.daemon.url,
    })
}

/// Starts threads of this process that empty the region. They spool what the daemon does not accept, if the spool can
/// be used. They do not deliver what other processes left in the spool, because that is not a trainer's work.
fn own_host(config: &LiveConfig, region: &Arc<Region>) -> Result<Agent, StartError> {
    let own = Credentials::from_environment(&|name| std::env::var(name).ok());
    let usual = AgentConfig {
        source_paths: config.source_paths.clone(),
        holders: config.holders,
        holders_unasked: config.holders_unasked,
        ..AgentConfig::new(config.session.clone(), Daemon::Address(config.daemon.clone()).showing(own))
    };
    let with = AgentConfig { spool: config.spool.clone(), orphans: false, ..usual.clone() };
    match Agent::host(with, region) {
        Err(error @ StartError::Spool { .. }) => {
            tracing::warn!(%error, "recording continues without a spool: events that the daemon does not accept in time are lost");
            Agent::host(usual, region)
        }
        other => other,
    }
}

/// How a session of this process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Whether everything is stored. `None` under a launcher, which does the delivery.
    pub delivered: Option<bool>,
    /// Events produced.
    pub produced: u64,
    /// Events stored, as far as this process knows.
    pub stored: Option<u64>,
    /// Events dropped.
    pub dropped: u64,
    /// Events in the spool, undelivered.
    pub waiting: u64,
    /// The daemon's reason, when it refused the session.
    pub refused: Option<String>,
}

/// Ends the session of this process. Waits at most for `patience`, and not at all under a launcher. `leaving` means
/// that the process is about to end. A launcher sees its exit code, which becomes the session's result when there is no
/// `failure`.
pub fn stop(failure: Option<&str>, patience: Duration, leaving: bool) -> Option<Stopped> {
    if is_silent() {
        return None;
    }
    let session = live().take()?;
    Some(session.stop(failure, patience, leaving))
}

impl Live {
    /// The session.
    #[must_use]
    pub fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// The configured daemon's address; a launcher uses its own.
    #[must_use]
    pub fn daemon(&self) -> &str {
        &self.daemon
    }

    /// Whether a launcher hosts the session.
    #[must_use]
    pub fn has_launcher(&self) -> bool {
        matches!(*self.host(), Host::Launcher(_))
    }

    /// The recording level.
    #[must_use]
    pub fn level(&self) -> Level {
        self.region.level()
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hook(&self) -> RwLockReadGuard<'_, Option<Box<Hook>>> {
        self.hook.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the shim for this `build` of torch, attaches it to the allocator and enables events. Recording begins with
    /// the allocator's current blocks.
    ///
    /// # Errors
    /// See [`ShimError`]; the session continues without events.
    pub fn attach_hook(&self, path: &std::path::Path, build: &str) -> Result<(), LiveError> {
        if self.foreign().is_some() {
            return Err(LiveError::Foreign);
        }
        let mut slot = self.hook.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() {
            return Ok(());
        }
        let shim = match SHIM.get() {
            Some(shim) => *shim,
            None => {
                let shim = Shim::load(path, build)?;
                shim.attach(on_out_of_memory)?;
                *SHIM.get_or_init(|| shim)
            }
        };
        let _ = self.shim.set(shim);
        let hook = slot.insert(Box::new(Hook::new(self.region.clone(), self.thread_state, shim.for_hook())));
        // SAFETY: `close_gate` removes it before the box is dropped.
        unsafe { hook::install(Some(hook)) };
        drop(slot);
        self.region.set_level(Level::Events);
        self.begin(&shim);
        Ok(())
    }

    /// Records the state with which recording begins, if the allocator has reserved memory.
    fn begin(&self, shim: &Shim) {
        let used = (0..self.session.devices.len() as u32)
            .any(|device| shim.counters(device).is_some_and(|counters| counters.reserved > 0));
        if used {
            self.snapshot(KeyframeReason::Start);
        }
    }

    /// Turns stacks on if this thread's frames, innermost first, match what the interpreter itself reports. `deaths`
    /// states that the caller calls [`code_died`] for every code object that dies.
    pub fn check_stacks(&self, python: (u8, u8), shown: &[InterpreterFrame], deaths: bool) -> bool {
        let Some(version) = Version::of(python.0, python.1) else { return false };
        let frames: Vec<(usize, u32)> = shown.iter().map(|frame| (frame.code, frame.lasti)).collect();
        let hook = self.hook();
        let agrees = hook.as_ref().is_some_and(|hook| {
            let agrees = shown.iter().all(|frame| proof::parts_agree(version, python, frame))
                && hook.check_stacks(version, &frames);
            if agrees && deaths {
                hook.trust_places(version);
            }
            agrees
        });
        if agrees {
            self.region.set_level(Level::Stacks);
        }
        agrees
    }

    /// Allocates the pages of a device's ring before the first event needs them.
    pub fn populate(&self, device: u32) {
        if device < self.region.devices() {
            self.region.populate(device);
        }
    }

    fn push(&self, note: &[u8]) -> bool {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(&[note])
    }

    fn positions(&self) -> Vec<Position> {
        match &*self.hook() {
            Some(hook) => hook.positions(),
            None => vec![Position::default(); self.session.devices.len()],
        }
    }

    /// Marks this moment. The end of a step also records the allocator's counters and the device's memory. The end of a
    /// step or epoch also records the devices' state if it was requested.
    pub fn mark(&self, kind: &MarkKind) -> bool {
        if matches!(kind, MarkKind::StepEnd(_)) {
            self.sample();
        }
        let marked = self.push(&messages::mark(ticks(), kind, &self.positions()));
        if matches!(kind, MarkKind::StepEnd(_) | MarkKind::EpochEnd(_)) {
            self.answer_requests();
        }
        marked
    }

    /// Marks an end that was not seen when it happened. It gets the state of the last end of a step or of an
    /// evaluation. This is for the last epoch of a program that is ending and has freed its memory.
    pub fn mark_ended(&self, kind: &MarkKind) -> bool {
        self.push(&messages::mark(ticks(), kind, &[]))
    }

    /// Records that gradients were freed. If the program ends now, this is the state after its last step.
    pub fn settled(&self) -> bool {
        self.push(&messages::settled(&self.positions()))
    }

    /// Reads the allocator's counters of every device in use, and at intervals the device's memory.
    pub fn sample(&self) {
        let Some(shim) = self.shim.get() else { return };
        let time_ns = now_ns();
        let device_memory = self.device_memory(time_ns, shim);
        let samples: Vec<Sample> = (0..self.session.devices.len())
            .filter(|&device| self.hook().as_ref().is_some_and(|hook| hook.is_used(device)))
            .filter_map(|device| Some((device, shim.counters(device as u32)?)))
            .map(|(device, counters)| {
                let bytes = |count: i64| u64::try_from(count).ok();
                let current = device_memory.filter(|(ordinal, ..)| *ordinal as usize == device);
                Sample {
                    device: DeviceIndex(device as u8),
                    time_ns,
                    allocated_bytes: bytes(counters.allocated),
                    active_bytes: bytes(counters.active),
                    reserved_bytes: bytes(counters.reserved),
                    peak_allocated_bytes: bytes(counters.peak_allocated),
                    peak_reserved_bytes: bytes(counters.peak_reserved),
                    alloc_retries: bytes(counters.retries),
                    ooms: bytes(counters.ooms),
                    device_used_bytes: current.map(|(_, used, _)| used),
                    device_total_bytes: current.map(|(.., total)| total),
                    ..Sample::default()
                }
            })
            .collect();
        if !samples.is_empty() {
            self.push(&messages::samples(&samples));
        }
    }

    /// Ordinal, used and total bytes of the calling thread's device.
    fn device_memory(&self, now_ns: u64, shim: &Shim) -> Option<(u32, u64, u64)> {
        // Relaxed: a rate limit.
        let before = self.device_asked_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(before) < DEVICE_EVERY_NS || shim.is_capturing() {
            return None;
        }
        self.device_asked_ns.store(now_ns, Ordering::Relaxed);
        let ordinal = shim.current_device()?;
        let memory = driver_memory()?;
        Some((ordinal, memory.0, memory.1))
    }

    /// Records counters from the caller, for sessions without a shim.
    pub fn counters(&self, sample: Sample) -> bool {
        self.push(&messages::samples(&[Sample { time_ns: now_ns(), ..sample }]))
    }

    /// Whether the state of a device is requested.
    fn is_snapshot_wanted(&self) -> bool {
        (0..self.session.devices.len()).any(|device| self.region.snapshot_wanted(device))
    }

    fn answer_requests(&self) {
        if self.is_snapshot_wanted() && !self.shim.get().is_some_and(Shim::is_capturing) {
            self.snapshot(KeyframeReason::AfterDrop);
        }
    }

    /// The host's request for holders. Each request is returned once. It is read at the end of a step, or by a thread
    /// that waits on the word.
    #[must_use]
    pub fn holders_asked(&self) -> Option<HolderSearchRequest> {
        self.region.holders_asked()
    }

    /// The address of the word that shows whether there is a request (see [`Region::holders_word`]).
    #[must_use]
    pub fn holders_word(&self) -> Option<usize> {
        self.region.holders_word()
    }

    /// Answers a request for holders with the result of the search, as JSON.
    pub fn holders_answer(&self, ask: u64, json: &str) -> bool {
        self.push(&messages::holders(ask, json))
    }

    /// Sends the state of every device, with the ring's position at which it was read.
    pub fn snapshot(&self, reason: KeyframeReason) -> bool {
        let Some(shim) = self.shim.get() else { return self.foreign_states(reason) };
        let Some(keyframes) = shim.keyframes(now_ns(), reason) else { return false };
        let mut all = true;
        for device in 0..self.session.devices.len() {
            let position = self.hook().as_ref().and_then(|hook| hook.snapshot_position(device));
            let Some(position) = position else { continue };
            let found = keyframes.iter().find(|keyframe| usize::from(keyframe.device.0) == device);
            if found.is_none() && !self.region.snapshot_wanted(device) {
                continue;
            }
            let empty = || Keyframe {
                device: DeviceIndex(device as u8),
                at_event: 0,
                time_ns: now_ns(),
                reason,
                segments: Vec::new(),
                loose: Vec::new(),
            };
            all &= self.state(&found.cloned().unwrap_or_else(empty), position);
        }
        all
    }

    /// Lowers this session's recording level to `level`.
    pub fn lower(&self, level: Level) {
        if self.region.level() != level {
            self.region.set_level(level);
        }
    }

    /// Sends a state from the caller, for sessions without a shim.
    pub fn blocks(&self, keyframe: &Keyframe) -> bool {
        let position = self.positions().get(usize::from(keyframe.device.0)).copied().unwrap_or_default();
        self.state(keyframe, position)
    }

    fn state(&self, keyframe: &Keyframe, position: Position) -> bool {
        let sent = self.push(&messages::keyframe(keyframe, position));
        if sent {
            self.region.want_snapshot(usize::from(keyframe.device.0), false);
        }
        sent
    }

    /// The session's state, for `status()`.
    #[must_use]
    pub fn status(&self) -> Status {
        let positions = self.positions();
        let (pushed, lost) =
            positions.iter().fold((0, 0), |(pushed, lost), at| (pushed + at.pushed, lost + at.dropped));
        let (mut counts, mut trouble) = (None, None);
        if let Host::Threads(Some(agent)) = &*self.host() {
            counts = Some(agent.counts());
            trouble = agent.refused();
        }
        Status {
            level: self.region.level(),
            produced: pushed + lost,
            stored: counts.map(|counts| counts.stored),
            dropped: counts.map_or(lost, |counts| counts.dropped),
            stacks: self.hook().as_ref().map_or(0, |hook| u64::from(hook.stacks())),
            stacks_lost: self.region.stacks_lost(),
            notes_dropped: self.notes.lock().unwrap_or_else(PoisonError::into_inner).dropped(),
            trouble,
        }
    }

    fn stop(&self, failure: Option<&str>, patience: Duration, leaving: bool) -> Stopped {
        if let Some(text) = failure {
            self.push(&messages::failure(text));
        }
        let status = self.status();
        self.close_gate();
        match (failure, leaving) {
            (None, true) => self.region.leave(),
            _ => self.region.end(),
        }
        let mut host = self.host();
        let agent = match &mut *host {
            Host::Launcher(_) => None,
            Host::Threads(agent) => agent.take(),
        };
        let Some(agent) = agent else {
            return Stopped { produced: status.produced, dropped: status.dropped, ..Stopped::default() };
        };
        let outcome = agent.stop(failure.map(str::to_owned), patience);
        Stopped {
            delivered: Some(outcome.delivered),
            produced: outcome.counts.produced,
            stored: Some(outcome.counts.stored),
            dropped: outcome.counts.dropped,
            waiting: if outcome.delivered { 0 } else { outcome.counts.in_flight },
            refused: outcome.refused,
        }
    }

    /// Closes the gate and frees the hook once no callback can be inside it. A callback runs under its device's lock.
    /// When every lock has been held once since the gate closed, all callbacks that saw it open have returned.
    fn close_gate(&self) {
        // SAFETY: nothing is installed.
        unsafe { hook::install(None) };
        let hook = self.hook.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(shim) = self.shim.get() else { return };
        let passed = (0..self.session.devices.len() as u32).all(|device| shim.counters(device).is_some());
        if !passed {
            // A callback may still be inside: the hook stays in memory.
            std::mem::forget(hook);
        }
    }
}

/// Used and total bytes of the calling thread's device, where the driver is available.
#[cfg(feature = "driver")]
fn driver_memory() -> Option<(u64, u64)> {
    let memory = crate::sample::driver::mem_info().ok()?;
    Some((memory.used_bytes, memory.total_bytes))
}

#[cfg(not(feature = "driver"))]
fn driver_memory() -> Option<(u64, u64)> {
    None
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The recording level.
    pub level: Level,
    /// Events produced.
    pub produced: u64,
    /// Events stored, as far as this process knows.
    pub stored: Option<u64>,
    /// Events dropped.
    pub dropped: u64,
    /// Number of distinct stacks.
    pub stacks: u64,
    /// Stacks that could not be recorded.
    pub stacks_lost: u64,
    /// Marks, measurements and states that were dropped for lack of room.
    pub notes_dropped: u64,
    /// The daemon's refusal, if any.
    pub trouble: Option<String>,
}

/// The out-of-memory observer. PyTorch calls it outside the device's lock, just before it throws.
extern "C" fn on_out_of_memory(raw: *const RawOutOfMemory) {
    let caught = std::panic::catch_unwind(|| {
        // SAFETY: the shim passes a valid structure.
        let raw = unsafe { *raw };
        let (Some(live), Ok(device)) = (current(), u8::try_from(raw.device)) else { return };
        live.counters(Sample {
            device: DeviceIndex(device),
            device_used_bytes: Some(raw.device_total.saturating_sub(raw.device_free)),
            device_total_bytes: Some(raw.device_total),
            ..Sample::default()
        });
    });
    if caught.is_err() {
        silence();
    }
}
