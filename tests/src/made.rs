//! Made trainings: seeded jobs from minutes to hours, each with a course that is known.
//!
//! Guarantees: a job is a pure function of its number. Times are multiples of the resolution and no two events of a
//! device have the same time, so a moment names one state of the allocator. Requests are served by the replay's own
//! allocator, so the events obey PyTorch's rules.
//!
//! (Over 400 lines: the courses and the program that follows them make one recording.)

use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon, Recorder};
use memctl_analysis::{Birth, BlockMap};
use memctl_model::{
    Action, DeviceIndex, DeviceInfo, Event, Frame, KeyframeReason, Mark, MarkKind, Phase, PoolId, SessionId,
    SessionInfo, StackId,
};
use memctl_replay::{Allocator, BlockId, Conf, DriverEvent, Limit, Version};

const PATIENCE: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// Time between two events, in nanoseconds.
const TICK_NS: u64 = 1_000;
/// The time of the first job's first event.
const BEGIN_NS: u64 = 1_700_000_000_000_000_000;

/// What the memory of a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Nothing stays.
    Flat,
    /// Every step keeps a block.
    LeakPerStep,
    /// The validation at every epoch's end keeps a block.
    LeakPerEpoch,
    /// As [`Course::LeakPerStep`], on one rank.
    LeakOnOneRank,
    /// Steps keep blocks until the epoch ends.
    Chain,
    /// Blocks are kept until there are enough.
    Cache,
    /// A copy of the model is made in the middle.
    StepUp,
    /// Blocks are kept for a few steps, and then all are freed.
    Saw,
    /// Steps need blocks of other sizes.
    Lengths,
    /// Every step keeps a block until a request fails.
    OutOfMemory,
}

impl Course {
    /// All courses.
    pub const ALL: [Self; 10] = [
        Self::Flat,
        Self::LeakPerStep,
        Self::LeakPerEpoch,
        Self::LeakOnOneRank,
        Self::Chain,
        Self::Cache,
        Self::StepUp,
        Self::Saw,
        Self::Lengths,
        Self::OutOfMemory,
    ];
}

/// A job.
#[derive(Clone, Debug)]
pub struct GeneratedJob {
    /// Its name.
    pub name: String,
    /// What its memory does.
    pub course: Course,
    /// Its ranks.
    pub ranks: u32,
    /// The devices of each process.
    pub devices: u8,
    /// Number of epochs. With 0, there are steps without epochs.
    pub epochs: u32,
    /// Steps of an epoch, or all steps.
    pub steps: u64,
    /// The duration of a step, in nanoseconds.
    pub step_ns: u64,
    /// Bytes that the course keeps at once.
    pub kept: u64,
    /// Whether the first steps need more memory than all others.
    pub warm_up: bool,
    /// Whether everything is freed at the end, and segments are returned.
    pub teardown: bool,
    /// Whether recording begins with a model that already exists.
    pub late: bool,
    seed: u64,
}

impl GeneratedJob {
    /// The job of a number.
    #[must_use]
    pub fn of(number: u32) -> Self {
        let mut draw = Draw(u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let course = Course::ALL[number as usize % Course::ALL.len()];
        let (epochs, steps) = match number % 6 {
            5 => (0, 40 + draw.below(40)),
            _ => (4 + draw.below(9) as u32, 4 + draw.below(16)),
        };
        // From 20 ms to two minutes a step: from seconds to hours in all.
        let step_ns = [20, 300, 5_000, 120_000][draw.below(4) as usize] * 1_000_000;
        Self {
            name: format!("made-{number}"),
            course,
            ranks: [1, 2, 4][draw.below(3) as usize].max(if course == Course::LeakOnOneRank { 2 } else { 1 }),
            devices: 1 + u8::from(draw.below(3) == 0),
            epochs,
            steps,
            step_ns,
            kept: 512 << draw.below(15),
            warm_up: draw.below(2) == 0,
            teardown: draw.below(3) == 0 && course != Course::OutOfMemory,
            late: draw.below(3) == 0,
            seed: draw.0,
        }
    }

    /// A short job of 256 ranks.
    #[must_use]
    pub fn wide() -> Self {
        let course = Course::LeakPerEpoch;
        Self { name: "made-wide".into(), course, ranks: 256, devices: 1, epochs: 3, steps: 3, ..Self::of(2) }
    }

    fn session(&self, rank: u32) -> SessionInfo {
        let mut id = [0_u8; 16];
        id[..8].copy_from_slice(&self.seed.to_le_bytes());
        id[8..12].copy_from_slice(&rank.to_le_bytes());
        id[12..].copy_from_slice(&(self.ranks | u32::from(self.devices) << 16).to_le_bytes());
        let device = |index| DeviceInfo {
            index: DeviceIndex(index),
            uuid: Some(format!("GPU-{rank}-{index}")),
            total_bytes: Some(8 << 30),
            ..DeviceInfo::default()
        };
        SessionInfo {
            rank,
            world_size: Some(self.ranks),
            host: Some("here".into()),
            pid: Some(1_000 + rank),
            devices: (0..self.devices).map(device).collect(),
            ..SessionInfo::live(SessionId(id), &self.name, BEGIN_NS)
        }
    }

    /// Records the job to its end.
    ///
    /// # Panics
    /// When it cannot be stored.
    pub fn record(&self, url: &str) {
        for rank in 0..self.ranks {
            let config =
                AgentConfig { linger: None, ..AgentConfig::new(self.session(rank), Daemon::Address(url.into())) };
            let agent = Agent::start(config).expect("an agent");
            let mut process = Process::new(self, rank, &agent);
            let failure = process.run().err();
            let (time_ns, failure) = (process.time_ns, failure.map(|()| "OutOfMemoryError".to_owned()));
            drop(process);
            let outcome = agent.stop_at(time_ns, failure, PATIENCE);
            assert!(outcome.delivered && outcome.counts.dropped == 0, "{outcome:?}");
        }
    }
}

/// Numbers of a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, below: u64) -> u64 {
        // Xorshift64, which is sufficiently random and the same on every machine.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// One device of a process, with PyTorch's allocator.
struct Device {
    recorder: Recorder,
    /// What has happened before the recording begins; `None` while events are recorded.
    before: Option<BlockMap>,
    allocator: Allocator,
}

impl Device {
    fn send(&mut self, event: &Event) {
        match &mut self.before {
            Some(map) => map.apply(event, Birth::default()),
            None => self.recorder.event_waiting(event).expect("the agent runs"),
        }
    }

