//! Records what a program allocates through [cudarc](https://docs.rs/cudarc). The module has a session around an
//! [`Agent`], and streams and buffers that report to it.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use memctl_agent::{AgentConfig, cuda::CudaAgent};
//!
//! # fn train(config: AgentConfig) -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let memctl = CudaAgent::start(config, &[context.clone()])?;
//! let stream = memctl.stream(&context.default_stream());
//! memctl.epoch_begin(0);
//! memctl.step_begin(0);
//! let batch = stream.clone_htod(&[1.0_f32; 1024])?; // recorded with this line, freed when it is dropped
//! memctl.step_end(0);
//! memctl.epoch_end(0);
//! drop(batch);
//! memctl.stop(None, std::time::Duration::from_secs(5));
//! # Ok(())
//! # }
//! ```
//!
//! Guarantees: every call returns cudarc's own result, including errors. Recording never makes an allocation fail, and
//! what cannot be recorded is counted. Recording consumes no stored error of a context and does not change the current
//! context of a thread. An event takes a lock that only threads of the same device share, and makes no system call.
//!
//! Allocations that bypass this module are not recorded (direct calls of `CudaStream::alloc`, cuBLAS workspaces). They
//! appear only in the device's used memory. The program chooses the CUDA version that cudarc binds.

mod device;
mod measure;
mod slice;

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use memctl_model::{DeviceIndex, Frame, MarkKind, Phase, StackId};

use crate::agent::{Agent, AgentConfig, Outcome, StartError};
use crate::ledger::Counts;
use device::Device;
use measure::Measure;
pub use slice::{Recorded, RecordedStream};

/// Why a recording did not start. The program continues without it.
#[derive(Debug, thiserror::Error)]
pub enum CudaStartError {
    /// The agent did not start.
    #[error(transparent)]
    Agent(#[from] StartError),
    /// There are two contexts of one device, or an ordinal is larger than a session allows.
    #[error("device {0} cannot be recorded: give one context for each device, with an ordinal up to 255")]
    Device(usize),
}

/// The parts that run until [`CudaAgent::stop`].
struct Running {
    agent: Agent,
    measure: Option<Measure>,
}

/// The call site of an allocation: file, line, column, and the call.
type Site = (usize, u32, u32, &'static str);

struct Shared {
    running: RwLock<Option<Running>>,
    devices: Vec<Device>,
    /// The stacks of call sites. The program has at most one entry per call site.
    sites: Mutex<HashMap<Site, StackId>>,
}

impl Shared {
    fn with<R>(&self, call: impl FnOnce(&Running) -> R) -> Option<R> {
        self.running.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(call)
    }

    fn device(&self, ordinal: usize) -> Option<(usize, &Device)> {
        self.devices.iter().enumerate().find(|(_, device)| device.ordinal() == ordinal)
    }

    /// The one-frame stack of a call. It is made once. When there was no room for it, the next call tries again.
    fn site(&self, call: &'static str, at: &'static Location<'static>) -> StackId {
        // The file's name is static, so its address identifies it.
        let key = (at.file().as_ptr() as usize, at.line(), at.column(), call);
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&stack) = sites.get(&key) {
            return stack;
        }
        let frame = Frame { function: call.into(), file: at.file().into(), line: at.line() };
        let stack = self.with(|running| running.agent.stack(&[frame])).unwrap_or(StackId::NONE);
        if stack.is_some() {
            sites.insert(key, stack);
        }
        stack
    }
}

/// A recorded session of a program that uses cudarc. Clones share the session.
#[derive(Clone)]
pub struct CudaAgent {
    shared: Arc<Shared>,
}

impl CudaAgent {
    /// Starts recording. The session's devices are those of `contexts`. The devices in `config` are ignored.
    ///
    /// # Errors
    /// See [`CudaStartError`]; nothing runs then.
    pub fn start(mut config: AgentConfig, contexts: &[Arc<CudaContext>]) -> Result<Self, CudaStartError> {
        let mut infos = Vec::new();
        for context in contexts {
            let index = u8::try_from(context.ordinal()).map_err(|_| CudaStartError::Device(context.ordinal()))?;
            let info = device::info(DeviceIndex(index), context);
            if infos.iter().any(|other: &memctl_model::DeviceInfo| other.index == info.index) {
                return Err(CudaStartError::Device(context.ordinal()));
            }
            infos.push(info);
        }
        config.session.devices = infos;
        let uuids: Vec<_> = config.session.devices.iter().map(|info| (info.index, info.uuid.clone())).collect();
        let agent = Agent::start(config)?;
        let devices = contexts
            .iter()
            .zip(&uuids)
            .map(|(context, &(index, _))| Device::new(context.clone(), agent.recorder(index)))
            .collect();
        let running = RwLock::new(Some(Running { agent, measure: None }));
        let shared = Arc::new(Shared { running, devices, sites: Mutex::default() });
        let measure = Measure::start(&shared, uuids).map_err(StartError::Thread)?;
        if let Some(running) = shared.running.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            running.measure = Some(measure);
        }
        Ok(Self { shared })
    }

    /// A stream whose allocations are recorded. A stream of a device outside the session works too, but is not
    /// recorded.
    #[must_use]
    pub fn stream(&self, stream: &Arc<CudaStream>) -> RecordedStream {
        RecordedStream::new(self.shared.clone(), stream.clone())
    }

    /// Marks this moment. Returns `false` when there was no room for the mark, or the session has ended.
    pub fn mark(&self, kind: MarkKind) -> bool {
        self.shared.with(|running| running.agent.mark(kind)).unwrap_or(false)
    }

    /// Step `step` begins.
    pub fn step_begin(&self, step: u64) -> bool {
        self.mark(MarkKind::StepBegin(step))
    }

    /// Step `step` has ended. This also samples what the program holds, and ten times a second the device's memory as
    /// CUDA reports it. Once a second, a background thread samples what NVML and the kernel report.
    pub fn step_end(&self, step: u64) -> bool {
        self.sample();
        self.mark(MarkKind::StepEnd(step))
    }

    /// Epoch `epoch` begins.
    pub fn epoch_begin(&self, epoch: u32) -> bool {
        self.mark(MarkKind::EpochBegin(epoch))
    }

    /// Epoch `epoch` has ended.
    pub fn epoch_end(&self, epoch: u32) -> bool {
        self.sample();
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

    /// Takes a measurement now, like the end of a step.
    pub fn sample(&self) {
        self.shared.with(|running| {
            for device in &self.shared.devices {
                running.agent.sample(device.sample());
            }
            if let Some(measure) = &running.measure {
                measure.nudge();
            }
        });
    }

    /// Where the session's events are now; `None` when it has ended.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.shared.with(|running| running.agent.counts())
    }

    /// Ends the session like [`Agent::stop`]. Returns `None` when it had ended before. Buffers that are still live are
    /// no longer recorded.
    pub fn stop(&self, failure: Option<String>, patience: Duration) -> Option<Outcome> {
        let running = self.shared.running.write().unwrap_or_else(PoisonError::into_inner).take()?;
        for device in &self.shared.devices {
            device.close();
        }
        let Running { agent, measure } = running;
        drop(measure);
        Some(agent.stop(failure, patience))
    }
}
