//! The Rust side of the shim. The shim is a shared object that is built from `agent/shim/shim.cpp` for the user's
//! torch. It is loaded once and never unloaded.
//!
//! Guarantees: the shim's version and the torch that it was built for are checked before any other function of the shim
//! is called. A refusal has a message.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use memctl_model::{
    BlockState, BlockUse, DeviceIndex, Keyframe, KeyframeReason, PoolId, SegmentKind, SegmentState, StackId,
};

use crate::hook::{self, RawEvent, RawNode};
use crate::layout::shared_layout;

/// Version of the structures and functions in `shim.cpp`.
pub const ABI: u32 = 4;
/// Maximum number of segments and blocks of one snapshot. A larger snapshot is given up.
const BLOCKS_MAX: usize = 4 << 20;

/// Why a shim cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The dynamic loader refused.
    #[error("the shim {path} cannot be loaded: {reason}")]
    Load {
        /// The file.
        path: String,
        /// The loader's message.
        reason: String,
    },
    /// Built from another version of memctl.
    #[error("the shim {path} has version {found}, this memctl needs {ABI}; delete it, and memctl builds it again")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
    },
    /// Built for another build of PyTorch.
    #[error("the shim {path} was built for torch {found}, this is torch {wanted}; it is not used")]
    Torch {
        /// The file.
        path: String,
        /// Version and commit that it was built for.
        found: String,
        /// Version and commit of the torch that runs.
        wanted: String,
    },
    /// PyTorch refused the tracker.
    #[error("PyTorch's allocator takes no tracker: {0}")]
    Refused(String),
}

/// The allocator's own counters, mostly in bytes. The shim has the same layout, see `layout.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawCounters {
    /// Allocated.
    pub allocated: i64,
    /// Active.
    pub active: i64,
    /// Reserved.
    pub reserved: i64,
    /// Peak of allocated.
    pub peak_allocated: i64,
    /// Peak of reserved.
    pub peak_reserved: i64,
    /// `num_alloc_retries`.
    pub retries: i64,
    /// `num_ooms`.
    pub ooms: i64,
}

/// The argument of the out-of-memory observer. The shim has the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawOutOfMemory {
    /// CUDA ordinal.
    pub device: i64,
    /// Requested bytes, rounded.
    pub asked: u64,
    /// Bytes that the process may use: the whole device, or the fraction that was configured.
    pub device_total: u64,
    /// Free bytes of the device.
    pub device_free: u64,
}

#[repr(C)]
struct RawSegment {
    addr: u64,
    size: u64,
    stream: u64,
    pool: [u32; 2],
    device: i32,
    is_large: u8,
    is_expandable: u8,
    _pad: [u8; 2],
}

#[repr(C)]
struct RawBlock {
    addr: u64,
    size: u64,
    requested: u64,
    allocated: u8,
    active: u8,
    _pad: [u8; 6],
}

shared_layout! {
    /// Layouts that the shim shares with this module.
    LAYOUT:
    RawOutOfMemory is OutOfMemory, 32 { device at 0, asked at 8, device_total at 16, device_free at 24 }
    RawCounters is Counters, 56 {
        allocated at 0, active at 8, reserved at 16, peak_allocated at 24, peak_reserved at 32, retries at 40, ooms at 48
    }
    RawSegment is Segment, 40 {
        addr at 0, size at 8, stream at 16, pool at 24, device at 32, is_large at 36, is_expandable at 37
    }
    RawBlock is Block, 32 { addr at 0, size at 8, requested at 16, allocated at 24, active at 25 }
}

type OnEvent = unsafe extern "C" fn(*const RawEvent);
type OnOutOfMemory = extern "C" fn(*const RawOutOfMemory);
type OnSegment = extern "C" fn(*mut c_void, *const RawSegment, *const RawBlock, u64);

/// The functions of a loaded shim.
#[derive(Clone, Copy)]
pub struct Shim {
    attach: extern "C" fn(OnEvent, OnOutOfMemory, *mut c_char, usize) -> c_int,
    counters: extern "C" fn(c_int, *mut RawCounters) -> c_int,
    segments: extern "C" fn(*mut c_void, OnSegment) -> c_int,
    sequence: extern "C" fn() -> u64,
    node: extern "C" fn(*mut RawNode) -> i32,
    node_type: extern "C" fn() -> *const c_char,
    device: extern "C" fn() -> c_int,
    capturing: extern "C" fn() -> c_int,
}