    /// Sends what the allocator requested from the driver.
    fn driver(&mut self, time_ns: &mut u64) {
        let calls = self.allocator.calls().to_vec();
        self.allocator.forget_calls();
        for DriverEvent { call, addr, size } in calls {
            self.send(&Event { time_ns: tick(time_ns), addr, size, action: call.action(), ..Event::default() });
        }
    }

    fn alloc(&mut self, size: u64, stack: StackId, time_ns: &mut u64) -> BlockId {
        let block = self.allocator.malloc(size, 0, PoolId::DEFAULT).expect("no limit is set");
        self.driver(time_ns);
        let addr = self.allocator.address(block);
        self.send(&Event { time_ns: tick(time_ns), addr, size, stack, action: Action::Alloc, ..Event::default() });
        block
    }

    fn free(&mut self, block: BlockId, time_ns: &mut u64) {
        let addr = self.allocator.address(block);
        self.send(&Event { time_ns: tick(time_ns), addr, action: Action::FreeRequested, ..Event::default() });
        self.allocator.free_requested(block);
        self.send(&Event { time_ns: tick(time_ns), addr, action: Action::FreeCompleted, ..Event::default() });
        self.allocator.free_completed(block);
    }

    /// Returns the segments without live blocks.
    fn empty_cache(&mut self, time_ns: &mut u64) {
        self.allocator.empty_cache();
        self.driver(time_ns);
    }
}

fn tick(time_ns: &mut u64) -> u64 {
    *time_ns += TICK_NS;
    *time_ns
}

/// The stacks of the program's lines.
struct Lines {
    model: StackId,
    optimizer: StackId,
    work: [StackId; 3],
    extra: StackId,
    keep: StackId,
}

/// A process of a job while it runs.
struct Process<'j> {
    of: &'j GeneratedJob,
    agent: &'j Agent,
    rank: u32,
    devices: Vec<Device>,
    lines: Lines,
    draw: Draw,
    time_ns: u64,
    model: Vec<Vec<BlockId>>,
    kept: Vec<Vec<BlockId>>,
}

impl<'j> Process<'j> {
    fn new(of: &'j GeneratedJob, rank: u32, agent: &'j Agent) -> Self {
        let line = |function: &str, line| {
            let frame =
                |function: &str, line| Frame { function: function.into(), file: "/home/me/train.py".into(), line };
            agent.stack_waiting(&[frame(function, line), frame("main", 90)]).expect("the agent runs")
        };
        let lines = Lines {
            model: line("build", 3),
            optimizer: line("configure", 8),
            work: [line("embed", 21), line("attend", 34), line("loss", 55)],
            extra: line("autotune", 61),
            keep: line("remember", 77),
        };
        let device = |index| Device {
            recorder: agent.recorder(DeviceIndex(index)).expect("a device"),
            before: of.late.then(|| BlockMap::new(&agent.session().settings)),
            allocator: Allocator::new(Conf::recorded(&agent.session().settings, Version::NEWEST), Limit::None),
        };
        let devices: Vec<Device> = (0..of.devices).map(device).collect();
        let none = || devices.iter().map(|_| Vec::new()).collect();
        let (model, kept) = (none(), none());
        let draw = Draw(of.seed ^ u64::from(rank) << 40 | 1);
        Self { of, agent, rank, devices, lines, draw, time_ns: BEGIN_NS, model, kept }
    }

    fn mark(&mut self, kind: MarkKind) {
        let time_ns = tick(&mut self.time_ns);
        self.agent.mark_waiting(Mark { time_ns, kind }).expect("the agent runs");
    }

