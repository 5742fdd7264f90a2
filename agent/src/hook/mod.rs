//! The code that runs inside the allocator's callback. It writes one record into the device's ring, with the
//! allocation's stack.
//!
//! Guarantees: it waits for no lock, allocates nothing and makes no system call. It does not take the interpreter's
//! lock. It calls PyTorch only for thread-local reads. It never unwinds into the allocator. The events of one device
//! are serialized, because the allocator holds that device's lock.
//!
//! For a stack that is already known, the hook walks the frames (pointers only), looks up one key and writes 48 bytes.
//! A training calls the hook every few microseconds and does its own work in between. The cost is therefore the number
//! of cache lines and pages that the hook touches. Three choices keep that number low:
//! - Frames are distinguished by their instruction's address alone where dead code objects are reported
//!   ([`code_deaths`]).
//! - Recent keys are close together in memory ([`intern::Near`]).
//! - Forward calls are stored in the order of their numbers.
//!
//! A new stack is written into the dictionary under a latch. The hook tries to take the latch a limited number of times
//! and does not wait for it. When two devices meet new stacks at the same instant, one of them may record its event
//! without a stack.
//!
//! (Over 400 lines: everything that runs inside the callback is here, so that it can be read in one piece.)

pub mod code_deaths;
pub mod frames;
pub mod instruction_frames;
pub mod intern;
pub mod proof;

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use frames::{CodeParts, DEPTH_MAX, RawFrame, Version};
use instruction_frames::Trail;
use intern::{Codes, Near, Stacks};
use memctl_model::limits::{OWNER_BYTES_MAX, SESSION_OWNED_STACKS_MAX};
use memctl_model::{Action, Event, PoolId, StackId};

use crate::clock::Ticks;
use crate::layout::shared_layout;
use crate::region::Region;
use crate::region::dictionary::{self, Kind};
use crate::ring::Position;
use crate::ring::{Gauge, Producer, Record};

/// The fields of PyTorch's `TraceEntry`, which the shim passes for each event. The shim has the same layout, see
/// `layout.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawEvent {
    /// Device address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// Ticks of PyTorch's approximate clock.
    pub ticks: Ticks,
    /// The pool's id: the lower 32 bits of each of its two numbers.
    pub pool: [u32; 2],
    /// PyTorch's code of the action.
    pub action: i32,
    /// CUDA ordinal.
    pub device: i32,
    /// Address of the name of the memory's owner. It is valid during the call, and meaningless when `owner_bytes` is 0.
    pub owner: usize,
    /// Length of the name in bytes; 0 when there is no name. The text is UTF-8 if the program wrote UTF-8.
    pub owner_bytes: u64,
}

/// The autograd node that runs on the calling thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawNode {
    /// The node's type: the address of its virtual table.
    pub kind: usize,
    /// Sequence number and thread of the forward call, as [`Shim::sequence`] returned them there; `u64::MAX` when there
    /// is none.
    pub made_by: u64,
}

shared_layout! {
    /// Layouts that the shim shares with this module.
    LAYOUT:
    RawEvent is Event, 64 {
        addr at 0, size at 8, stream at 16, ticks at 24, pool at 32, action at 40, device at 44, owner at 48, owner_bytes at 56
    }
    RawNode is Node, 16 { kind at 0, made_by at 8 }
}

/// Functions that read thread-local values of PyTorch.
#[derive(Clone, Copy)]
pub struct Shim {
    /// Sequence number and thread of the autograd node that was made last on this thread.
    pub sequence: extern "C" fn() -> u64,
    /// The node that runs on this thread; 0 when there is none.
    pub node: extern "C" fn(*mut RawNode) -> i32,
    /// The mangled name of that node's type, in static memory; null when there is none.
    pub node_type: extern "C" fn() -> *const c_char,
}

/// Number of forward calls remembered for the backward pass (512 KiB). A step of GPT-2 makes 1,500 nodes.
const FORWARD_SLOTS: usize = 1 << 16;
/// Attempts to take the latch. All of them together last a few microseconds.
const LATCH_TRIES: u32 = 256;
/// An odd factor from the golden ratio. It spreads consecutive values over all bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// An odd factor from the square root of two.
const OTHER: u64 = 0x6a09_e667_f3bc_c909;

