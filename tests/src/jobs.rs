//! Small jobs, recorded by a real agent: some with little or no data to judge, and one with complete data.
//!
//! Guarantees: when [`record`] returns, everything that its body recorded is stored. No function sleeps.

use std::path::Path;
use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_model::{Action, DeviceIndex, DeviceInfo, Event, Frame, Sample, SessionId, SessionInfo, StackId};

use memctl_daemon::store::{SqliteStore, Store as _};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::daemon::{DaemonProcess, free_port};
use crate::{memctl, run_json};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// Steps of an epoch.
const STEPS: u64 = 8;

/// The session of one process of a job.
#[must_use]
pub fn session(job: &str, rank: u32) -> SessionInfo {
    let mut id = [0_u8; 16];
    for (at, byte) in job.bytes().chain([rank as u8]).enumerate() {
        id[at % 16] = id[at % 16].wrapping_mul(31).wrapping_add(byte);
    }
    SessionInfo {
        rank,
        world_size: Some(1),
        host: Some("here".into()),
        pid: Some(100 + rank),
        devices: vec![DeviceInfo { total_bytes: Some(80 << 30), ..DeviceInfo::default() }],
        ..SessionInfo::live(SessionId(id), job, memctl_agent::now_ns())
    }
}

/// Records a process to its end.
///
/// # Panics
/// When it cannot be stored.
pub fn record(url: &str, session: SessionInfo, body: impl FnOnce(&Agent)) {
    let agent = Agent::start(AgentConfig::new(session, Daemon::Address(url.into()))).expect("an agent");
    body(&agent);
    let outcome = agent.stop(None, PATIENCE);
    assert!(outcome.delivered && outcome.counts.dropped == 0, "{outcome:?}");
}

/// The behaviour of a small training.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// Number of epochs.
    pub epochs: u32,
    /// Bytes kept in every step.
    pub kept_a_step: u64,
    /// The first and the last step that keeps something.
    pub keeps: (u64, u64),
    /// A step that needs 32 MiB more than the others.
    pub high_step: Option<u64>,
    /// Bytes kept at the end of the last epoch, with another stack. It differs only in the folder of its file, which
    /// short outputs omit, so it looks like the stack of `kept_a_step`.
    pub kept_alike: u64,
    /// Whether allocations have stacks.
    pub stacks: bool,
}

impl Default for Training {
    /// Eight epochs that keep nothing.
    fn default() -> Self {
        Self { epochs: 8, kept_a_step: 0, keeps: (0, u64::MAX), high_step: None, kept_alike: 0, stacks: true }
    }
}

/// Runs a training, and keeps memory as `training` specifies.
///
/// # Panics
/// When the agent has no device.
pub fn train(agent: &Agent, training: Training) {
    let Training { epochs, kept_a_step, keeps, high_step, kept_alike, stacks } = training;
    let stack = |function: &str, line| match stacks {
        true => {
            let frame =
                |function: &str, line| Frame { function: function.into(), file: "/home/me/train.py".into(), line };
            agent.stack(&[frame(function, line), frame("main", 1)])
        }
        false => StackId::NONE,
    };
    let (model, kept, work) = (stack("build", 3), stack("keep", 17), stack("forward", 9));
    let mut recorder = agent.recorder(DeviceIndex(0)).expect("a device");
    let base = 1 << 40;
    let all_kept = u64::from(epochs) * STEPS * kept_a_step;
    let work_bytes = if high_step.is_some() { 64 * MIB } else { 32 * MIB };
    recorder.segment_alloc(base, 64 * MIB + work_bytes + all_kept, 0);
    recorder.alloc(base, 64 * MIB, 0, model);
    let (mut next, mut step) = (base + 64 * MIB + work_bytes, 0);
    for epoch in 0..epochs {
        agent.epoch_begin(epoch);
        for _ in 0..STEPS {
            agent.step_begin(step);
            recorder.alloc(base + 64 * MIB, 32 * MIB, 0, work);
            if high_step == Some(step) {
                recorder.alloc(base + 96 * MIB, 32 * MIB, 0, work);
                recorder.free(base + 96 * MIB, 32 * MIB, 0);
            }
            if kept_a_step > 0 && (keeps.0..=keeps.1).contains(&step) {
                recorder.alloc(next, kept_a_step, 0, kept);
                next += kept_a_step;
            }
            recorder.free(base + 64 * MIB, 32 * MIB, 0);
            agent.step_end(step);
            step += 1;
        }
        if epoch + 1 == epochs && kept_alike > 0 {
            let frame =
                |function: &str, line| Frame { function: function.into(), file: "/home/you/train.py".into(), line };
            recorder.alloc(1 << 45, kept_alike, 0, agent.stack(&[frame("keep", 17), frame("main", 1)]));
        }
        agent.epoch_end(epoch);
    }
}

/// Runs a training with counters only, as with `cudaMallocAsync`.
pub fn train_counted(agent: &Agent, epochs: u32, kept_an_epoch: u64) {
    let mut step = 0;
    for epoch in 0..epochs {
        agent.epoch_begin(epoch);
        for _ in 0..STEPS {
            agent.step_begin(step);
            let allocated = 64 * MIB + u64::from(epoch) * kept_an_epoch;
            agent.sample(Sample {
                time_ns: memctl_agent::now_ns(),
                allocated_bytes: Some(allocated),
                reserved_bytes: Some(allocated + 64 * MIB),
                peak_allocated_bytes: Some(allocated + 32 * MIB),
                peak_reserved_bytes: Some(allocated + 64 * MIB),
                device_total_bytes: Some(80 << 30),
                ..Sample::default()
            });
            agent.step_end(step);
            step += 1;
        }
        agent.epoch_end(epoch);
    }
}