    /// Runs to the end. An error is a failed request.
    fn run(&mut self) -> Result<(), ()> {
        for at in 0..self.devices.len() {
            for layer in 0..4 {
                let block = self.devices[at].alloc((3 + layer) * MIB, self.lines.model, &mut self.time_ns);
                self.model[at].push(block);
            }
        }
        if self.of.late {
            for (index, device) in self.devices.iter_mut().enumerate() {
                let map = device.before.take().expect("the state before the recording");
                let keyframe =
                    map.keyframe(DeviceIndex(index as u8), 0, tick(&mut self.time_ns), KeyframeReason::Start);
                self.agent.keyframe_waiting(keyframe).expect("the agent runs");
            }
        }
        let mut step = 0;
        for epoch in 0..self.of.epochs.max(1) {
            if self.of.epochs > 0 {
                self.mark(MarkKind::EpochBegin(epoch));
            }
            for _ in 0..self.of.steps {
                self.step(step)?;
                step += 1;
            }
            self.epoch_end(epoch);
        }
        if self.of.teardown {
            for (at, device) in self.devices.iter_mut().enumerate() {
                for block in self.kept[at].drain(..).chain(self.model[at].drain(..)) {
                    device.free(block, &mut self.time_ns);
                }
                device.empty_cache(&mut self.time_ns);
            }
        }
        Ok(())
    }

    fn epoch_end(&mut self, epoch: u32) {
        let (keep, bytes) = (self.lines.keep, self.of.kept);
        match self.of.course {
            Course::LeakPerEpoch => {
                self.mark(MarkKind::PhaseBegin(Phase::Eval));
                self.keep(keep, 4 * bytes);
                self.mark(MarkKind::PhaseEnd(Phase::Eval));
            }
            Course::Chain => self.forget(),
            Course::StepUp if epoch == self.of.epochs / 2 => self.keep(keep, 18 * MIB),
            _ => {}
        }
        if self.of.epochs > 0 {
            self.mark(MarkKind::EpochEnd(epoch));
        }
    }

    fn step(&mut self, step: u64) -> Result<(), ()> {
        let begun_ns = self.time_ns;
        self.mark(MarkKind::StepBegin(step));
        for at in 0..self.devices.len() {
            if step == 1 {
                // The optimizer's state is made after the first gradients.
                let block = self.devices[at].alloc(6 * MIB, self.lines.optimizer, &mut self.time_ns);
                self.model[at].push(block);
            }
            self.work(at, step);
        }
        self.course(step)?;
        self.mark(MarkKind::StepEnd(step));
        self.time_ns = self.time_ns.max(begun_ns + self.of.step_ns);
        Ok(())
    }

    /// The temporary memory of a step.
    fn work(&mut self, at: usize, step: u64) {
        let device = &mut self.devices[at];
        let extra = (self.of.warm_up && step < 3).then(|| device.alloc(48 * MIB, self.lines.extra, &mut self.time_ns));
        let mut blocks = Vec::new();
        for part in 0..9_u64 {
            let bytes = match self.of.course {
                Course::Lengths => 512 * (1 + self.draw.below(24_000)),
                _ => 256 * 1_024 * (1 + part % 4),
            };
            blocks.push(device.alloc(bytes, self.lines.work[part as usize % 3], &mut self.time_ns));
        }
        // The last activation is freed first, as in a backward pass.
        for block in blocks.into_iter().rev().chain(extra) {
            device.free(block, &mut self.time_ns);
        }
        if self.of.warm_up && step == 2 {
            device.empty_cache(&mut self.time_ns);
        }
    }

    fn course(&mut self, step: u64) -> Result<(), ()> {
        let (keep, bytes) = (self.lines.keep, self.of.kept);
        let all = u64::from(self.of.epochs.max(1)) * self.of.steps;
        match self.of.course {
            Course::LeakPerStep | Course::Chain => self.keep(keep, bytes),
            Course::LeakOnOneRank if self.rank == 1 => self.keep(keep, bytes),
            Course::Cache if step < all / 2 => self.keep(keep, bytes),
            Course::Saw if step % 5 == 4 => self.forget(),
            Course::Saw => self.keep(keep, bytes),
            Course::OutOfMemory => {
                self.keep(keep, bytes.max(MIB));
                if step + 2 >= all {
                    let event = Event {
                        time_ns: tick(&mut self.time_ns),
                        addr: 3 * MIB,
                        size: 64 * MIB,
                        stack: self.lines.work[1],
                        action: Action::Oom,
                        ..Event::default()
                    };
                    self.devices[0].send(&event);
                    return Err(());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn keep(&mut self, stack: StackId, bytes: u64) {
        for (at, device) in self.devices.iter_mut().enumerate() {
            self.kept[at].push(device.alloc(bytes, stack, &mut self.time_ns));
        }
    }

    fn forget(&mut self) {
        for (at, device) in self.devices.iter_mut().enumerate() {
            for block in self.kept[at].drain(..) {
                device.free(block, &mut self.time_ns);
            }
        }
    }
}