/// The state of one device.
struct Lane {
    /// Accessed only under that device's lock.
    producer: UnsafeCell<Producer>,
    /// Accessed only under that device's lock.
    trail: UnsafeCell<Trail>,
    gauge: Gauge,
    /// The ring's position after the last `snapshot` event.
    snapshot_pushed: AtomicU64,
    snapshot_dropped: AtomicU64,
}

/// State that is accessed only under the latch.
struct Unknown {
    dictionary: dictionary::Writer,
    codes: Codes,
    next_stack: u32,
}

/// The hook of one session.
pub struct Hook {
    region: Arc<Region>,
    lanes: Box<[Lane]>,
    /// The index in [`VERSIONS`] plus one; 0 when Python stacks are off.
    version: AtomicU8,
    /// Whether frames are distinguished by their instruction's address alone.
    by_place: AtomicBool,
    thread_state: extern "C" fn() -> usize,
    shim: Shim,
    near: Near,
    known: Stacks,
    /// Number of stacks that were written with an owner's name.
    owned_stacks: AtomicU32,
    latch: AtomicBool,
    unknown: UnsafeCell<Unknown>,
    /// The stacks of forward calls, indexed by sequence number. Each word has a tag of 32 bits and a stack of 32 bits.
    forward: Box<[AtomicU64]>,
}

/// How a hook walks stacks. What was verified for an interpreter remains valid for the life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walks {
    version: u8,
    by_place: bool,
}

const VERSIONS: [Version; 5] = [Version::V310, Version::V311, Version::V312, Version::V313, Version::V314];

// SAFETY: `producer` and `trail` are touched only under their device's allocator lock, `unknown` only under the latch;
// the rest is atomic.
unsafe impl Sync for Hook {}
// SAFETY: as above.
unsafe impl Send for Hook {}

/// The values that every event reads first, on one cache line.
#[repr(align(64))]
struct Gate {
    /// The session that records, or null. Set by [`install`].
    hook: AtomicPtr<Hook>,
    /// How often a code object that was seen on a stack has died, see [`code_deaths`].
    deaths: AtomicU64,
}

static GATE: Gate = Gate { hook: AtomicPtr::new(std::ptr::null_mut()), deaths: AtomicU64::new(0) };

/// Directs events to `hook`; `None` closes the gate.
///
/// # Safety
/// The hook stays in place until the gate is closed and, after that, every device's lock has been held once.
pub unsafe fn install(hook: Option<&Hook>) {
    let pointer = hook.map_or(std::ptr::null_mut(), |hook| std::ptr::from_ref(hook).cast_mut());
    // Release: a thread that sees the hook sees it initialized. (SeqCst is not needed: late callbacks see the old one,
    // which still exists.)
    GATE.hook.store(pointer, Ordering::Release);
}

/// The callback that the shim calls for every event.
///
/// # Safety
/// `raw` is valid for the call, which happens under the lock of the event's device.
pub unsafe extern "C" fn on_event(raw: *const RawEvent) {
    // Acquire: see `install`.
    let hook = GATE.hook.load(Ordering::Acquire);
    if hook.is_null() {
        return;
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: installed hooks stay in place while callbacks can be inside; the rest is the caller's promise.
        unsafe { (*hook).event(&*raw) }
    }));
    if outcome.is_err() {
        // A fault here must not repeat itself in the user's training.
        // SAFETY: nothing is installed.
        unsafe { install(None) };
    }
}

