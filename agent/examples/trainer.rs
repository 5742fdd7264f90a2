//! A trainer written in Rust that records its device memory with memctl.
//!
//! `cargo run -p memctl-agent --example trainer -- http://127.0.0.1:7717` streams a job `rust-trainer` to a daemon.
//! `memctl query --job rust-trainer` then shows it. The "device" is a toy arena, so that the example runs anywhere. The
//! calls are the same as in a program that uses cudarc. With the word `paced` after the address, it waits for a line on
//! its standard input before each epoch, so that a user can watch the job while it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon, Recorder};
use memctl_model::{
    BlockState, BlockUse, DeviceIndex, DeviceInfo, Frame, Keyframe, KeyframeReason, Phase, SessionId, SessionInfo,
    StackId,
};

/// Memory that is allocated from the bottom up and never reused, which is enough for an example.
struct Arena {
    next: u64,
    live: BTreeMap<u64, (u64, StackId)>,
    recorder: Recorder,
}

impl Arena {
    fn alloc(&mut self, size: u64, stack: StackId) -> u64 {
        let addr = self.next;
        self.next += size.next_multiple_of(512);
        self.live.insert(addr, (size, stack));
        self.recorder.alloc(addr, size, 0, stack);
        addr
    }

    fn free(&mut self, addr: u64) {
        if let Some((size, _)) = self.live.remove(&addr) {
            self.recorder.free(addr, size, 0);
        }
    }

    /// Sends the live blocks after events were dropped because the ring was full. After that everything is exact again.
    fn answer_snapshot_request(&mut self) {
        if !self.recorder.snapshot_wanted() {
            return;
        }
        let loose = self
            .live
            .iter()
            .map(|(&addr, &(size, stack))| BlockState {
                addr,
                size: size.next_multiple_of(512),
                requested: size,
                usage: BlockUse::Allocated,
                stack,
                ..BlockState::default()
            })
            .collect();
        let device = self.recorder.device();
        let reason = KeyframeReason::AfterDrop;
        self.recorder.snapshot(Keyframe { device, at_event: 0, time_ns: 0, reason, segments: Vec::new(), loose });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:7717".into());
    let mut id = [0; 16];
    getrandom::fill(&mut id)?;
    let session = SessionInfo {
        world_size: Some(1),
        pid: Some(std::process::id()),
        framework: Some("example".into()),
        devices: vec![DeviceInfo { total_bytes: Some(1 << 30), ..DeviceInfo::default() }],
        ..SessionInfo::live(SessionId(id), "rust-trainer", memctl_agent::now_ns())
    };
    let agent = Agent::start(AgentConfig::new(session, Daemon::Address(address.into())))?;
    let site =
        |function: &str, line| agent.stack(&[Frame { function: function.into(), file: "trainer.rs".into(), line }]);
    let (weights, activations, kept) = (site("Model::new", 10), site("Model::forward", 20), site("Log::remember", 30));
    let recorder = agent.recorder(DeviceIndex(0)).ok_or("the recorder is taken already")?;
    let mut arena = Arena { next: 1 << 32, live: BTreeMap::new(), recorder };
    arena.alloc(64 << 20, weights);
    let paced = std::env::args().nth(2).is_some_and(|word| word == "paced");
    for epoch in 0..4_u32 {
        if paced {
            std::io::stdin().read_line(&mut String::new())?;
        }
        agent.epoch_begin(epoch);
        for step in 0..25_u64 {
            let step = u64::from(epoch) * 25 + step;
            agent.step_begin(step);
            agent.phase_begin(Phase::Forward);
            let tensors: Vec<u64> = (0..40).map(|layer| arena.alloc((layer + 1) << 16, activations)).collect();
            agent.phase_end(Phase::Forward);
            tensors.into_iter().rev().for_each(|tensor| arena.free(tensor));
            arena.answer_snapshot_request();
            agent.step_end(step);
        }
        // This is the leak: a megabyte per epoch is kept for a log.
        arena.alloc(1 << 20, kept);
        agent.epoch_end(epoch);
    }
    let outcome = agent.stop(None, Duration::from_secs(10));
    println!("{:?}", outcome.counts);
    if !outcome.delivered {
        return Err(outcome.refused.unwrap_or_else(|| "the daemon was not reached in time".into()).into());
    }
    Ok(())
}
