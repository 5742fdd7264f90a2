//! Tests of the hook's tables, and of the hook on threads whose memory is laid out by hand for each version of Python.
//!
//! `tests/torch` tests that real interpreters have these layouts.
//! (Over 400 lines: the layouts, and the helpers that every test of the hook needs.)

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;

use proptest::prelude::*;

use super::*;
use crate::region::dictionary::{Entry, Reader};

thread_local! {
    static STATE: Cell<usize> = const { Cell::new(0) };
    static SEQUENCE: Cell<u64> = const { Cell::new(0) };
    static NODE: Cell<Option<(&'static CStr, u64)>> = const { Cell::new(None) };
}

extern "C" fn thread_state() -> usize {
    STATE.get()
}

extern "C" fn sequence() -> u64 {
    SEQUENCE.get()
}

extern "C" fn node(to: *mut RawNode) -> i32 {
    let Some((name, made_by)) = NODE.get() else { return 0 };
    // SAFETY: the hook passes a valid pointer.
    unsafe { *to = RawNode { kind: name.as_ptr() as usize, made_by } };
    1
}

extern "C" fn node_type() -> *const c_char {
    NODE.get().map_or(std::ptr::null(), |(name, _)| name.as_ptr())
}

const SHIM: Shim = Shim { sequence, node, node_type };

/// Offsets of one version, in words: in the thread state, in a frame (code, previous, instruction) and in a code
/// object.
struct Words {
    version: Version,
    code: usize,
    previous: usize,
    instruction: usize,
    start: u64,
    first_line: usize,
}

const VERSIONS: [Words; 5] = [
    Words { version: Version::V310, code: 4, previous: 3, instruction: 12, start: 0, first_line: 5 },
    Words { version: Version::V311, code: 4, previous: 6, instruction: 7, start: 184, first_line: 9 },
    Words { version: Version::V312, code: 0, previous: 1, instruction: 7, start: 192, first_line: 8 },
    Words { version: Version::V313, code: 0, previous: 1, instruction: 7, start: 200, first_line: 8 },
    Words { version: Version::V314, code: 0, previous: 1, instruction: 7, start: 208, first_line: 8 },
];

/// A thread whose frames, innermost first, are at instruction `lasti / 2` of code object number `code`.
struct Thread {
    memory: Vec<u64>,
    expected: Vec<(usize, u32)>,
}

/// Words of a frame, and of a code object.
const FRAME: usize = 16;
const CODE: usize = 32;

impl Thread {
    fn new(words: &Words, frames: &[(usize, u32)]) -> Self {
        let codes = 1 + frames.iter().map(|frame| frame.0).max().unwrap_or(0);
        let (cframe, first_frame) = (16, 32);
        let first_code = first_frame + frames.len() * FRAME;
        let mut memory = vec![0_u64; first_code + codes * CODE];
        let base = memory.as_ptr() as usize;
        let address = |word: usize| (base + word * 8) as u64;
        let innermost = if frames.is_empty() { 0 } else { address(first_frame) };
        match words.version {
            Version::V310 => memory[3] = innermost,
            Version::V311 => (memory[7], memory[cframe + 1]) = (address(cframe), innermost),
            Version::V312 => (memory[7], memory[cframe]) = (address(cframe), innermost),
            Version::V313 | Version::V314 => memory[9] = innermost,
        }
        let mut expected = Vec::new();
        for (number, &(code, lasti)) in frames.iter().enumerate() {
            let (at, code) = (first_frame + number * FRAME, first_code + code * CODE);
            // 3.14 tags references that it does not count.
            memory[at + words.code] = address(code) | u64::from(words.version == Version::V314);
            memory[at + words.previous] = if number + 1 < frames.len() { address(at + FRAME) } else { 0 };
            memory[at + words.instruction] = match words.version {
                Version::V310 => u64::from(lasti / 2),
                _ => address(code) + words.start + u64::from(lasti),
            };
            memory[code + words.first_line] |= (code as u64 + 1) << if words.version == Version::V311 { 0 } else { 32 };
            expected.push((address(code) as usize, lasti));
        }
        if words.version == Version::V310 {
            // co_firstlineno is the lower half of word 5 there.
            memory[first_code + 5] >>= 32;
        }
        Self { memory, expected }
    }

    fn enter(&self) {
        STATE.set(self.memory.as_ptr() as usize);
    }
}

fn hook() -> (Arc<Region>, Hook) {
    let region = Region::create(2, 64).unwrap();
    let hook = Hook::new(region.clone(), thread_state, SHIM);
    (region, hook)
}

fn alloc(hook: &Hook, addr: u64) {
    let raw = RawEvent { addr, size: 512, device: 1, ..RawEvent::default() };
    // SAFETY: this thread is alone.
    unsafe { hook.event(&raw) };
}

fn stacks(region: &Arc<Region>) -> Vec<u32> {
    // SAFETY: the only consumer; called once a test.
    let mut consumer = unsafe { region.consumer(1) };
    let mut stacks = Vec::new();
    consumer.read(u64::MAX, |record| stacks.push(record.event(Ticks::as_ns).stack.0));
    stacks
}

#[test]
fn a_stack_is_learnt_once_and_known_after() {
    for words in &VERSIONS {
        let (region, hook) = hook();
        let thread = Thread::new(words, &[(0, 8), (1, 20), (0, 30)]);
        thread.enter();
        assert!(hook.check_stacks(words.version, &thread.expected), "{:?}", words.version);
        for addr in 1..=3 {
            alloc(&hook, addr);
        }
        let other = Thread::new(words, &[(0, 8), (1, 22), (0, 30)]);
        other.enter();
        alloc(&hook, 4);
        assert_eq!(stacks(&region), [1, 1, 1, 2]);
        let mut reader = Reader::new(region.clone());
        let entries: Vec<Entry> = std::iter::from_fn(|| reader.pop()).collect();
        let stacks: Vec<_> = entries.iter().filter(|entry| matches!(entry, Entry::Stack(_))).collect();
        assert_eq!(stacks[0], &Entry::Stack(vec![(0, 8), (1, 20), (0, 30)]), "{:?}", words.version);
        assert_eq!(entries.iter().filter(|entry| matches!(entry, Entry::Code { .. })).count(), 4);
        STATE.set(0);
    }
}

#[test]
fn by_place_stacks_are_the_same_and_frames_without_code_have_no_part() {
    for words in &VERSIONS[2..] {
        let (region, hook) = hook();
        let thread = Thread::new(words, &[(0, 8), (1, 20), (0, 30)]);
        thread.enter();
        assert!(hook.check_stacks(words.version, &thread.expected));
        hook.trust_places(words.version);
        alloc(&hook, 1);
        alloc(&hook, 2);
        let mut other = Thread::new(words, &[(0, 8), (1, 20), (0, 32)]);
        other.enter();
        alloc(&hook, 3);
        // The frame in the middle has no Python code: its owner is 3, at byte 70 before 3.14 and at byte 74 from 3.14
        // on.
        let (word, shift) = if words.version == Version::V314 { (9, 16) } else { (8, 48) };
        other.memory[32 + FRAME + word] |= 3 << shift;
        alloc(&hook, 4);
        // A thread with a state, without frames and without a running node has no stack.
        let idle = Thread::new(words, &[]);
        idle.enter();
        alloc(&hook, 5);
        STATE.set(0);
        assert_eq!(stacks(&region), [1, 1, 2, 2, 0], "known by the places of all frames");
    }
}

#[test]
fn code_at_a_dead_ones_address_is_met_as_new() {
    for words in &VERSIONS[2..] {
        let (region, hook) = hook();
        let mut thread = Thread::new(words, &[(0, 8)]);
        thread.enter();
        assert!(hook.check_stacks(words.version, &thread.expected));
        hook.trust_places(words.version);
        alloc(&hook, 1);
        // Another code object at the same address has the same instruction, but another version and first line.
        thread.memory[32 + FRAME + words.first_line] += 1 << 32;
        alloc(&hook, 2);
        code_deaths::died(thread.expected[0].0 ^ 0x7_0000);
        alloc(&hook, 3);
        code_deaths::died(thread.expected[0].0);
        alloc(&hook, 4);
        alloc(&hook, 5);
        STATE.set(0);
        assert_eq!(
            stacks(&region),
            [1, 1, 1, 2, 2],
            "only a death that is reported is seen, and only of code that was met"
        );
    }
}

#[test]
fn versions_without_places_go_on_by_code_object() {
    for words in &VERSIONS[..2] {
        let (region, hook) = hook();
        let mut thread = Thread::new(words, &[(0, 8)]);
        thread.enter();
        assert!(hook.check_stacks(words.version, &thread.expected));
        hook.trust_places(words.version);
        alloc(&hook, 1);
        thread.memory[32 + FRAME + words.first_line] += 1;
        alloc(&hook, 2);
        STATE.set(0);
        assert_eq!(stacks(&region), [1, 2]);
    }
}

#[test]
fn a_layout_that_does_not_agree_leaves_stacks_off() {
    let (region, hook) = hook();
    let words = &VERSIONS[1];
    let thread = Thread::new(words, &[(0, 8), (1, 20)]);
    thread.enter();
    let mut wrong = thread.expected.clone();
    wrong[1].1 += 2;
    assert!(!hook.check_stacks(words.version, &wrong));
    assert!(!hook.check_stacks(words.version, &thread.expected[..1]));
    assert!(!hook.check_stacks(words.version, &[]));
    alloc(&hook, 1);
    STATE.set(0);
    assert!(!hook.check_stacks(words.version, &thread.expected), "a thread without Python");
    assert_eq!(stacks(&region), [0]);
}

/// Tests invalid pointers at every place where a pointer is read. Only pointers that the kernel can read are followed.
#[test]
fn a_pointer_that_leads_nowhere_is_not_followed() {
    for words in &VERSIONS {
        let (_region, hook) = hook();
        let whole = Thread::new(words, &[(0, 8), (1, 20)]);
        // The pointers from the state to the frames, from a frame to the next, and to its code object.
        let ways = [3, 7, 9, 16, 17, 32 + words.code, 32 + words.previous, 32 + FRAME + words.previous];
        for (way, wild) in ways.iter().flat_map(|way| [0x10, 0xdead_beef_0000, u64::MAX - 7].map(|wild| (*way, wild))) {
            let mut thread = Thread::new(words, &[(0, 8), (1, 20)]);
            if thread.memory[way] == 0 && way < 32 {
                continue;
            }
            thread.memory[way] = wild;
            thread.enter();
            assert!(!hook.check_stacks(words.version, &thread.expected), "{:?} {way} {wild:x}", words.version);
        }
        whole.enter();
        assert!(hook.check_stacks(words.version, &whole.expected));
        STATE.set(0);
    }
}

#[test]
fn backward_allocations_name_the_node_and_the_forward_call() {
    let (region, hook) = hook();
    let words = &VERSIONS[2];
    let thread = Thread::new(words, &[(0, 8)]);
    thread.enter();
    assert!(hook.check_stacks(words.version, &thread.expected));
    // In the forward pass, the node takes number 41 of thread 3, and then its output is allocated.
    let call = 41 | 3 << 40;
    SEQUENCE.set(call + 1);
    alloc(&hook, 1);
    // The backward pass runs on a thread without Python.
    STATE.set(0);
    NODE.set(Some((c"N5torch8autograd9generated12MulBackward0E", call)));
    alloc(&hook, 2);
    alloc(&hook, 3);
    NODE.set(Some((c"N5torch8autograd14AccumulateGradE", u64::MAX)));
    alloc(&hook, 4);
    NODE.set(None);
    alloc(&hook, 5);
    assert_eq!(stacks(&region), [1, 2, 2, 3, 0]);
    let mut reader = Reader::new(region.clone());
    let nodes: Vec<Entry> = std::iter::from_fn(|| reader.pop()).filter(|it| matches!(it, Entry::Node { .. })).collect();
    let named = |forward, name: &str| Entry::Node { forward, type_name: name.into() };
    assert_eq!(nodes[0], named(1, "N5torch8autograd9generated12MulBackward0E"));
    assert_eq!(nodes[1], named(0, "N5torch8autograd14AccumulateGradE"));
}

#[test]
fn a_name_is_learnt_once_for_each_stack_and_costs_no_other() {
    let (region, hook) = hook();
    let words = &VERSIONS[2];
    let thread = Thread::new(words, &[(0, 8)]);
    thread.enter();
    assert!(hook.check_stacks(words.version, &thread.expected));
    let named = |addr: u64, action: Action, name: &str| {
        let (owner, owner_bytes) = (name.as_ptr() as usize, name.len() as u64);
        let raw =
            RawEvent { addr, size: 512, device: 1, action: action as i32, owner, owner_bytes, ..RawEvent::default() };
        // SAFETY: this thread is alone, and the name outlives the call.
        unsafe { hook.event(&raw) };
    };
    let long = "\u{fc}".repeat(OWNER_BYTES_MAX);
    alloc(&hook, 1);
    named(2, Action::Alloc, "KV cache");
    named(3, Action::Alloc, "weights");
    named(4, Action::Alloc, "KV cache");
    named(4, Action::FreeRequested, "KV cache");
    alloc(&hook, 5);
    named(6, Action::Alloc, &long);
    named(5, Action::Annotate, "logits");
    named(5, Action::Annotate, "");
    STATE.set(0);
    named(7, Action::Alloc, "KV cache");
    assert_eq!(stacks(&region), [1, 2, 3, 2, 0, 1, 4, 5, 0, 6]);
    let mut reader = Reader::new(region.clone());
    let owners: Vec<(u32, String)> = std::iter::from_fn(|| reader.pop())
        .filter_map(|entry| match entry {
            Entry::Owner { stack, name } => Some((stack, name)),
            _ => None,
        })
        .collect();
    let expected = [(1, "KV cache"), (1, "weights"), (1, &long[..OWNER_BYTES_MAX]), (0, "logits"), (0, "KV cache")];
    assert_eq!(owners, expected.map(|(stack, name)| (stack, name.to_owned())));
    assert_eq!(region.stacks_lost(), 0);
}

#[test]
fn names_without_end_leave_room_for_stacks() {
    let (region, hook) = hook();
    let words = &VERSIONS[2];
    let thread = Thread::new(words, &[(0, 8)]);
    thread.enter();
    assert!(hook.check_stacks(words.version, &thread.expected));
    // SAFETY: the only consumer.
    let mut consumer = unsafe { region.consumer(0) };
    for number in 0..SESSION_OWNED_STACKS_MAX + 100 {
        let name = format!("step {number}");
        let (owner, owner_bytes) = (name.as_ptr() as usize, name.len() as u64);
        let raw = RawEvent { addr: 1, size: 512, owner, owner_bytes, ..RawEvent::default() };
        // SAFETY: this thread is alone, and the name outlives the call.
        unsafe { hook.event(&raw) };
        // Makes room for every event.
        consumer.read(u64::MAX, |_| ());
    }
    let other = Thread::new(words, &[(0, 30)]);
    other.enter();
    alloc(&hook, 2);
    STATE.set(0);
    assert_eq!(stacks(&region), [SESSION_OWNED_STACKS_MAX as u32 + 2]);
    assert_eq!(region.stacks_lost(), 0);
}

#[test]
fn events_of_no_device_or_action_are_left_out() {
    let (region, hook) = hook();
    for (device, action) in [(-1, 0), (2, 0), (0, -1), (0, 10), (0, 1 << 20)] {
        let raw = RawEvent { device, action, ..RawEvent::default() };
        // SAFETY: this thread is alone.
        unsafe { hook.event(&raw) };
    }
    assert!(hook.positions().iter().all(|position| *position == Position::default()));
    assert_eq!(region.stacks_lost(), 0);
}

#[test]
fn a_snapshot_event_says_where_the_ring_stood() {
    let (_region, hook) = hook();
    assert_eq!(hook.snapshot_position(1), None);
    alloc(&hook, 1);
    let raw = RawEvent { device: 1, action: Action::Snapshot as i32, ..RawEvent::default() };
    // SAFETY: this thread is alone.
    unsafe { hook.event(&raw) };
    alloc(&hook, 2);
    assert_eq!(hook.snapshot_position(1), Some(Position { pushed: 2, dropped: 0 }));
    assert_eq!(hook.snapshot_position(7), None);
}

#[test]
fn deep_recursion_is_cut_at_the_outer_end() {
    let (region, hook) = hook();
    let words = &VERSIONS[3];
    let frames: Vec<_> = (0..DEPTH_MAX + 50).map(|depth| (depth % 3, 2 * (depth as u32 % 7))).collect();
    let thread = Thread::new(words, &frames);
    thread.enter();
    assert!(hook.check_stacks(words.version, &thread.expected));
    alloc(&hook, 1);
    STATE.set(0);
    let mut reader = Reader::new(region);
    let longest = std::iter::from_fn(|| reader.pop()).find_map(|entry| match entry {
        Entry::Stack(frames) => Some(frames.len()),
        _ => None,
    });
    assert_eq!(longest, Some(DEPTH_MAX));
}

proptest! {
    #[test]
    fn recent_keys_are_forgotten_but_never_mistaken(keys in proptest::collection::vec(any::<(u64, u16)>(), 1..300)) {
        let (near, mut model) = (intern::Near::default(), HashMap::new());
        for (number, (key, id)) in keys.into_iter().enumerate() {
            // The keys use few slots, so that many collide. The word holds the upper 48 bits.
            let key = if number % 2 == 0 { key & !0xffff | key & 7 } else { key };
            if let Some(found) = near.get(key) {
                prop_assert_eq!(Some(&found), model.get(&key));
            }
            near.put(key, u32::from(id));
            if id > 0 {
                model.insert(key, u32::from(id));
                prop_assert_eq!(near.get(key), Some(u32::from(id)));
            }
        }
        near.put(1 << 40, 1 << 16);
        prop_assert_eq!(near.get(1 << 40), model.get(&(1 << 40)).copied(), "an id that has no room is not remembered");
    }

    #[test]
    fn known_stacks_are_a_map(keys in proptest::collection::vec(any::<u64>(), 1..300)) {
        let (stacks, mut model) = (intern::Stacks::default(), HashMap::new());
        for (number, key) in keys.into_iter().enumerate() {
            // Some keys collide in their upper half, where the search begins.
            let key = if number % 3 == 0 { key | 0xffff_0000_0000_0000 } else { key };
            prop_assert_eq!(stacks.get(key), model.get(&key.max(1)).copied());
            if stacks.get(key).is_none() {
                stacks.insert(key, number as u32);
                model.insert(key.max(1), number as u32);
            }
            prop_assert_eq!(stacks.get(key), model.get(&key.max(1)).copied());
        }
        prop_assert_eq!(stacks.count() as usize, model.len());
    }
}

#[test]
fn full_tables_refuse_and_keep_what_they_know() {
    let mut codes = Codes::default();
    assert_eq!(codes.id(0, 0, || true), None, "no code object lies at 0, and an empty slot is none");
    let mut known = 0;
    for code in 1..=20_000_usize {
        match codes.id(code * 16, 7, || true) {
            Some(id) => {
                assert_eq!(id as usize, known);
                known += 1;
            }
            None => break,
        }
    }
    assert_eq!(known, 12_288, "three quarters");
    assert_eq!(codes.id(16, 7, || panic!("it is known")), Some(0));
    assert_eq!(codes.id(16, 8, || true), None, "another object at the same address");
    let stacks = Stacks::default();
    for key in 1..=49_152_u64 {
        assert!(stacks.has_room());
        stacks.insert(key << 33, key as u32);
    }
    assert!(!stacks.has_room());
    assert_eq!(stacks.get(5 << 33), Some(5));
}
