//! Imports recordings through ring, batcher and uplink, as a live job does.
//!
//! Guarantees: an import returns only when everything is acknowledged, or fails with the reason. Never waits forever
//! for an unreachable daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memctl_agent::source_paths::SourcePaths;
use memctl_agent::{Agent, AgentConfig, Breaker, Daemon, Outcome, SessionSecret};
use memctl_model::Launch;
use memctl_snapshot::session::{self, Identity};
use memctl_snapshot::{self as snapshot, Recording};

use super::playback;
use crate::exit::Failure;

/// Without an acknowledgement for this long, the daemon counts as unreachable. It has time to restart and to be found
/// again.
pub const DAEMON_SILENCE_MAX: Duration = Duration::from_secs(60);
/// The daemon in this process does not restart: a store that accepts nothing for this long will accept nothing more.
/// Many times the longest commit of a slow disk.
pub const EMBEDDED_SILENCE_MAX: Duration = Duration::from_secs(15);
/// How often progress is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Unacknowledged bytes of an import in memory.
const OUTBOX_BYTES: u64 = 16 << 20;

/// What to import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// The job.
    pub job: String,
    /// The attempt.
    pub attempt: u32,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// The import, and the run that it adds to.
    pub launch: Launch,
    /// How source paths are shortened.
    pub source_paths: SourcePaths,
    /// Files by rank, in the order of the ranks, each rank once.
    pub files: Vec<(u32, PathBuf)>,
    /// The destination's name, and advice if it accepts nothing more.
    pub taker: (String, &'static str),
    /// The import fails if nothing is acknowledged for this long.
    pub silence_max: Duration,
    /// Is set when the first session begins: from then on something may be stored.
    pub begun: Arc<AtomicBool>,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The rank whose file is being read.
    pub rank: u32,
    /// Bytes of it that were read.
    pub bytes_read: u64,
    /// Bytes it has; `None` when unknown.
    pub bytes_total: Option<u64>,
    /// Events of it that are durable.
    pub events: u64,
}

/// Called with the import's progress, from any thread, often.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOutcome {
    /// Events that are now durable.
    pub events: u64,
    /// Frees of blocks that the recordings never saw allocated.
    pub unknown_frees: u64,
    /// Events that contradicted the block map and were corrected.
    pub contradictions: u64,
}

/// Reads every file to its end without storing anything.
///
/// # Errors
/// The first invalid file ([`Failure::input`]).
pub async fn check_files(files: &[(u32, PathBuf)]) -> Result<(), Failure> {
    for (rank, path) in files {
        load(*rank, path.clone(), Arc::new(|_| {})).await?;
    }
    Ok(())
}

async fn load(rank: u32, path: PathBuf, on_progress: OnProgress) -> Result<Recording, Failure> {
    let loading = tokio::task::spawn_blocking(move || {
        snapshot::load(&path, &mut |now| {
            let snapshot::Progress { bytes_read, bytes_total, events: _ } = now;
            on_progress(Progress { rank, bytes_read, bytes_total, events: 0 });
        })
        .map_err(|error| Failure::input(error.to_string()))
    });
    loading
        .await
        .map_err(|_| Failure::input(format!("the file of rank {rank} could not be read: the reader panicked")))?
}

