//! Recording at the level `blocks`, for torch versions that cannot be hooked. Python reads counters and blocks, and
//! passes them to these functions.
//!
//! Guarantees: one malformed segment causes the whole snapshot to be refused. No partial snapshot is sent.

use memctl_agent::live::{self, Level};
use memctl_agent::now_ns;
use memctl_model::{
    BlockState, BlockUse, DeviceIndex, Keyframe, KeyframeReason, PoolId, Sample, SegmentKind, SegmentState, Sharing,
    StackId,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Records the allocator's counters of a device, which Python has read. Missing counters are `None`.
#[pyfunction]
#[pyo3(signature = (
    device, allocated=None, active=None, reserved=None, peak_allocated=None, peak_reserved=None, retries=None, ooms=None,
    device_used=None, device_total=None, nccl=None, sharing=None, limit=None
))]
#[expect(clippy::too_many_arguments, reason = "one number each, named in the stub")]
pub fn counters(
    device: u8,
    allocated: Option<u64>,
    active: Option<u64>,
    reserved: Option<u64>,
    peak_allocated: Option<u64>,
    peak_reserved: Option<u64>,
    retries: Option<u64>,
    ooms: Option<u64>,
    device_used: Option<u64>,
    device_total: Option<u64>,
    nccl: Option<u64>,
    sharing: Option<(bool, bool, bool)>,
    limit: Option<u64>,
) -> bool {
    let Some(live) = live::current() else { return false };
    live.counters(Sample {
        device: DeviceIndex(device),
        allocated_bytes: allocated,
        active_bytes: active,
        reserved_bytes: reserved,
        peak_allocated_bytes: peak_allocated,
        peak_reserved_bytes: peak_reserved,
        alloc_retries: retries,
        ooms,
        device_used_bytes: device_used,
        device_total_bytes: device_total,
        nccl_bytes: nccl,
        limit_bytes: limit,
        sharing: sharing.map_or_else(Sharing::default, |(cuda_ipc, rdma, symmetric_memory)| Sharing {
            cuda_ipc,
            rdma,
            symmetric_memory,
        }),
        ..Sample::default()
    })
}

/// Records the segments of a device, as returned by `torch.cuda.memory_snapshot()`.
#[pyfunction]
pub fn blocks(device: u8, segments: &Bound<'_, PyList>) -> bool {
    let Some(live) = live::current() else { return false };
    let Ok(mut segments) = segments.iter().map(|it| segment(&it)).collect::<PyResult<Vec<SegmentState>>>() else {
        return false;
    };
    segments.sort_unstable_by_key(|segment| segment.addr);
    let device = DeviceIndex(device);
    let (time_ns, reason) = (now_ns(), KeyframeReason::Start);
    live.lower(Level::Blocks);
    live.blocks(&Keyframe { device, at_event: 0, time_ns, reason, segments, loose: Vec::new() })
}

fn number(dict: &Bound<'_, PyDict>, key: &str) -> PyResult<u64> {
    dict.get_item(key)?.map_or(Ok(0), |value| value.extract())
}

fn text(dict: &Bound<'_, PyDict>, key: &str) -> PyResult<String> {
    dict.get_item(key)?.map_or(Ok(String::new()), |value| value.extract())
}

fn segment(from: &Bound<'_, PyAny>) -> PyResult<SegmentState> {
    let from = from.cast::<PyDict>()?;
    let addr = number(from, "address")?;
    let (mut at, mut blocks) = (addr, Vec::new());
    if let Some(list) = from.get_item("blocks")? {
        for block in list.try_iter()? {
            let block = block?;
            let block = block.cast::<PyDict>()?;
            let size = number(block, "size")?;
            let usage = match text(block, "state")?.as_str() {
                "active_allocated" => BlockUse::Allocated,
                "active_pending_free" | "active_awaiting_free" => BlockUse::PendingFree,
                _ => BlockUse::Inactive,
            };
            let requested = if usage == BlockUse::Inactive { 0 } else { number(block, "requested_size")?.min(size) };
            let (stack, birth_epoch, birth_step, birth_phase) = (StackId::NONE, 0, 0, None);
            blocks.push(BlockState { addr: at, size, requested, usage, stack, birth_epoch, birth_step, birth_phase });
            at = at.saturating_add(size);
        }
    }
    let pool: (u64, u64) = from.get_item("segment_pool_id")?.map_or(Ok((0, 0)), |value| value.extract())?;
    let expandable = from.get_item("is_expandable")?.map_or(Ok(false), |value| value.extract())?;
    Ok(SegmentState {
        addr,
        size: number(from, "total_size")?,
        stream: number(from, "stream")?,
        pool: PoolId { first: pool.0 as u32, second: pool.1 as u32 },
        kind: if text(from, "segment_type")? == "small" { SegmentKind::Small } else { SegmentKind::Large },
        expandable,
        blocks,
    })
}
