//! A training process like one with the Python package, but without Python: it writes events, stacks and marks into a
//! region that a real agent hosts, and accepts requests at the ends of its steps.
//!
//! The test supplies its responses.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use memctl_agent::internals::link;
use memctl_agent::internals::region::dictionary::{self, Kind};
use memctl_agent::internals::region::holders::HolderSearchRequest;
use memctl_agent::internals::region::{Region, messages, notes};
use memctl_agent::internals::ring::{Position, Producer, Record};
use memctl_agent::internals::ticks;
use memctl_agent::live::Level;
use memctl_agent::{Agent, AgentConfig};
use memctl_model::{Action, Event, MarkKind, SessionInfo, StackId};

use crate::streaming::PATIENCE;

const MIB: u64 = 1 << 20;
/// Steps of an epoch.
const STEPS: u64 = 8;
/// Bytes that each step keeps.
pub const KEPT: u64 = 8 * MIB;
const BASE: u64 = 1 << 40;
/// Bytes at addresses below the kept blocks: the model and each step's temporaries.
const BELOW: u64 = 96 * MIB;

/// Pause after a step while a command runs, and after this many steps of it. A slow machine must not be outrun: what a
/// command has to look at would grow faster than it looks.
const PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_millis(50);
const FAST_STEPS: u32 = 64;

/// The reader of the region.
enum Host {
    /// Threads of this process.
    Own(Box<Agent>),
    /// A launcher; the session ends with the connection.
    Launcher(#[expect(dead_code, reason = "held for its Drop")] UnixStream),
}

/// See the module.
pub struct Trainer {
    region: Arc<Region>,
    ring: Producer,
    notes: notes::Writer,
    work: StackId,
    keep: StackId,
    host: Host,
    /// Whether it continues to keep blocks, because a finding ends when growth stops.
    leaks: bool,
    kept: u64,
    epoch: u32,
    step: u64,
}

/// A region of a Python process.
fn region() -> Arc<Region> {
    let region = Region::create(1, 1 << 14).expect("shared memory");
    region.set_python(3, 12);
    region.set_level(Level::Stacks);
    region
}

/// Defines a stack with one frame of the user's own code; returns its id.
fn define(dictionary: &mut dictionary::Writer, number: u32, function: &str, line: u32) -> StackId {
    let file = "/home/me/train.py";
    let mut code = Vec::new();
    for part in [line, file.len() as u32, function.len() as u32, 0] {
        code.extend(part.to_le_bytes());
    }
    code.extend(file.bytes().chain(function.bytes()));
    let stack: Vec<u8> = [number, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    for (kind, bytes) in [(Kind::Code, code), (Kind::Stack, stack)] {
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(&bytes);
            bytes.len()
        };
        assert!(dictionary.append(kind, bytes.len(), fill), "the dictionary has room");
    }
    StackId(number + 1)
}

impl Trainer {
    /// Starts one whose agent runs in this process.
    ///
    /// # Panics
    /// When the agent does not start.
    #[must_use]
    pub fn start(config: AgentConfig) -> Self {
        let region = region();
        let agent = Agent::host(config, &region).expect("the agent starts");
        Self::over(region, Host::Own(Box::new(agent)))
    }

    /// Starts one that refuses holder requests.
    ///
    /// # Panics
    /// When the agent does not start.
    #[must_use]
    pub fn forbidding(config: AgentConfig) -> Self {
        let region = region();
        region.forbid_holders();
        let agent = Agent::host(config, &region).expect("the agent starts");
        Self::over(region, Host::Own(Box::new(agent)))
    }

    /// Starts one that connects to a launcher's socket.
    ///
    /// # Panics
    /// When the launcher does not accept it.
    #[must_use]
    pub fn launched(socket: &Path, session: &SessionInfo) -> Self {
        let region = region();
        let stream = link::greet(socket, session, region.fd()).expect("the launcher takes it");
        Self::over(region, Host::Launcher(stream))
    }

    fn over(region: Arc<Region>, host: Host) -> Self {
        let mut dictionary = dictionary::Writer::new(region.clone());
        let build = define(&mut dictionary, 0, "build", 3);
        let work = define(&mut dictionary, 1, "forward", 9);
        let keep = define(&mut dictionary, 2, "keep", 17);
        // SAFETY: the only producer of this region.
        let (ring, notes) = (unsafe { region.producer(0) }, region.notes_writer());
        let mut trainer = Self { region, ring, notes, work, keep, host, leaks: false, kept: 0, epoch: 0, step: 0 };
        trainer.event(Action::SegmentAlloc, BASE, 1 << 40, StackId::NONE);
        trainer.event(Action::Alloc, BASE, 64 * MIB, build);
        trainer.mark(&MarkKind::EpochBegin(0));
        trainer
    }

    fn event(&mut self, action: Action, addr: u64, size: u64, stack: StackId) {
        let event = Event { action, addr, size, stack, ..Event::default() };
        self.ring.push(Record::stamped(ticks(), &event));
    }

