//! An agent: the rings, worker and uplink of one session. A trainer holds a handle to it.
//!
//! Guarantees: the agent works in two threads of its own, a worker that packs and an uplink that sends. Calls on the
//! handle do not block, except for the `stop` functions, which have a deadline, and the `_waiting` functions, which
//! wait for room. Faults inside the agent are logged and counted and never reach the trainer.
//!
//! (Over 400 lines: the handle, its configuration, its errors and its outcome are one public surface and are read together.)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memctl_model::Backoff;
use memctl_model::limits::NAME_BYTES_MAX;
use memctl_model::{
    Boundary, DeviceIndex, Frame, Keyframe, Mark, MarkKind, Phase, Sample, SessionEnd, SessionInfo, StackId,
};
use memctl_proto::v1::HolderSearch;
use memctl_proto::{WireError, v1};
use tokio::sync::mpsc;

use crate::batch::cut::{cut, cut_text};
use crate::batch::note::Note;
use crate::batch::translate::Translator;
use crate::batch::worker::{Ending, Request, Worker};
use crate::batch::{BatchConfig, Batcher};
use crate::clock::now_ns;
use crate::holders::Asks;
use crate::holders::search::{self, Search};
use crate::ledger::{Counts, Ledger};
use crate::recorder::{Recorder, Stopped};
use crate::region::Region;
use crate::ring::{self, Consumer, Gauge, Position};
use crate::secret::SessionSecret;
use crate::source_paths::SourcePaths;
use crate::uplink::spool::Spool;
use crate::uplink::window::Window;
use crate::uplink::{self, Daemon, Link, UplinkEnd};

/// Maximum number of marks, stacks and samples that wait for the worker. The fastest loop fills this in seconds.
/// Further ones are dropped and counted.
const NOTES_MAX: usize = 65_536;
/// How often `stop` checks whether everything is sent.
const STOP_LOOKS: Duration = Duration::from_millis(2);

/// Disk space for what the daemon has not accepted yet.
#[derive(Clone, Debug)]
pub struct SpoolConfig {
    /// The folder. Each session has its own subfolder.
    pub folder: std::path::PathBuf,
    /// Bytes a session may use.
    pub bytes_max: u64,
}

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Who this is.
    pub session: SessionInfo,
    /// The secret that proves that the session belongs to this agent.
    pub secret: SessionSecret,
    /// The daemon that receives the session.
    pub daemon: Daemon,
    /// Events a ring holds at most, per device, see [`ring::EVENTS`].
    pub ring_events: usize,
    /// Bytes of unacknowledged items in memory.
    pub memory_bytes_max: u64,
    /// Disk for more, if wanted.
    pub spool: Option<SpoolConfig>,
    /// Whether to deliver also what dead processes left in the spool's folder.
    pub orphans: bool,
    /// How long recorded data may wait before it is sent. With `None`, items are cut by content alone (for recordings).
    pub linger: Option<Duration>,
    /// Waits between attempts to reach the daemon.
    pub backoff: Backoff,
    /// Boundaries that were inferred from a recording because no marks give them.
    pub found: Vec<Boundary>,
    /// How paths of source files are treated before they leave the host.
    pub source_paths: SourcePaths,
    /// Whether holders of its tensors may be requested from the process.
    pub holders: bool,
    /// Whether the daemon may request that without a user, once for each leak that it confirms.
    pub holders_unasked: bool,
}

impl AgentConfig {
    /// The usual configuration of a live session.
    #[must_use]
    pub fn new(session: SessionInfo, daemon: Daemon) -> Self {
        Self {
            session,
            secret: SessionSecret::random(),
            daemon,
            ring_events: ring::EVENTS,
            memory_bytes_max: 8 << 20,
            spool: None,
            orphans: true,
            linger: Some(Duration::from_secs(1)),
            backoff: Backoff::default(),
            found: Vec::new(),
            source_paths: SourcePaths::default(),
            holders: true,
            holders_unasked: false,
        }
    }
}