/// Runs a training of many events, in as many chunks as needed. The most memory is allocated in the first epoch. No
/// block lives across epochs, so that each epoch can be replayed without the previous ones.
///
/// # Panics
/// When the agent has no device or has stopped.
pub fn train_long(agent: &Agent, epochs: u32, rounds: u64) {
    let mut recorder = agent.recorder(DeviceIndex(0)).expect("a device");
    let stack = agent.stack(&[Frame { function: "work".into(), file: "/home/me/train.py".into(), line: 5 }]);
    let mut say = |action, addr, size, stack| {
        let event = Event { time_ns: memctl_agent::now_ns(), action, addr, size, stack, ..Event::default() };
        recorder.event_waiting(&event).expect("the agent goes on");
    };
    let base = 1 << 44;
    say(Action::SegmentAlloc, base, 128 * MIB, StackId::NONE);
    let mut block = |addr, size| {
        say(Action::Alloc, addr, size, stack);
        say(Action::FreeRequested, addr, size, StackId::NONE);
        say(Action::FreeCompleted, addr, size, StackId::NONE);
    };
    for epoch in 0..epochs {
        agent.epoch_begin(epoch);
        if epoch == 0 {
            block(base, 128 * MIB);
        }
        (0..rounds).for_each(|round| block(base + (round % 64) * MIB, MIB));
        agent.epoch_end(epoch);
    }
}

/// The value of `--retain-bytes-per-job` with which the only job in `store` keeps `percent` of the bytes of its chunks,
/// and all of its other data.
fn leaving(store: &Path, percent: u64) -> String {
    let path = store.join("memctl.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (kept, chunks) = runtime.block_on(async {
        let opened = SqliteStore::open(&path, "a test").await.expect("the store");
        let kept = opened.kept_bytes().await.expect("what it keeps")[0].1;
        opened.close().await.expect("the store closes");
        let options = SqliteConnectOptions::new().filename(&path).read_only(true);
        let mut connection = options.connect().await.expect("the file");
        // Including each row's overhead, as the store counts it.
        let sum = "SELECT coalesce(sum(length(p.bytes) + 256), 0) FROM chunk AS c
            JOIN payload AS p ON p.session_id = c.session_id AND p.seq = c.seq";
        let chunks: i64 = sqlx::query_scalar(sum).fetch_one(&mut connection).await.expect("a sum");
        connection.close().await.expect("the file closes");
        (kept, chunks.unsigned_abs())
    });
    format!("{}B", kept - chunks * (100 - percent) / 100)
}

/// Starts a new daemon on `store`. It keeps `keep_percent` of the job's stored events and deletes the oldest.
///
/// # Panics
/// When the daemon does not come up, or deletes nothing.
#[must_use]
pub fn expired(daemon: DaemonProcess, store: &Path, job: &str, keep_percent: u64) -> DaemonProcess {
    let report = |daemon: &DaemonProcess| {
        run_json(memctl().args(["query", "-o", "json", "--daemon", &daemon.url, "--job", job]))
    };
    daemon.terminate();
    let limit = leaving(store, keep_percent);
    let daemon = DaemonProcess::sqlite_with(store, free_port(), &["--retain-bytes-per-job", &limit]);
    while report(&daemon)["completeness"]["events_expired"] == 0 {
        std::thread::yield_now();
    }
    daemon
}

/// Like [`expired`], but the events that are kept begin with a keyframe. Chunk sizes depend on the arrival of events,
/// so several shares are tried, each on a copy of the store. Also returns the folder of the copy that fits.
///
/// # Panics
/// When no share fits.
#[must_use]
pub fn expired_to_a_keyframe(daemon: DaemonProcess, store: &Path, job: &str) -> (DaemonProcess, tempfile::TempDir) {
    daemon.terminate();
    for percent in (20..90).step_by(4) {
        let copy = tempfile::tempdir().expect("a folder");
        for file in std::fs::read_dir(store).expect("the store").map(|file| file.expect("a file").path()) {
            if file.is_file() {
                std::fs::copy(&file, copy.path().join(file.file_name().expect("a name"))).expect("a copy");
            }
        }
        let limit = leaving(copy.path(), percent);
        let daemon = DaemonProcess::sqlite_with(copy.path(), free_port(), &["--retain-bytes-per-job", &limit]);
        let expired = |daemon: &DaemonProcess| {
            let report = run_json(memctl().args(["query", "-o", "json", "--daemon", &daemon.url, "--job", job]));
            report["completeness"]["events_expired"].as_u64().unwrap_or_default()
        };
        while expired(&daemon) == 0 {
            std::thread::yield_now();
        }
        let answers = |words: &[&str]| {
            let output = memctl().args(words).args(["--daemon", &daemon.url, "--job", job]).output();
            output.is_ok_and(|output| output.status.success())
        };
        let frag = run_json(memctl().args(["frag", "-o", "json", "--daemon", &daemon.url, "--job", job]));
        let gaps = frag["not_judged"].as_array().expect("a list");
        let judged = !gaps.iter().any(|gap| gap["kind"] == "fragmentation" && gap["gap"] == "whole");
        if judged && answers(&["timeline"]) {
            return (daemon, copy);
        }
        daemon.terminate();
    }
    panic!("no share of {job} begins with a keyframe");
}