impl Hook {
    /// A hook that writes into `region`. `thread_state` returns the calling thread's Python thread state, 0 when it has
    /// none.
    #[must_use]
    pub fn new(region: Arc<Region>, thread_state: extern "C" fn() -> usize, shim: Shim) -> Self {
        let lanes = (0..region.devices())
            .map(|device| {
                // SAFETY: one hook per region, one producer per device.
                let producer = unsafe { region.producer(device) };
                Lane {
                    gauge: producer.gauge(),
                    producer: UnsafeCell::new(producer),
                    trail: UnsafeCell::default(),
                    snapshot_pushed: AtomicU64::new(0),
                    snapshot_dropped: AtomicU64::new(0),
                }
            })
            .collect();
        let unknown =
            Unknown { dictionary: dictionary::Writer::new(region.clone()), codes: Codes::default(), next_stack: 1 };
        Self {
            region,
            lanes,
            version: 0.into(),
            by_place: false.into(),
            thread_state,
            shim,
            near: Near::default(),
            known: Stacks::default(),
            owned_stacks: AtomicU32::new(0),
            latch: AtomicBool::new(false),
            unknown: UnsafeCell::new(unknown),
            forward: (0..FORWARD_SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Records an event.
    ///
    /// # Safety
    /// The caller holds the lock of the event's device, or is alone.
    #[inline]
    pub unsafe fn event(&self, raw: &RawEvent) {
        let Some(lane) = usize::try_from(raw.device).ok().and_then(|device| self.lanes.get(device)) else { return };
        let Some(action) = u8::try_from(raw.action).ok().and_then(Action::from_number) else { return };
        // SAFETY: one at a time, promised by the caller.
        let producer = unsafe { &mut *lane.producer.get() };
        // A release of memory to the driver gets a stack, too, because it waits for the device. The stack shows the
        // line of a loop that calls `empty_cache()`.
        let asks = matches!(
            action,
            Action::Alloc
                | Action::SegmentAlloc
                | Action::SegmentMap
                | Action::SegmentFree
                | Action::SegmentUnmap
                | Action::Oom
        );
        // An event without room needs no stack. For an annotation only the name is recorded, because its block has a
        // stack.
        let stack = if action == Action::Annotate && raw.owner_bytes > 0 && producer.has_room() {
            // SAFETY: the name is there for the call.
            unsafe { self.owned(StackId::NONE, raw) }
        } else if asks && producer.has_room() {
            // SAFETY: as above.
            let stack = self.stack(unsafe { &mut *lane.trail.get() });
            // SAFETY: the name is there for the call.
            if raw.owner_bytes == 0 { stack } else { unsafe { self.owned(stack, raw) } }
        } else {
            StackId::NONE
        };
        let [first, second] = raw.pool;
        let pool = PoolId { first, second };
        let event = Event { time_ns: 0, addr: raw.addr, size: raw.size, stream: raw.stream, pool, stack, action };
        producer.push(Record::stamped(raw.ticks, &event));
        if action == Action::Snapshot {
            // Relaxed: read by the thread that requested the snapshot, after the allocator's lock was released.
            lane.snapshot_pushed.store(producer.pushed(), Ordering::Relaxed);
            lane.snapshot_dropped.store(producer.dropped(), Ordering::Relaxed);
        }
    }

    fn version(&self) -> Option<Version> {
        // Relaxed: a switch; what it guards does not depend on other memory.
        let number = self.version.load(Ordering::Relaxed);
        VERSIONS.get(usize::from(number).wrapping_sub(1)).copied()
    }

    /// The stack of the calling thread: its Python frames, else the autograd node that runs on it.
    #[inline]
    fn stack(&self, trail: &mut Trail) -> StackId {
        let Some(version) = self.version() else { return StackId::NONE };
        let thread = (self.thread_state)();
        // Relaxed: a switch; as `version`.
        let by_place = self.by_place.load(Ordering::Relaxed);
        let key = match (thread, by_place) {
            (0, _) => None,
            // SAFETY: the calling thread's own state, of the version that was checked.
            (_, true) => unsafe { instruction_frames::places(version, thread, trail, first_key(), mix) },
            (_, false) => full_key(version, thread),
        };
        let Some(key) = key else { return self.node_stack() };
        let id = match self.near.get(key) {
            Some(id) => id,
            None => match if by_place { full_key(version, thread) } else { Some(key) } {
                Some(full) => self.far(key, full, || self.learn_frames(version, thread, full)),
                None => return self.node_stack(),
            },
        };
        self.remember_forward(id);
        StackId(id)
    }

    /// The stack with the name of the memory's owner. Returns the stack without the name when too many stacks have
    /// names.
    ///
    /// # Safety
    /// The name can be read.
    #[inline(never)]
    unsafe fn owned(&self, stack: StackId, raw: &RawEvent) -> StackId {
        let bytes = raw.owner_bytes.min(OWNER_BYTES_MAX as u64) as usize;
        // SAFETY: promised by the caller.
        let name = unsafe { std::slice::from_raw_parts(raw.owner as *const u8, bytes) };
        let mut key = mix(OTHER ^ bytes as u64, u64::from(stack.0));
        for part in name.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            key = mix(key, u64::from_le_bytes(word));
        }
        let id = self.near.get(key).unwrap_or_else(|| self.far(key, key, || self.learn_owner(key, stack, name)));
        if id == 0 { stack } else { StackId(id) }
    }

    /// The id of a key that is not among the recent ones.
    #[inline(never)]
    fn far(&self, near: u64, key: u64, learn: impl FnOnce() -> u32) -> u32 {
        let id = self.known.get(key).unwrap_or_else(learn);
        self.near.put(near, id);
        id
    }

    /// Remembers the stack of the first allocation after a node was made: it belongs to the call that made the node.
    #[inline]
    fn remember_forward(&self, stack: u32) {
        let (slot, tag) = self.forward_slot((self.shim.sequence)());
        // Relaxed: a hint between threads that the allocator's lock orders; it is one word and cannot be torn.
        if slot.load(Ordering::Relaxed) >> 32 != tag {
            slot.store(tag << 32 | u64::from(stack), Ordering::Relaxed);
        }
    }

    /// The slot for a sequence number's stack, and the 32-bit tag that distinguishes this number from others in the
    /// same slot. Consecutive numbers have adjacent slots: a forward pass fills one cache line after another, and the
    /// backward pass reads them in reverse.
    #[inline(always)]
    fn forward_slot(&self, sequence: u64) -> (&AtomicU64, u64) {
        // The thread's number is in the upper bits, so each thread starts at another slot.
        let at = sequence.wrapping_add((sequence >> 40).wrapping_mul(GOLDEN) >> 48) as usize;
        (&self.forward[at & (FORWARD_SLOTS - 1)], mixed(sequence) >> 32)
    }

    fn forward_of(&self, made_by: u64) -> u32 {
        if made_by == u64::MAX {
            return 0;
        }
        // The node took its number before the allocation, which saw the next number.
        let (slot, tag) = self.forward_slot(made_by + 1);
        // Relaxed: as above.
        let found = slot.load(Ordering::Relaxed);
        if found >> 32 == tag { found as u32 } else { 0 }
    }

    fn node_stack(&self) -> StackId {
        let mut node = RawNode { kind: 0, made_by: u64::MAX };
        if (self.shim.node)(&raw mut node) == 0 {
            return StackId::NONE;
        }
        let forward = self.forward_of(node.made_by);
        let key = mixed((node.kind as u64).wrapping_mul(OTHER) ^ u64::from(forward));
        StackId(self.near.get(key).unwrap_or_else(|| self.far(key, key, || self.learn_node(key, forward))))
    }

    /// Runs `learn` under the latch. Returns 0 when the latch stayed taken or a table is full.
    fn learn(&self, key: u64, learn: impl FnOnce(&mut Unknown) -> bool) -> u32 {
        for _ in 0..LATCH_TRIES {
            // Acquire: sees what the last holder wrote.
            if !self.latch.swap(true, Ordering::Acquire) {
                // SAFETY: the latch is ours.
                let unknown = unsafe { &mut *self.unknown.get() };
                let id = match self.known.get(key) {
                    Some(id) => id,
                    None if self.known.has_room() && learn(unknown) => {
                        let id = unknown.next_stack;
                        unknown.next_stack += 1;
                        self.known.insert(key, id);
                        id
                    }
                    None => 0,
                };
                // Release: the next holder sees what we wrote.
                self.latch.store(false, Ordering::Release);
                if id == 0 {
                    self.region.lose_stack();
                }
                return id;
            }
            std::hint::spin_loop();
        }
        self.region.lose_stack();
        0
    }

    #[cold]
    fn learn_frames(&self, version: Version, thread: usize, key: u64) -> u32 {
        self.learn(key, |unknown| {
            let (mut ids, mut depth, mut complete) = ([(0_u32, 0_u32); DEPTH_MAX], 0, true);
            let mut add = |frame: RawFrame| {
                let dictionary = &mut unknown.dictionary;
                code_deaths::watch(frame.code);
                let id = unknown.codes.id(frame.code, frame.identity, || {
                    // SAFETY: a frame of this thread holds the code object now.
                    define_code(dictionary, &unsafe { CodeParts::of(version, frame.code) })
                });
                match id {
                    Some(id) => ids[depth] = (id, frame.lasti),
                    None => complete = false,
                }
                depth += 1;
            };
            // SAFETY: as in `stack`; the walk stops at DEPTH_MAX.
            unsafe { frames::walk(version, thread, &mut add) };
            complete
                && unknown.dictionary.append(Kind::Stack, depth * 8, |to| {
                    for (pair, (code, lasti)) in to.chunks_exact_mut(8).zip(&ids) {
                        pair[..4].copy_from_slice(&code.to_le_bytes());
                        pair[4..].copy_from_slice(&lasti.to_le_bytes());
                    }
                    depth * 8
                })
        })
    }

    #[cold]
    fn learn_node(&self, key: u64, forward: u32) -> u32 {
        let type_name = (self.shim.node_type)();
        if type_name.is_null() {
            return 0;
        }
        self.learn(key, |unknown| {
            // SAFETY: a C string in static memory, from `typeid`.
            let name = unsafe { std::ffi::CStr::from_ptr(type_name) }.to_bytes();
            let name = &name[..name.len().min(dictionary::NAME_BYTES_MAX)];
            unknown.dictionary.append(Kind::Node, 4 + name.len(), |to| {
                to[..4].copy_from_slice(&forward.to_le_bytes());
                to[4..].copy_from_slice(name);
                4 + name.len()
            })
        })
    }

    #[cold]
    fn learn_owner(&self, key: u64, stack: StackId, name: &[u8]) -> u32 {
        // Relaxed: a limit; a few more do no harm.
        if self.owned_stacks.load(Ordering::Relaxed) >= SESSION_OWNED_STACKS_MAX as u32 {
            return 0;
        }
        self.owned_stacks.fetch_add(1, Ordering::Relaxed);
        self.learn(key, |unknown| {
            unknown.dictionary.append(Kind::Owner, 4 + name.len(), |to| {
                to[..4].copy_from_slice(&stack.0.to_le_bytes());
                to[4..].copy_from_slice(name);
                4 + name.len()
            })
        })
    }

    /// Turns Python stacks on if a walk of this thread sees exactly the frames that the interpreter itself reports.
    ///
    /// `expected`: address of the code object and `f_lasti` in bytes, innermost first.
    pub fn check_stacks(&self, version: Version, expected: &[(usize, u32)]) -> bool {
        let thread = (self.thread_state)();
        let agrees = proof::frames_agree(version, thread, expected);
        if agrees {
            let number = VERSIONS.iter().position(|known| *known == version).map_or(0, |place| place as u8 + 1);
            self.set_stacks(number);
        }
        agrees
    }

    fn set_stacks(&self, number: u8) {
        // Relaxed: see `version`.
        self.version.store(number, Ordering::Relaxed);
    }

    /// Distinguishes frames by the address of their instruction alone from now on. [`code_deaths::died`] must be called
    /// whenever a code object dies. Has no effect before Python 3.12, whose frames lack that address.
    pub fn trust_places(&self, version: Version) {
        // Relaxed: a switch; both ways give the same stacks.
        self.by_place.store(version.has_places(), Ordering::Relaxed);
    }

    /// How this hook walks stacks, for a later hook in the same process.
    #[must_use]
    pub fn walks(&self) -> Walks {
        // Relaxed: see `version`.
        Walks { version: self.version.load(Ordering::Relaxed), by_place: self.by_place.load(Ordering::Relaxed) }
    }

    /// Walks stacks as the previous hook did.
    pub fn walk_as(&self, Walks { version, by_place }: Walks) {
        self.set_stacks(version);
        // Relaxed: a switch; both ways give the same stacks.
        self.by_place.store(by_place, Ordering::Relaxed);
    }

    /// The rings' positions.
    #[must_use]
    pub fn positions(&self) -> Vec<Position> {
        // `pushed` is read first: a drop that is counted after that belongs after the mark.
        self.lanes.iter().map(|lane| Position { pushed: lane.gauge.pushed(), dropped: lane.gauge.dropped() }).collect()
    }

    /// A ring's position after the last `snapshot` event of its device; `None` when there was none.
    #[must_use]
    pub fn snapshot_position(&self, device: usize) -> Option<Position> {
        let lane = self.lanes.get(device)?;
        // Relaxed: see `event`.
        let pushed = lane.snapshot_pushed.load(Ordering::Relaxed);
        let dropped = lane.snapshot_dropped.load(Ordering::Relaxed);
        (pushed > 0 || dropped > 0).then_some(Position { pushed, dropped })
    }

    /// Whether a device has had events.
    #[must_use]
    pub fn is_used(&self, device: usize) -> bool {
        self.lanes.get(device).is_some_and(|lane| lane.gauge.pushed() + lane.gauge.dropped() > 0)
    }

    /// Stacks seen so far.
    #[must_use]
    pub fn stacks(&self) -> u32 {
        self.known.count()
    }
}

/// The initial key of a walk by instruction addresses. It changes whenever a code object that was seen on a stack dies.
#[inline(always)]
fn first_key() -> u64 {
    // Relaxed: a thread can run new code at a dead object's address only after it took the interpreter's lock, and that
    // lock orders the death before the walk.
    GATE.deaths.load(Ordering::Relaxed).wrapping_mul(OTHER) ^ GOLDEN
}

/// The key of a thread's frames, from code object, identity and instruction of each; `None` when the thread has no
/// frames.
#[inline]
fn full_key(version: Version, thread: usize) -> Option<u64> {
    let (mut key, mut depth) = (GOLDEN, 0);
    let each = |frame: RawFrame| {
        let place = (frame.code as u64).wrapping_add(u64::from(frame.lasti));
        key = mix(key, place ^ frame.identity.wrapping_mul(GOLDEN).rotate_left(29));
        depth += 1;
    };
    // SAFETY: the calling thread's own state, of the version that was checked.
    unsafe { frames::walk(version, thread, each) };
    (depth > 0).then_some(key)
}

/// Folds a word into a key. The inner product does not depend on the key, so the processor can work on several frames
/// at once.
#[inline(always)]
fn mix(key: u64, word: u64) -> u64 {
    (key.rotate_left(23) ^ word.wrapping_mul(OTHER)).wrapping_mul(GOLDEN)
}

/// Spreads a number over all bits.
#[inline(always)]
fn mixed(number: u64) -> u64 {
    let product = number.wrapping_add(1).wrapping_mul(GOLDEN);
    (product ^ (product >> 29)).wrapping_mul(OTHER)
}

fn define_code(dictionary: &mut dictionary::Writer, code: &CodeParts) -> bool {
    const HEAD: usize = 16;
    let name = dictionary::NAME_BYTES_MAX;
    // The line table is stored completely or not at all; it is left out when the dictionary is nearly full.
    let fill = |to: &mut [u8]| {
        let file = code.file(&mut to[HEAD..HEAD + name]);
        let name = code.name(&mut to[HEAD + file..HEAD + file + name]);
        let table = code.table(&mut to[HEAD + file + name..]);
        for (at, number) in [code.first_line, file as u32, name as u32, table as u32].into_iter().enumerate() {
            to[at * 4..at * 4 + 4].copy_from_slice(&number.to_le_bytes());
        }
        HEAD + file + name + table
    };
    dictionary.append(Kind::Code, HEAD + 2 * name + dictionary::TABLE_BYTES_MAX, fill)
        || dictionary.append(Kind::Code, HEAD + 2 * name, fill)
}

#[cfg(test)]
mod tests;