/// Why an agent did not start. The trainer continues without it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A session without devices has nothing to record.
    #[error("the session names no device")]
    NoDevice,
    /// Session and region disagree.
    #[error("the session has {session} devices, the trainer's memory region {region}, numbered from 0")]
    Devices {
        /// Number of devices of the session.
        session: usize,
        /// Number of devices of the region.
        region: u32,
    },
    /// A daemon would refuse the session.
    #[error("the session cannot be recorded: {0}")]
    Session(WireError),
    /// The spool's folder cannot be used.
    #[error("spool {folder}: {source}; choose another folder or go without")]
    Spool {
        /// The folder.
        folder: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The encoder could not be set up (out of memory).
    #[error("the encoder could not be set up: {0}")]
    Codec(memctl_proto::chunk::ChunkError),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(std::io::Error),
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Counts of its events.
    pub counts: Counts,
    /// The session's end as it was sent.
    pub end: SessionEnd,
    /// Everything is stored, including the session's end, and nothing was given up.
    pub delivered: bool,
    /// The daemon's reason, when it refused the session permanently.
    pub refused: Option<String>,
    /// The daemon's reason, when it did not accept the last items for now.
    pub not_accepted: Option<String>,
    /// Marks, stacks and samples that found no room.
    pub notes_dropped: u64,
}

/// Time limits for ending a session.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The time limit in all.
    pub most: Duration,
    /// The time limit without progress.
    pub silence: Duration,
}

/// Gives up a session from another thread. After that nothing waits for room. Unacknowledged items are dropped and
/// counted.
#[derive(Clone)]
pub struct Breaker {
    window: Arc<Window>,
    ledger: Arc<Ledger>,
    ending: Arc<Mutex<Option<Ending>>>,
}

impl Breaker {
    /// Bytes that wait for an acknowledgement. While this is 0, the daemon has nothing to acknowledge.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.window.counts().waiting_bytes
    }

    /// Items acknowledged so far. While this grows, the daemon is reachable.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.window.counts().acked_seq
    }

    /// Events acknowledged so far.
    #[must_use]
    pub fn stored_events(&self) -> u64 {
        self.window.counts().acked_events
    }

    /// The daemon's reason, when it did not accept the last items for now.
    #[must_use]
    pub fn not_accepted(&self) -> Option<String> {
        self.window.refusal()
    }

    /// Events that were lost because neither memory nor spool had room for them.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.window.counts().abandoned_events
    }

    /// Grows while there is progress: events and notes are packed, items are made or acknowledged.
    #[must_use]
    pub fn progress(&self) -> u64 {
        let counts = self.window.counts();
        self.ledger.taken() + counts.last_seq + counts.acked_seq
    }

    /// Where the session's events are now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.ledger.counts()
    }

    /// Gives up the session.
    pub fn give_up(&self) {
        self.window.close();
    }

    /// Sets the deadline of a session that is ending to now. What its rings still hold is dropped and counted.
    pub fn cut_short(&self) {
        if let Some(ending) = &mut *self.ending.lock().unwrap_or_else(PoisonError::into_inner) {
            ending.deadline = Instant::now();
        }
    }
}

/// A running agent.
pub struct Agent {
    session: SessionInfo,
    recorders: Mutex<Vec<Option<Recorder>>>,
    gauges: Vec<Gauge>,
    notes: SyncSender<Note>,
    notes_dropped: Arc<AtomicU64>,
    stacks: Mutex<u32>,
    /// Keeps marks in the order of their positions.
    marking: Mutex<()>,
    ledger: Arc<Ledger>,
    window: Arc<Window>,
    ending: Arc<Mutex<Option<Ending>>>,
    refused: Arc<Mutex<Option<String>>>,
    worker: Option<JoinHandle<SessionEnd>>,
    uplink: Option<JoinHandle<()>>,
    stop_uplink: Option<mpsc::Sender<()>>,
}

