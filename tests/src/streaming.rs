//! An agent that streams until it is stopped, and a check of the stored data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memctl_agent::{Agent, AgentConfig, Backoff, Breaker, Daemon, Outcome};
use memctl_model::{DeviceIndex, Event, SessionInfo};
use tonic::transport::Endpoint;

use crate::source::Producer;
use crate::{jobs, stored};

/// Events between two steps, and the time between them: some 20,000 events a second.
pub const STEP_EVENTS: usize = 100;
/// See [`STEP_EVENTS`].
pub const STEP: Duration = Duration::from_millis(5);
/// How far production may run ahead of the store: a slow machine gets a slower training, not a backlog that outlasts
/// the test.
pub const AHEAD: u64 = 100_000;
/// Longer than any fault in these tests.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An agent that streams.
pub struct Streaming {
    name: String,
    breaker: Breaker,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Outcome, u64)>,
}

/// The session of a process that streams the events of [`Producer`].
#[must_use]
pub fn session(name: &str) -> SessionInfo {
    // The producer's events have times from long ago.
    SessionInfo { started_ns: 1, ..jobs::session(name, 0) }
}

/// Settings of such an agent: it reconnects at once, because faults last only moments.
#[must_use]
pub fn config(name: &str, url: &str) -> AgentConfig {
    AgentConfig {
        linger: Some(STEP),
        memory_bytes_max: 64 << 20,
        backoff: Backoff { first: Duration::from_millis(5), most: Duration::from_millis(40) },
        ..AgentConfig::new(session(name), Daemon::Address(url.into()))
    }
}

/// The producer of a process with this name.
#[must_use]
pub fn events(name: &str) -> Producer {
    Producer::new(name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into())))
}

/// Streams until `stop`; after each step passes the number of events known to be stored to `say`. Returns the number
/// produced.
///
/// # Panics
/// When the agent stops by itself.
pub fn stream(agent: &Agent, name: &str, stop: &AtomicBool, mut say: impl FnMut(u64)) -> u64 {
    let breaker = agent.breaker();
    let mut recorder = agent.recorder(DeviceIndex(0)).expect("the recorder");
    let (mut events, mut pushed, mut step) = (events(name), 0, 0);
    while !stop.load(Ordering::Relaxed) {
        agent.step_begin(step);
        for event in events.by_ref().take(STEP_EVENTS) {
            recorder.event_waiting(&event).expect("the agent runs");
            pushed += 1;
        }
        agent.step_end(step);
        step += 1;
        say(breaker.stored_events());
        std::thread::park_timeout(STEP);
        while pushed > breaker.stored_events() + AHEAD && !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(STEP);
        }
    }
    pushed
}

impl Streaming {
    /// Starts one.
    ///
    /// # Panics
    /// When the agent does not start.
    #[must_use]
    pub fn start(name: &str, url: &str) -> Self {
        let agent = Agent::start(config(name, url)).expect("the agent starts");
        let (breaker, stop) = (agent.breaker(), Arc::new(AtomicBool::new(false)));
        let (stopped, own) = (stop.clone(), name.to_owned());
        let thread = std::thread::spawn(move || {
            let pushed = stream(&agent, &own, &stopped, |_| {});
            (agent.stop(None, PATIENCE), pushed)
        });
        Self { name: name.to_owned(), breaker, stop, thread }
    }

    /// Events known to be stored.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.breaker.stored_events()
    }

    /// Returns when more is stored than now.
    ///
    /// # Panics
    /// When nothing more is stored.
    pub fn goes_on(&self) {
        let before = self.stored();
        until(&format!("{} goes on", self.name), || self.stored() > before);
    }

    /// Ends it, and asserts that every produced event was delivered and stored exactly once.
    ///
    /// # Panics
    /// When it is not.
    pub fn end(self, daemon_url: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let (outcome, pushed) = self.thread.join().expect("it streams to its end");
        assert!(outcome.delivered && outcome.counts.dropped == 0, "{}: {outcome:?}", self.name);
        assert_eq!((outcome.end.produced, outcome.counts.stored), (pushed, pushed), "{}", self.name);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(daemon_url, &self.name, 0, Some(pushed)));
    }
}

/// Asserts that the stored events of a process are the first ones that it produced: at least `known` events, or all
/// `produced` events if that is given.
///
/// # Panics
/// When it is not.
pub async fn compare(url: &str, name: &str, known: u64, produced: Option<u64>) {
    let channel = Endpoint::from_shared(url.to_owned()).expect("an address").connect().await.expect("the daemon");
    let ranks = stored::events(channel.clone(), name).await;
    let [rank] = ranks.as_slice() else { panic!("{name}: {} sessions", ranks.len()) };
    let mut next = 0;
    for (first, count) in &rank.chunks {
        assert_eq!(*first, next, "{name}: a chunk is missing or there twice");
        next += count;
    }
    assert!(next >= known, "{name}: {known} events were acknowledged, {next} are there");
    let expected: Vec<Event> = events(name).take(next as usize).collect();
    stored::assert_same(&rank.events, &expected);
    let completeness = stored::report(channel, name).await.completeness;
    assert_eq!((completeness.gaps, completeness.events_stored), (0, next), "{name}: {completeness:?}");
    if let Some(produced) = produced {
        assert_eq!((completeness.exact, next), (true, produced), "{name}: {completeness:?}");
    }
}

/// Waits for a state.
///
/// # Panics
/// When the state is not reached in time.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "not seen: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// The same for a condition that reports why it does not hold yet.
///
/// # Panics
/// When the state is not reached in time, with the last reason.
pub fn until_ok(what: &str, mut done: impl FnMut() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(why) = done() {
        assert!(began.elapsed() < PATIENCE, "not seen: {what}: {why}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