/// Imports through ring, batcher and uplink, as a live job does; returns when everything is acknowledged.
///
/// # Errors
/// An invalid file ([`Failure::input`]), or a daemon that refuses or becomes unreachable.
pub async fn import_files(
    daemon: Daemon,
    request: ImportRequest,
    on_progress: OnProgress,
) -> Result<ImportOutcome, Failure> {
    // If files of some ranks are missing, the world size is unknown.
    let is_each = (0_u32..).zip(&request.files).all(|(number, (rank, _))| number == *rank);
    let world_size = is_each.then_some(request.files.len() as u32);
    let mut sum = ImportOutcome::default();
    for (rank, path) in request.files {
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let recording = load(rank, path, on_progress.clone()).await?;
        let identity = Identity {
            job: request.job.clone(),
            attempt: request.attempt,
            rank,
            world_size,
            labels: request.labels.clone(),
            launch: request.launch.clone(),
        };
        let (words, source_paths) = (&request.taker, request.source_paths.clone());
        // Relaxed: it is read when the import has ended.
        request.begun.store(true, Ordering::Relaxed);
        let taker = Taker { daemon: daemon.clone(), words, silence_max: request.silence_max, source_paths };
        let outcome = import(taker, (recording, bytes), identity, on_progress.clone()).await?;
        sum.events += outcome.end.produced;
        sum.unknown_frees += outcome.end.unknown_frees;
        sum.contradictions += outcome.end.contradictions;
    }
    Ok(sum)
}

/// Where an import goes.
struct Taker<'a> {
    daemon: Daemon,
    words: &'a (String, &'static str),
    silence_max: Duration,
    source_paths: SourcePaths,
}

async fn import(
    Taker { daemon, words: (place, advice), silence_max, source_paths }: Taker<'_>,
    (recording, bytes): (Recording, u64),
    identity: Identity,
    on_progress: OnProgress,
) -> Result<Outcome, Failure> {
    let rank = identity.rank;
    let session = session::session(&recording, &identity);
    let agent = Agent::start(AgentConfig {
        memory_bytes_max: OUTBOX_BYTES,
        linger: None,
        secret: SessionSecret::of_recording(recording.proof),
        found: recording.found.boundaries(),
        source_paths,
        ..AgentConfig::new(session, daemon)
    })
    .map_err(|error| Failure::input(error.to_string()))?;
    // A cancelled import (Ctrl-C drops this future) must not continue in its thread.
    let _give_up = GiveUpOnDrop(agent.breaker());
    let breaker = agent.breaker();
    let silent = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch(breaker, (rank, bytes), on_progress, (silence_max, silent.clone())));
    let ended_ns = recording.ended_ns;
    let playing = tokio::task::spawn_blocking(move || {
        // A refused or cancelled session ends playing early; the outcome says so.
        let _ = playback::play(recording, &agent);
        // The watch ends first, as it knows whether progress is made.
        agent.stop_at(ended_ns, None, 4 * silence_max)
    });
    let outcome =
        playing.await.map_err(|_| Failure::input(format!("rank {rank} could not be imported: playing failed")))?;
    watching.abort();
    if outcome.delivered {
        return Ok(outcome);
    }
    // Relaxed: the flag was set before the outcome that it explains was produced.
    Err(match &outcome.refused {
        Some(reason) => Failure::input(format!("{place} refused rank {rank}: {reason}")),
        None if silent.load(Ordering::Relaxed) => Failure::unreachable(format!(
            "{place} accepted nothing for {} s while rank {rank} was imported: {advice}",
            silence_max.as_secs()
        )),
        None => Failure::unreachable(format!("{place} did not accept all of rank {rank}: {advice}")),
    })
}

struct GiveUpOnDrop(Breaker);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Reports progress; stops the import when nothing is acknowledged for too long.
async fn watch(
    breaker: Breaker,
    (rank, bytes): (u32, u64),
    on_progress: OnProgress,
    (silence_max, silent): (Duration, Arc<AtomicBool>),
) {
    let (mut last, mut since) = (0, tokio::time::Instant::now());
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = breaker.acknowledged();
        // A daemon is silent only if it owes acknowledgements: a large recording is prepared for a while before its
        // first chunk.
        if now != last || breaker.waiting_bytes() == 0 {
            (last, since) = (now, tokio::time::Instant::now());
        }
        on_progress(Progress { rank, bytes_read: bytes, bytes_total: Some(bytes), events: breaker.stored_events() });
        if since.elapsed() >= silence_max {
            // Relaxed: see above.
            silent.store(true, Ordering::Relaxed);
            breaker.give_up();
            return;
        }
    }
}