impl Shim {
    /// Loads a shim for the life of the process. `build`: version and commit of the torch that runs.
    ///
    /// # Errors
    /// The file is not a shim of this version, or it was built for another build of torch.
    pub fn load(path: &Path, build: &str) -> Result<Self, ShimError> {
        let shown = path.display().to_string();
        let refuse = |reason: String| ShimError::Load { path: shown.clone(), reason };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| refuse(error.to_string()))?;
        // SAFETY: a valid path. The object's initialisers are C++'s own; it is never closed.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refuse(last_words()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: a handle that stays open and a valid name.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() { Err(refuse(format!("it has no {}", name.to_string_lossy()))) } else { Ok(address) }
        };
        // SAFETY: `memctl_shim_abi` has had this type in every version.
        let abi: extern "C" fn() -> u32 = unsafe { std::mem::transmute(symbol(c"memctl_shim_abi")?) };
        if abi() != ABI {
            return Err(ShimError::Version { path: shown.clone(), found: abi() });
        }
        // SAFETY: exists since version 3, with this type.
        let torch: extern "C" fn() -> *const c_char = unsafe { std::mem::transmute(symbol(c"memctl_shim_torch")?) };
        // SAFETY: a C string in static memory.
        let found = unsafe { CStr::from_ptr(torch()) }.to_string_lossy();
        if found != build {
            return Err(ShimError::Torch { path: shown.clone(), found: found.into_owned(), wanted: build.to_owned() });
        }
        // SAFETY: the version guarantees that these are the types of `shim.cpp`.
        unsafe {
            Ok(Self {
                attach: std::mem::transmute::<
                    *mut c_void,
                    extern "C" fn(OnEvent, OnOutOfMemory, *mut c_char, usize) -> c_int,
                >(symbol(c"memctl_shim_attach")?),
                counters: std::mem::transmute::<*mut c_void, extern "C" fn(c_int, *mut RawCounters) -> c_int>(symbol(
                    c"memctl_shim_counters",
                )?),
                segments: std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, OnSegment) -> c_int>(symbol(
                    c"memctl_shim_segments",
                )?),
                sequence: std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(symbol(c"memctl_shim_sequence")?),
                node: std::mem::transmute::<*mut c_void, extern "C" fn(*mut RawNode) -> i32>(symbol(
                    c"memctl_shim_node",
                )?),
                node_type: std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(symbol(
                    c"memctl_shim_node_type",
                )?),
                device: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(symbol(c"memctl_shim_device")?),
                capturing: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(symbol(
                    c"memctl_shim_capturing",
                )?),
            })
        }
    }

    /// Attaches the tracker and the observer. This can be done once per process, because they cannot be detached.
    ///
    /// # Errors
    /// PyTorch's reason.
    pub fn attach(&self, on_oom: OnOutOfMemory) -> Result<(), ShimError> {
        let mut why = [0_u8; 512];
        if (self.attach)(hook::on_event, on_oom, why.as_mut_ptr().cast(), why.len()) == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&why).map(|text| text.to_string_lossy().into_owned());
        Err(ShimError::Refused(text.unwrap_or_default()))
    }

    /// The functions that the hook calls.
    #[must_use]
    pub fn for_hook(&self) -> hook::Shim {
        hook::Shim { sequence: self.sequence, node: self.node, node_type: self.node_type }
    }

    /// The allocator's counters of a device. Takes that device's lock for a moment.
    #[must_use]
    pub fn counters(&self, device: u32) -> Option<RawCounters> {
        let mut counters = RawCounters::default();
        ((self.counters)(device as c_int, &raw mut counters) == 0).then_some(counters)
    }

    /// The device that is current on the calling thread.
    #[must_use]
    pub fn current_device(&self) -> Option<u32> {
        u32::try_from((self.device)()).ok()
    }

    /// Whether a CUDA graph is being captured.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        (self.capturing)() != 0
    }

    /// The state of every device. This call makes a `snapshot` event on each device, and the state is the one at that
    /// event.
    #[must_use]
    pub fn keyframes(&self, time_ns: u64, reason: KeyframeReason) -> Option<Vec<Keyframe>> {
        let mut read = SegmentReading { keyframes: Vec::new(), blocks: 0, time_ns, reason };
        let done = (self.segments)((&raw mut read).cast(), on_segment) == 0 && read.blocks <= BLOCKS_MAX;
        if !done {
            return None;
        }
        for keyframe in &mut read.keyframes {
            keyframe.segments.sort_unstable_by_key(|segment| segment.addr);
        }
        Some(read.keyframes)
    }
}

