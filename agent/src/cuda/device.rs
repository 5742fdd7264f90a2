//! A device of a recorded program, with its ring and its live blocks.
//!
//! Guarantees: an allocation's event follows the allocation, and a free's event precedes the free. An address therefore
//! never seems to be allocated twice. When events were dropped and the agent requests the live blocks, they are sent at
//! the end of the step, or once a second between ends of steps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, result};
use memctl_model::allocator::round_to_block;
use memctl_model::{BlockState, BlockUse, DeviceIndex, DeviceInfo, Keyframe, KeyframeReason, Sample, StackId};

use crate::clock::now_ns;
use crate::recorder::Recorder;

/// Minimum interval between queries of the device's memory. Each takes a few microseconds.
const DEVICE_EVERY_NS: u64 = 100_000_000;
/// While no step ends, the live blocks are sent at most once in this interval. The time that it takes grows with their
/// number.
const SEND_LIVE_EVERY_NS: u64 = 1_000_000_000;
/// A device's name, UUID and memory, as far as the driver reports them.
pub(super) fn info(index: DeviceIndex, context: &CudaContext) -> DeviceInfo {
    let device = context.cu_device();
    // The plain calls are used, because the context's calls would consume a stored error that is meant for the program.
    // SAFETY: the handle is that of a live context.
    let total = unsafe { result::device::total_mem(device) };
    DeviceInfo {
        index,
        uuid: result::device::get_uuid(device).ok().map(|uuid| uuid_text(uuid.bytes.map(|byte| byte as u8))),
        name: result::device::get_name(device).ok(),
        total_bytes: total.ok().map(|bytes| bytes as u64),
    }
}

/// The text of a UUID, as `nvidia-smi` and NVML write it.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A live buffer.
struct Block {
    size: u64,
    stack: StackId,
}

/// What was recorded of a device.
struct Recorded {
    /// The recorder, which is taken out when the session ends.
    recorder: Option<Recorder>,
    live: BTreeMap<u64, Block>,
    allocated_bytes: u64,
    peak_bytes: u64,
    ooms: u64,
    /// When the driver was last queried for the device's memory.
    asked_ns: u64,
    /// When the live blocks were last sent between ends of steps.
    live_sent_ns: u64,
}

/// The device; see the module's documentation.
pub(super) struct Device {
    context: Arc<CudaContext>,
    index: DeviceIndex,
    recorded: Mutex<Recorded>,
}

/// The size of a block, rounded like every request in the block map.
fn rounded(size: u64) -> u64 {
    // (A driver's real granularity is not available.)
    round_to_block(size).max(size)
}

impl Device {
    pub(super) fn new(context: Arc<CudaContext>, recorder: Option<Recorder>) -> Self {
        let index = recorder.as_ref().map_or(DeviceIndex(0), Recorder::device);
        let recorded = Recorded {
            recorder,
            live: BTreeMap::new(),
            allocated_bytes: 0,
            peak_bytes: 0,
            ooms: 0,
            asked_ns: 0,
            live_sent_ns: 0,
        };
        Self { context, index, recorded: Mutex::new(recorded) }
    }

    pub(super) fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer was allocated.
    pub(super) fn alloc(&self, addr: u64, size: u64, stream: u64, stack: StackId) {
        let mut recorded = self.recorded();
        let Some(recorder) = &mut recorded.recorder else { return };
        recorder.alloc(addr, size, stream, stack);
        recorded.live.insert(addr, Block { size, stack });
        recorded.allocated_bytes += rounded(size);
        recorded.peak_bytes = recorded.peak_bytes.max(recorded.allocated_bytes);
        self.send_live_between_steps(&mut recorded);
    }

    /// A buffer is about to be freed.
    pub(super) fn free(&self, addr: u64, stream: u64) {
        let mut recorded = self.recorded();
        let Some(Block { size, .. }) = recorded.live.remove(&addr) else { return };
        recorded.allocated_bytes = recorded.allocated_bytes.saturating_sub(rounded(size));
        if let Some(recorder) = &mut recorded.recorder {
            recorder.free(addr, size, stream);
        }
        self.send_live_between_steps(&mut recorded);
    }