impl Agent {
    /// Starts recording a session.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub fn start(config: AgentConfig) -> Result<Self, StartError> {
        let (notes, noted) = sync_channel(NOTES_MAX);
        let (mut rings, mut recorders) = (Vec::new(), Vec::new());
        for device in &config.session.devices {
            let (producer, consumer) = ring::ring(config.ring_events);
            let wanted = Arc::new(AtomicBool::new(false));
            recorders.push(Some(Recorder::new(device.index, producer, notes.clone(), wanted.clone())));
            rings.push((consumer, Request::Here(wanted)));
        }
        Self::run(config, rings, recorders, notes, noted, None)
    }

    /// Starts an agent for a trainer that writes into a region. The trainer is another process, or other threads of
    /// this one. The session's devices must be those of the region, in the order of its rings. A region has one host.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub fn host(config: AgentConfig, region: &Arc<Region>) -> Result<Self, StartError> {
        let places = config.session.devices.iter().map(|device| u32::from(device.index.0));
        if !places.eq(0..region.devices()) {
            return Err(StartError::Devices { session: config.session.devices.len(), region: region.devices() });
        }
        let (notes, noted) = sync_channel(NOTES_MAX);
        let rings = (0..region.devices())
            .map(|device| {
                // SAFETY: a region has one host.
                let consumer = unsafe { region.consumer(device) };
                (consumer, Request::Region(region.clone(), device as usize))
            })
            .collect();
        Self::run(config, rings, Vec::new(), notes, noted, Some(region))
    }

    fn run(
        mut config: AgentConfig,
        rings: Vec<(Consumer, Request)>,
        recorders: Vec<Option<Recorder>>,
        notes: SyncSender<Note>,
        noted: Receiver<Note>,
        region: Option<&Arc<Region>>,
    ) -> Result<Self, StartError> {
        if config.session.devices.is_empty() {
            return Err(StartError::NoDevice);
        }
        config.session.found_by = config.session.found_by.map(|words| config.source_paths.found_by(&words));
        // A session that a daemon would refuse is reported here already.
        SessionInfo::try_from(v1::SessionInfo::from(&config.session)).map_err(StartError::Session)?;
        let devices: Vec<DeviceIndex> = config.session.devices.iter().map(|device| device.index).collect();
        let spool = open_spool(&config)?;
        let window = Arc::new(Window::new(config.memory_bytes_max, spool));
        let gauges: Vec<Gauge> = rings.iter().map(|(consumer, _)| consumer.gauge()).collect();
        let ledger = Arc::new(Ledger::new(gauges.clone(), window.clone()));
        let batcher = Batcher::new(BatchConfig {
            resolution_ns: config.session.resolution_ns,
            settings: config.session.settings.clone(),
            devices,
            linger: config.linger,
            found: config.found.clone(),
            source_paths: config.source_paths.clone(),
        })
        .map_err(StartError::Codec)?;
        let asks = Arc::new(Asks::default());
        let readiness = search::readiness(region.map(Arc::as_ref), config.holders);
        let search = region.filter(|_| readiness == HolderSearch::Ready);
        let search = search.map(|region| Search::new(asks.clone(), region.clone(), config.source_paths.clone()));
        let translator = region.map(|region| Translator::new(region.clone()));
        let worker = Worker::new(batcher, rings, noted, translator, search, window.clone(), ledger.clone());
        let ending = Arc::new(Mutex::new(None));
        let refused = Arc::new(Mutex::new(None));
        let (stop_uplink, stopped) = mpsc::channel(1);
        let link = Link { window: window.clone(), asks, readiness, unasked: config.holders_unasked };
        let uplink = spawn_uplink(&config, link, refused.clone(), stopped)?;
        let worker = spawn_worker(worker, ending.clone())?;
        Ok(Self {
            session: config.session,
            recorders: Mutex::new(recorders),
            gauges,
            notes,
            notes_dropped: Arc::default(),
            stacks: Mutex::new(0),
            marking: Mutex::new(()),
            ledger,
            window,
            ending,
            refused,
            worker: Some(worker),
            uplink: Some(uplink),
            stop_uplink: Some(stop_uplink),
        })
    }

    /// Who this is.
    #[must_use]
    pub fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// The recorder of a device; each can be taken once.
    pub fn recorder(&self, device: DeviceIndex) -> Option<Recorder> {
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        recorders.iter_mut().find(|recorder| recorder.as_ref().is_some_and(|it| it.device() == device))?.take()
    }

    /// Adds a stack, innermost frame first, and returns its id.
    pub fn stack(&self, frames: &[Frame]) -> StackId {
        // The lock keeps ids in the order in which the notes are sent.
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.note(Note::Stack(frames.into())) {
            return StackId::NONE;
        }
        *stacks += 1;
        StackId(*stacks)
    }

    /// Marks this moment. The mark comes after everything that this thread and other threads have recorded so far. Long
    /// names are cut. Returns `false` when there was no room and the mark was dropped.
    pub fn mark(&self, kind: MarkKind) -> bool {
        let _order = self.marking.lock().unwrap_or_else(PoisonError::into_inner);
        self.note(Note::Mark(Mark { time_ns: now_ns(), kind: cut(kind) }, self.positions()))
    }

    /// Step `step` begins.
    pub fn step_begin(&self, step: u64) -> bool {
        self.mark(MarkKind::StepBegin(step))
    }

    /// Step `step` has ended.
    pub fn step_end(&self, step: u64) -> bool {
        self.mark(MarkKind::StepEnd(step))
    }

    /// Epoch `epoch` begins.
    pub fn epoch_begin(&self, epoch: u32) -> bool {
        self.mark(MarkKind::EpochBegin(epoch))
    }

    /// Epoch `epoch` has ended.
    pub fn epoch_end(&self, epoch: u32) -> bool {
        self.mark(MarkKind::EpochEnd(epoch))
    }

    /// A phase begins.
    pub fn phase_begin(&self, phase: Phase) -> bool {
        self.mark(MarkKind::PhaseBegin(phase))
    }

    /// A phase has ended.
    pub fn phase_end(&self, phase: Phase) -> bool {
        self.mark(MarkKind::PhaseEnd(phase))
    }

    /// Adds a measurement.
    pub fn sample(&self, sample: Sample) -> bool {
        self.note(Note::Sample(Box::new(sample)))
    }

    /// Adds a mark with its own time after everything recorded so far. Waits for room, for sources that can wait.
    ///
    /// # Errors
    /// When the agent has stopped.
    pub fn mark_waiting(&self, mark: Mark) -> Result<(), Stopped> {
        let _order = self.marking.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = Mark { kind: cut(mark.kind), ..mark };
        self.notes.send(Note::Mark(mark, self.positions())).map_err(|_| Stopped)
    }

    /// Adds a stack. Waits for room, for sources that can wait.
    ///
    /// # Errors
    /// When the agent has stopped.
    pub fn stack_waiting(&self, frames: &[Frame]) -> Result<StackId, Stopped> {
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        self.notes.send(Note::Stack(frames.into())).map_err(|_| Stopped)?;
        *stacks += 1;
        Ok(StackId(*stacks))
    }

    /// Sets the state with which recording begins. Waits for room, for sources that can wait.
    ///
    /// # Errors
    /// When the agent has stopped.
    pub fn keyframe_waiting(&self, keyframe: Keyframe) -> Result<(), Stopped> {
        let place = self.session.devices.iter().position(|device| device.index == keyframe.device);
        let position = place.map_or(Position::default(), |place| self.positions()[place]);
        self.notes.send(Note::Keyframe(Box::new(keyframe), position)).map_err(|_| Stopped)
    }

    fn positions(&self) -> Box<[Position]> {
        // `pushed` is read first: a drop that is counted after that belongs after the mark.
        self.gauges.iter().map(|gauge| Position { pushed: gauge.pushed(), dropped: gauge.dropped() }).collect()
    }

    fn note(&self, note: Note) -> bool {
        match self.notes.try_send(note) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                // Relaxed: a plain count.
                self.notes_dropped.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// A handle that can give up the session from another thread.
    #[must_use]
    pub fn breaker(&self) -> Breaker {
        Breaker { window: self.window.clone(), ledger: self.ledger.clone(), ending: self.ending.clone() }
    }

    /// Where the session's events are now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.ledger.counts()
    }

    /// The daemon's reason, when it refused the session permanently.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the session. Waits for at most `patience` until everything recorded is sent and acknowledged. The rest
    /// stays in the spool or is counted as dropped.
    pub fn stop(self, failure: Option<String>, patience: Duration) -> Outcome {
        self.stop_at(now_ns(), failure, patience)
    }

    /// Like [`Self::stop`], for a session that ended at another time, such as a recording.
    pub fn stop_at(self, time_ns: u64, failure: Option<String>, patience: Duration) -> Outcome {
        self.stop_patiently(time_ns, failure, Patience { most: patience, silence: patience })
    }

    /// Like [`Self::stop_at`], but gives up earlier when there is no progress for `patience.silence`.
    pub fn stop_patiently(mut self, time_ns: u64, failure: Option<String>, patience: Patience) -> Outcome {
        let deadline = Instant::now() + patience.most;
        let breaker = self.breaker();
        let mut last = (breaker.progress(), Instant::now());
        let mut is_over = || {
            let progress = breaker.progress();
            if progress != last.0 {
                last = (progress, Instant::now());
            }
            Instant::now() >= deadline || last.1.elapsed() >= patience.silence
        };
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Ending { deadline, time_ns, failure: failure.map(|text| cut_text(text, NAME_BYTES_MAX)) });
        let end = self.worker.take().map_or_else(SessionEnd::default, |worker| {
            worker.thread().unpark();
            while !worker.is_finished() {
                if is_over() {
                    self.breaker().cut_short();
                }
                std::thread::sleep(STOP_LOOKS);
            }
            worker.join().unwrap_or_default()
        });
        // A session that was given up waits for nothing, see `Breaker`.
        let given_up = || self.window.is_closed();
        while !self.window.is_drained() && self.refused().is_none() && !given_up() && !is_over() {
            std::thread::sleep(STOP_LOOKS);
        }
        let given_up = self.window.counts().abandoned_items > 0 || self.window.is_closed();
        let delivered = self.window.is_drained() && self.refused().is_none() && !given_up;
        self.stop_uplink.take();
        if let Some(uplink) = self.uplink.take() {
            // The thread ends at its next await. A panic in it was logged there.
            let _ = uplink.join();
        }
        self.window.close();
        Outcome {
            counts: self.ledger.counts(),
            end,
            delivered,
            refused: self.refused(),
            not_accepted: self.window.refusal(),
            notes_dropped: self.notes_dropped.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An agent that is dropped without `stop` waits for nothing.
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Ending { deadline: Instant::now(), time_ns: now_ns(), failure: Some("the agent was dropped".into()) });
        self.window.close();
    }
}