    fn mark(&mut self, kind: &MarkKind) {
        let at = Position { pushed: self.ring.pushed(), dropped: self.ring.dropped() };
        assert!(self.notes.push(&[&messages::mark(ticks(), kind, &[at])]), "the notes have room");
    }

    /// A step, which keeps a block if `keeps` is set; every eighth ends an epoch. Returns the request taken at its end.
    pub fn step(&mut self, keeps: bool) -> Option<HolderSearchRequest> {
        self.mark(&MarkKind::StepBegin(self.step));
        self.event(Action::Alloc, BASE + 64 * MIB, 32 * MIB, self.work);
        if keeps {
            self.event(Action::Alloc, BASE + BELOW + self.kept * KEPT, KEPT, self.keep);
            self.kept += 1;
        }
        self.event(Action::FreeRequested, BASE + 64 * MIB, 32 * MIB, StackId::NONE);
        self.event(Action::FreeCompleted, BASE + 64 * MIB, 32 * MIB, StackId::NONE);
        self.mark(&MarkKind::StepEnd(self.step));
        self.step += 1;
        if self.step.is_multiple_of(STEPS) {
            self.mark(&MarkKind::EpochEnd(self.epoch));
            self.epoch += 1;
            self.mark(&MarkKind::EpochBegin(self.epoch));
        }
        self.region.holders_asked()
    }

    /// From now on every step keeps a block.
    pub fn keeps(&mut self) {
        self.leaks = true;
    }

    /// Eight epochs whose steps keep a block each, so that growth is found; the steps of [`Self::meanwhile`] keep
    /// blocks as well.
    ///
    /// # Panics
    /// When a request arrives already.
    pub fn leak(&mut self) {
        self.leaks = true;
        for _ in 0..8 * STEPS {
            assert_eq!(self.step(true), None, "there is no request yet");
        }
    }

    /// The blocks that are kept, oldest first: address and bytes.
    #[must_use]
    pub fn kept(&self) -> Vec<(u64, u64)> {
        (0..self.kept).map(|at| (BASE + BELOW + at * KEPT, KEPT)).collect()
    }

    /// Answers a request with any JSON.
    pub fn answer(&mut self, ask: u64, json: &str) {
        assert!(self.notes.push(&[&messages::holders(ask, json)]), "the notes have room");
    }

    /// Runs a command while the training goes on; returns its output. `answer` is called with each request.
    ///
    /// # Panics
    /// When the command does not start.
    pub fn meanwhile(
        &mut self,
        command: &mut Command,
        mut answer: impl FnMut(&mut Self, &HolderSearchRequest),
    ) -> Output {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
        let mut steps = 0;
        while child.try_wait().expect("it can be waited for").is_none() {
            if let Some(asked) = self.step(self.leaks) {
                answer(self, &asked);
            }
            steps += 1;
            std::thread::park_timeout(if steps < FAST_STEPS { PAUSE } else { LONG_PAUSE });
        }
        child.wait_with_output().expect("its output")
    }

    /// Ends the session; an agent in this process first stores its remaining data.
    ///
    /// # Panics
    /// When it cannot be stored.
    pub fn end(self) {
        self.region.end();
        if let Host::Own(agent) = self.host {
            let outcome = agent.stop(None, PATIENCE);
            assert!(outcome.delivered, "{outcome:?}");
            let counts = outcome.counts;
            assert_eq!(counts.produced, counts.stored + counts.dropped, "{counts:?}");
        }
    }
}

/// The Python package's answer about this many blocks: a list holds them.
#[must_use]
pub fn list_holds(asked: &HolderSearchRequest) -> String {
    let (blocks, bytes) = (asked.blocks.len(), asked.blocks.iter().map(|block| block.1).sum::<u64>());
    serde_json::json!({
        "version": 2, "slices": 40, "longest_ms": 2.5, "asked_blocks": blocks, "found_blocks": blocks,
        "objects": 1_200_345, "took_ms": 81.25,
        "complete": true, "has_epochs": true, "not_looked_at": ["Objects of C extensions that do not tell what they refer to."],
        "holders": [{
            "kind": "list", "sentence": format!("list `KEPT` of module `__main__`, {blocks} tensors"),
            "subject": "list `KEPT` of module `__main__`", "identity": ["module `__main__`", "global `KEPT`", "list", "Tensor"],
            "chain": ["module `__main__`", "global `KEPT`", format!("list, {blocks} items"), "Tensor"],
            "blocks": blocks, "bytes": bytes, "tensors": blocks, "holder": "container", "type": "list", "name": "KEPT",
            "owner": "__main__", "length": blocks, "is_bounded": false, "limit": null, "thread": null, "threads": 0,
            "collector": null, "pattern": null, "numbers": (0..blocks).collect::<Vec<_>>()
        }]
    })
    .to_string()
}
