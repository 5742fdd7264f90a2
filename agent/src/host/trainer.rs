//! Serves one trainer in its own thread, from its hello to the last acknowledgement.
//!
//! A session ends when the process is dead, when the connection has ended, or when the host closes, whichever is first.
//! The death is seen on the pidfd, so a forked child that inherited the connection does not keep the session alive.
//! Guarantees: the region is emptied after that moment, so everything that was pushed before it is stored. An invalid
//! hello is refused.
//! Refuses: a region or a session that is already being recorded, and processes of other users.

use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memctl_model::{DeviceIndex, Sample, SessionId, SessionInfo};
use rustix::net::RecvFlags;

use super::death::Watched;
use super::{EndedSession, Shared, turn_away, wait};
use crate::agent::{Agent, AgentConfig, Breaker, Outcome, Patience, StartError};
use crate::clock::now_ns;
use crate::link;
use crate::region::{Region, State};
use crate::sample::host::{Proc, ProcessKey};

/// How long to wait for the hello. A trainer sends it at once.
pub(super) const FIRST_WORD_MAX: Duration = Duration::from_secs(5);
/// How long a process may take to die after its connection has ended. Closing device files takes seconds.
const DYING_MAX: Duration = Duration::from_secs(5);
/// The same for a process that has ended its session because it exits. What else it does then, such as an upload, takes
/// longer.
const LEAVING_MAX: Duration = Duration::from_secs(60);
/// How long a process may take to die after its connection has ended, when the host closes.
const DYING_AT_THE_END_MAX: Duration = Duration::from_millis(200);
/// How long delivery may make no progress, for a session that ended before the run. After that, the rest stays in the
/// spool and is retried from there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long delivery may take in all. Without a spool there is no other place for the data, so a daemon may be
/// unreachable for this long.
const DELIVERY_MAX: Duration = Duration::from_secs(24 * 3600);
/// Attempts to open a session's spool. A process that looks for orphaned spools can lock it for a moment.
const SPOOL_TRIES: u32 = 20;
/// Pause between two attempts.
const SPOOL_PAUSE: Duration = Duration::from_millis(5);

/// A trainer that is being recorded.
pub(super) struct Trainer {
    session: SessionInfo,
    watched: Watched,
    region: Arc<Region>,
    breaker: Breaker,
    /// The agent, which is taken out when the session ends.
    agent: Mutex<Option<Agent>>,
}

impl Trainer {
    /// The trainer's process, if it is visible from here.
    pub(super) fn key(&self) -> Option<ProcessKey> {
        self.watched.key()
    }

    /// Whether the trainer has not ended its session. After the end, measurements would show what the process frees,
    /// not what it used.
    pub(super) fn is_running(&self) -> bool {
        self.region.state() == State::Running
    }

    /// The trainer's devices and their UUIDs.
    pub(super) fn devices(&self) -> Vec<(DeviceIndex, Option<String>)> {
        self.session.devices.iter().map(|device| (device.index, device.uuid.clone())).collect()
    }

    /// Bytes that wait for an acknowledgement.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.breaker.waiting_bytes()
    }

    /// Adds measurements, if the trainer is still being recorded.
    pub(super) fn add(&self, samples: Vec<Sample>) {
        if let Some(agent) = &*self.agent.lock().unwrap_or_else(PoisonError::into_inner) {
            for sample in samples {
                agent.sample(sample);
            }
        }
    }
}

/// Serves a connection until its session is delivered.
pub(super) fn serve(shared: &Arc<Shared>, mut stream: UnixStream) {
    if !speaks(shared, &stream) {
        return;
    }
    let mut claim = None;
    let (number, trainer, region) = match meet(shared, &mut stream, &mut claim) {
        Ok(met) => met,
        Err(reason) => return turn_away(shared, &mut stream, &reason),
    };
    tracing::info!(session = %trainer.session.id, job = trainer.session.job, rank = trainer.session.rank, "recording");
    let failure = recorded(shared, &trainer, &region, &mut stream);
    deliver(shared, number, &trainer, failure);
    // The connection is held until here. The trainer need not see it end earlier, and the end of a session has no
    // reply.
    drop(stream);
}