struct SegmentReading {
    keyframes: Vec<Keyframe>,
    blocks: usize,
    time_ns: u64,
    reason: KeyframeReason,
}

extern "C" fn on_segment(context: *mut c_void, segment: *const RawSegment, blocks: *const RawBlock, count: u64) {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: `keyframes` passes its own `SegmentReading`, the shim a segment and `count` blocks.
        let (read, segment, blocks) = unsafe {
            let blocks = if count == 0 { &[][..] } else { std::slice::from_raw_parts(blocks, count as usize) };
            (&mut *context.cast::<SegmentReading>(), &*segment, blocks)
        };
        read.add(segment, blocks);
    }));
    if caught.is_err() {
        // A fault here must not unwind into C++; the snapshot is given up instead.
        // SAFETY: as above.
        unsafe { (*context.cast::<SegmentReading>()).blocks = usize::MAX };
    }
}

impl SegmentReading {
    fn add(&mut self, segment: &RawSegment, blocks: &[RawBlock]) {
        self.blocks = self.blocks.saturating_add(blocks.len() + 1);
        let Ok(device) = u8::try_from(segment.device) else { return };
        if self.blocks > BLOCKS_MAX {
            return;
        }
        let device = DeviceIndex(device);
        let place = self.keyframes.iter().position(|keyframe| keyframe.device == device).unwrap_or_else(|| {
            let (segments, loose) = (Vec::new(), Vec::new());
            let Self { time_ns, reason, .. } = *self;
            self.keyframes.push(Keyframe { device, at_event: 0, time_ns, reason, segments, loose });
            self.keyframes.len() - 1
        });
        self.keyframes[place].segments.push(SegmentState {
            addr: segment.addr,
            size: segment.size,
            stream: segment.stream,
            pool: PoolId { first: segment.pool[0], second: segment.pool[1] },
            kind: if segment.is_large != 0 { SegmentKind::Large } else { SegmentKind::Small },
            expandable: segment.is_expandable != 0,
            blocks: blocks.iter().map(block).collect(),
        });
    }
}

fn block(raw: &RawBlock) -> BlockState {
    let usage = match (raw.allocated != 0, raw.active != 0) {
        (true, _) => BlockUse::Allocated,
        (false, true) => BlockUse::PendingFree,
        (false, false) => BlockUse::Inactive,
    };
    let requested = if usage == BlockUse::Inactive { 0 } else { raw.requested };
    BlockState {
        addr: raw.addr,
        size: raw.size,
        requested,
        usage,
        stack: StackId::NONE,
        birth_epoch: 0,
        birth_step: 0,
        birth_phase: None,
    }
}

fn last_words() -> String {
    // SAFETY: dlerror returns null or a C string that lives until the next call on this thread.
    unsafe {
        let words = libc::dlerror();
        if words.is_null() { "no reason given".into() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    /// The numbers in the shim's source, by structure and field. The entry for a structure's size has an empty field.
    fn of_the_shim() -> BTreeMap<(String, String), usize> {
        let source = include_str!("../../shim/shim.cpp");
        let mut found = BTreeMap::new();
        for line in source.lines() {
            let Some((what, rest)) = line.strip_suffix(");").and_then(|line| line.split_once('(')) else { continue };
            let words: Vec<&str> = rest.split(", ").collect();
            let (name, at) = match (what, words.as_slice()) {
                ("MEMCTL_SIZE", [name, bytes]) => ((*name, ""), bytes),
                ("MEMCTL_AT", [name, field, at]) => ((*name, *field), at),
                _ => continue,
            };
            let key = (name.0.to_owned(), name.1.to_owned());
            assert!(found.insert(key, at.parse().expect("a number")).is_none(), "{line}: twice");
        }
        found
    }

    #[test]
    fn the_shim_has_the_layouts_of_the_hook() {
        let mut expected = BTreeMap::new();
        for (name, size, fields) in crate::hook::LAYOUT.iter().chain(super::LAYOUT) {
            expected.insert(((*name).to_owned(), String::new()), *size);
            expected.extend(fields.iter().map(|(field, at)| (((*name).to_owned(), (*field).to_owned()), *at)));
        }
        assert_eq!(of_the_shim(), expected);
    }
}