fn open_spool(config: &AgentConfig) -> Result<Option<Spool>, StartError> {
    let Some(SpoolConfig { folder, bytes_max }) = &config.spool else { return Ok(None) };
    Spool::open(folder, &config.session, *bytes_max)
        .and_then(|mut spool| spool.keep_secret(&config.secret).map(|()| Some(spool)))
        .map_err(|source| StartError::Spool { folder: folder.display().to_string(), source })
}

fn spawn_worker(worker: Worker, ending: Arc<Mutex<Option<Ending>>>) -> Result<JoinHandle<SessionEnd>, StartError> {
    std::thread::Builder::new()
        .name("memctl-batch".into())
        .spawn(move || worker.run(&|| ending.lock().unwrap_or_else(PoisonError::into_inner).clone()))
        .map_err(StartError::Thread)
}

fn spawn_uplink(
    config: &AgentConfig,
    link: Link,
    refused: Arc<Mutex<Option<String>>>,
    stopped: mpsc::Receiver<()>,
) -> Result<JoinHandle<()>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
    let AgentConfig { session, secret, daemon, backoff, spool, orphans, .. } = config.clone();
    let delivering = async move {
        if let Some(SpoolConfig { folder, .. }) = spool.filter(|_| orphans) {
            tokio::spawn(deliver_orphans(folder, daemon.clone(), backoff));
        }
        if let UplinkEnd::Refused(message) =
            uplink::run(daemon, (session, secret), link.clone(), stopped, backoff).await
        {
            *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
            // The daemon takes no more items of this session, so later ones must not wait for room.
            link.window.close();
        }
    };
    std::thread::Builder::new()
        .name("memctl-uplink".into())
        .spawn(move || {
            runtime.block_on(delivering);
            // A pending name resolution must not delay the end.
            runtime.shutdown_background();
        })
        .map_err(StartError::Thread)
}

/// Delivers what dead processes left in the spool folder.
async fn deliver_orphans(folder: std::path::PathBuf, daemon: Daemon, backoff: Backoff) {
    for spool in Spool::orphans(&folder) {
        let (session, secret) = (spool.session().clone(), spool.secret());
        let window = Arc::new(Window::recovered(spool));
        let (stop, stopped) = mpsc::channel(1);
        tracing::info!(session = %session.id, bytes = window.counts().waiting_bytes, "delivering what a process that died left in the spool");
        let drained = async {
            while !window.is_drained() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            drop(stop);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = uplink::run(daemon.clone(), (session, secret), Link::of_a_spool(window.clone()), stopped, backoff) => {}
            () = drained => {}
        }
    }
}