/// Waits for the first message. Returns `false` for a peer that disconnects without one: it only checked whether a host
/// is here.
fn speaks(shared: &Shared, stream: &UnixStream) -> bool {
    let [said, _] = wait::ready([stream.as_raw_fd(), shared.closing.fd()], Some(FIRST_WORD_MAX));
    said && rustix::net::recv(stream, &mut [0_u8; 1], RecvFlags::PEEK).is_ok_and(|(_, bytes)| bytes > 0)
}

type Met = (u64, Arc<Trainer>, Arc<Region>);

/// Reads the hello and begins to record. An error is sent to the trainer.
fn meet(shared: &Arc<Shared>, stream: &mut UnixStream, claim: &mut Option<Claim>) -> Result<Met, String> {
    let (pid, user) = wait::peer(stream.as_fd()).map_err(|error| error.to_string())?;
    // SAFETY: no arguments, cannot fail.
    if user != unsafe { libc::geteuid() } {
        return Err("it is another user's".to_owned());
    }
    // The pidfd is opened before anything is read, so that a pid that is reused later is not taken for the trainer.
    let process = wait::process(pid);
    let (mut session, fd) = link::hear(stream).map_err(|error| error.to_string())?;
    session.launch.launcher = Some(shared.config.launcher);
    let region = Region::open(fd).map_err(|error| error.to_string())?;
    let place = identity(region.fd()).map_err(|error| error.to_string())?;
    *claim = Some(Claim::new(shared, session.id, place)?);
    let watched = Watched::new(Proc::default(), pid, process);
    let agent = host(shared, &session, &region)?;
    let breaker = agent.breaker();
    let trainer =
        Arc::new(Trainer { breaker, session, watched, region: region.clone(), agent: Mutex::new(Some(agent)) });
    let number = {
        let mut registry = shared.registry();
        let number = registry.next;
        registry.next += 1;
        registry.recording.insert(number, trainer.clone());
        number
    };
    // If the trainer has disconnected meanwhile, that is noticed like every other end.
    let _ = link::answer(stream, None);
    Ok((number, trainer, region))
}

/// The right to record a session and to read a region. A region has one reader, and a session has one writer.
struct Claim(Arc<Shared>, SessionId);

impl Claim {
    fn new(shared: &Arc<Shared>, session: SessionId, region: (u64, u64)) -> Result<Self, String> {
        let mut registry = shared.registry();
        if registry.claimed.iter().any(|(_, claimed)| *claimed == region) {
            return Err("this memory region is being recorded already".to_owned());
        }
        if registry.claimed.iter().any(|(claimed, _)| *claimed == session) {
            return Err(format!("session {session} is being recorded already"));
        }
        registry.claimed.push((session, region));
        Ok(Self(shared.clone(), session))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.registry().claimed.retain(|(session, _)| *session != self.1);
    }
}