    /// A request failed because memory ran out.
    pub(super) fn out_of_memory(&self, size: u64, stack: StackId) {
        let free = self.memory().map_or(0, |(free, _)| free);
        let mut recorded = self.recorded();
        recorded.ooms += 1;
        if let Some(recorder) = &mut recorded.recorder {
            recorder.out_of_memory(size, free, stack);
        }
    }

    fn send_live_between_steps(&self, recorded: &mut Recorded) {
        if !recorded.recorder.as_ref().is_some_and(Recorder::snapshot_wanted) {
            return;
        }
        let now_ns = now_ns();
        if now_ns.saturating_sub(recorded.live_sent_ns) >= SEND_LIVE_EVERY_NS {
            recorded.live_sent_ns = now_ns;
            self.send_live(recorded);
        }
    }

    /// Sends the live blocks after events were dropped, so that everything is exact again.
    fn send_live(&self, recorded: &mut Recorded) {
        let Some(recorder) = recorded.recorder.as_mut().filter(|recorder| recorder.snapshot_wanted()) else { return };
        let loose = recorded.live.iter().map(|(&addr, block)| BlockState {
            addr,
            size: rounded(block.size),
            requested: block.size,
            usage: BlockUse::Allocated,
            stack: block.stack,
            ..BlockState::default()
        });
        let (loose, segments, reason) = (loose.collect(), Vec::new(), KeyframeReason::AfterDrop);
        recorder.snapshot(Keyframe { device: self.index, at_event: 0, time_ns: now_ns(), reason, segments, loose });
    }

    /// Measures what the program holds, and at intervals the device's memory. Sends a snapshot if the agent requests
    /// one.
    pub(super) fn sample(&self) -> Sample {
        let time_ns = now_ns();
        let mut recorded = self.recorded();
        self.send_live(&mut recorded);
        let asks = time_ns.saturating_sub(recorded.asked_ns) >= DEVICE_EVERY_NS;
        if asks {
            recorded.asked_ns = time_ns;
        }
        let (allocated, peak, ooms) = (recorded.allocated_bytes, recorded.peak_bytes, recorded.ooms);
        drop(recorded);
        let memory = if asks { self.memory() } else { None };
        Sample {
            device: self.index,
            time_ns,
            allocated_bytes: Some(allocated),
            peak_allocated_bytes: Some(peak),
            ooms: Some(ooms),
            device_used_bytes: memory.map(|(free, total)| total.saturating_sub(free)),
            device_total_bytes: memory.map(|(_, total)| total),
            ..Sample::default()
        }
    }

    /// Free and total bytes from `cuMemGetInfo`. Afterwards, the thread has the same current context as before.
    fn memory(&self) -> Option<(u64, u64)> {
        let before = result::ctx::get_current().ok()?;
        let ours = self.context.cu_ctx();
        let other = before != Some(ours);
        if other {
            // SAFETY: the context is kept alive by `self.context`.
            unsafe { result::ctx::set_current(ours) }.ok()?;
        }
        let memory = result::mem_get_info();
        if other {
            // SAFETY: this context was current on this thread a moment ago, or there was none.
            let _ = unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut())) };
        }
        memory.ok().map(|(free, total)| (free as u64, total as u64))
    }

    /// Stops recording.
    pub(super) fn close(&self) {
        let mut recorded = self.recorded();
        recorded.recorder = None;
        recorded.live.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_writes_it() {
        assert_eq!(uuid_text(std::array::from_fn(|at| at as u8)), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn sizes_are_rounded_as_the_block_map_rounds_them() {
        let rules = memctl_analysis::rules::PlacementRules::new(&memctl_model::AllocatorSettings::default());
        for size in [1, 511, 512, 513, 1 << 20, (1 << 20) + 1] {
            assert_eq!(rounded(size), rules.round_size(size), "{size}");
        }
        assert_eq!(rounded(u64::MAX), u64::MAX);
    }
}