/// Device and inode of a file.
fn identity(file: BorrowedFd<'_>) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::File::from(file.try_clone_to_owned()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Starts the agent, with the spool if it can be opened.
fn host(shared: &Shared, session: &SessionInfo, region: &Arc<Region>) -> Result<Agent, String> {
    let mut config = AgentConfig::new(session.clone(), shared.config.daemon.clone());
    config.backoff = shared.config.backoff;
    config.source_paths = shared.config.source_paths.clone();
    config.holders = shared.config.holders;
    config.holders_unasked = shared.config.holders_unasked;
    config.spool.clone_from(&shared.config.spool);
    for _ in 0..SPOOL_TRIES {
        match Agent::host(config.clone(), region) {
            Ok(agent) => return Ok(agent),
            Err(StartError::Spool { .. }) => std::thread::sleep(SPOOL_PAUSE),
            Err(error) => return Err(error.to_string()),
        }
    }
    match Agent::host(config.clone(), region) {
        Err(error @ StartError::Spool { .. }) => {
            tracing::warn!(%error, "recording continues without a spool: events that the daemon does not accept in time are lost");
            config.spool = None;
            Agent::host(config, region).map_err(|error| error.to_string())
        }
        other => other.map_err(|error| error.to_string()),
    }
}

/// Waits for the end of a session. Returns its failure, as far as it is visible from here.
fn recorded(shared: &Shared, trainer: &Trainer, region: &Region, stream: &mut UnixStream) -> Option<String> {
    let process = trainer.watched.fd();
    let mut connection = stream.as_raw_fd();
    loop {
        let [said, dead, closing] = wait::ready([connection, process, shared.closing.fd()], None);
        if dead {
            trainer.watched.look();
            break;
        }
        if said {
            match heard(stream) {
                Heard::End => {
                    trainer.watched.look();
                    if region.state() == State::Running && process >= 0 && !dies(shared, process, DYING_MAX) {
                        return Some("its recording ended without a goodbye; the process ran on".to_owned());
                    }
                    // This wait delays no one: each session has its own thread.
                    if region.state() == State::Leaving && process >= 0 {
                        dies(shared, process, LEAVING_MAX);
                    }
                    break;
                }
                // No message is valid here. A peer that sends one is no longer read. Its death will still be seen.
                Heard::Noise if process >= 0 => connection = -1,
                Heard::Noise => break,
                Heard::Nothing => {}
            }
        } else if closing {
            return match region.state() {
                State::Ended | State::Leaving => None,
                State::Running => Some("it was still running when its launcher ended".to_owned()),
            };
        }
    }
    match region.state() {
        State::Ended => None,
        State::Leaving => trainer.watched.known_failure(&shared.exits),
        State::Running => trainer.watched.failure(&shared.exits),
    }
}

/// Whether a process whose connection has ended dies within the limit. The end of the run waits only briefly for it.
fn dies(shared: &Shared, process: RawFd, limit: Duration) -> bool {
    let [gone, _] = wait::ready([process, shared.closing.fd()], Some(limit));
    gone || wait::ready([process], Some(DYING_AT_THE_END_MAX)) == [true]
}

enum Heard {
    End,
    Noise,
    Nothing,
}

fn heard(stream: &mut UnixStream) -> Heard {
    match stream.read(&mut [0; 64]) {
        Ok(0) => Heard::End,
        Ok(_) => Heard::Noise,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock) => {
            Heard::Nothing
        }
        Err(_) => Heard::End,
    }
}

/// Ends the session and waits for its delivery.
fn deliver(shared: &Shared, number: u64, trainer: &Trainer, failure: Option<String>) {
    let time_ns = now_ns();
    let agent = trainer.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
    {
        let mut registry = shared.registry();
        registry.recording.remove(&number);
        let entry = (trainer.session.clone(), failure.clone(), trainer.breaker.clone());
        registry.delivering.insert(number, entry);
        shared.changed.notify_all();
    }
    let Some(agent) = agent else { return };
    let silence = if shared.config.spool.is_some() { SILENCE_MAX } else { DELIVERY_MAX };
    let outcome = agent.stop_patiently(time_ns, failure.clone(), Patience { most: DELIVERY_MAX, silence });
    let mut registry = shared.registry();
    // If the session is no longer there, the host has given it up and counted it.
    if let Some((session, ..)) = registry.delivering.remove(&number) {
        let failure = outcome.end.failure.clone().or(failure);
        let Outcome { delivered, refused, not_accepted, counts, .. } = outcome;
        let ended = EndedSession { session, failure, delivered, refused, not_accepted, counts };
        registry.end(ended);
    }
}
