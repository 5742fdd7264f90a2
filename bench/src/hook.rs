//! The hook's own cost: the callback into the ring, alone and with a Python stack of 20 frames, while a reader empties
//! the ring. One run has bursts, where all data is in the nearest cache. Another run has other work between two
//! callbacks.
//!
//! PyTorch's part of a callback (building its `TraceEntry`) and PyTorch's own recorder are measured in the process of a
//! genuine torch, see `bench/live/micro.py`; here only memctl runs. The walked thread has the memory layout of each
//! CPython version: frames are adjacent as in its data stack, and code objects are spread over pages. It is walked by
//! instruction addresses, or by code objects in versions that do not report their deallocation (3.10, 3.11).

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use memctl_agent::RING_EVENTS;
use memctl_agent::internals::hook::{self, Hook, RawEvent, RawNode, Shim, Version};
use memctl_agent::internals::region::Region;
use memctl_agent::internals::region::dictionary::Reader;
use memctl_agent::internals::{Ticks, ticks};

/// Callbacks of one run.
const EVENTS: u64 = 3_000_000;
/// Frames of the stack that is walked.
const FRAMES: usize = 20;
/// Words of a frame.
const FRAME_WORDS: usize = 16;
/// Words between two code objects: too far for any prefetcher.
const CODE_WORDS: usize = 640;
/// Stacks of a step, in the run with other work between two callbacks.
const STACKS: u64 = 1_500;
/// Bytes that the program reads between two callbacks in that run: many times a first-level cache, half of a
/// second-level one. Reading them takes a few times as long as the time between two events of a training (6 µs, GPT-2
/// small at batch 1).
const OTHER_BYTES: usize = 1 << 20;
/// Callbacks of such a run.
const COLD_EVENTS: u64 = 40_000;

/// Address of the thread state that the hook is given; 0: a thread without Python.
static THREAD: AtomicUsize = AtomicUsize::new(0);

extern "C" fn thread_state() -> usize {
    // Relaxed: set before the run begins.
    THREAD.load(Ordering::Relaxed)
}

/// The number of autograd's next node.
static NODE: AtomicU64 = AtomicU64::new(7);

extern "C" fn sequence() -> u64 {
    // Relaxed: this thread alone counts.
    NODE.load(Ordering::Relaxed)
}

extern "C" fn node(_: *mut RawNode) -> i32 {
    0
}

extern "C" fn node_type() -> *const std::ffi::c_char {
    std::ptr::null()
}

/// The positions of the walked fields in each CPython: words of Include/internal/pycore_frame.h and
/// cpython/{pystate,code}.h.
#[derive(Clone, Copy)]
struct Layout {
    version: Version,
    /// In the thread state: the innermost frame, or a pointer that leads to it and the word at its target.
    innermost: (usize, Option<usize>),
    /// In a frame.
    code: usize,
    previous: usize,
    /// Set in a frame's pointer to its code object.
    tag: u64,
    /// In a code object: the word that distinguishes it from another at its address, and the bytes before its
    /// instructions.
    identity: usize,
    start: u64,
}

const V311: Layout =
    Layout { version: Version::V311, innermost: (7, Some(1)), code: 4, previous: 6, tag: 0, identity: 9, start: 184 };
const V312: Layout =
    Layout { version: Version::V312, innermost: (7, Some(0)), code: 0, previous: 1, tag: 0, identity: 11, start: 192 };
const V313: Layout = Layout { version: Version::V313, innermost: (9, None), start: 200, ..V312 };
/// 3.15 has the same layout.
const V314: Layout = Layout { version: Version::V314, tag: 1, start: 208, ..V313 };

/// The word of a frame with its instruction, in all versions.
const INSTRUCTION: usize = 7;
/// Word of the memory that holds the pointer to the innermost frame.
const BETWEEN: usize = 16;

/// The word at which a frame begins; frame 0 is the innermost. The stack of frames grows upwards.
const fn frame_at(frame: usize) -> usize {
    32 + (FRAMES - 1 - frame) * FRAME_WORDS
}

/// How frames are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// No stacks.
    None,
    /// By the address of their instruction.
    Places,
    /// By their code object's version and first line.
    Codes,
}

/// A thread of a CPython with frames and code objects.
struct Thread {
    layout: Layout,
    memory: Vec<u64>,
    expected: Vec<(usize, u32)>,
}

impl Thread {
    fn new(layout: Layout) -> Self {
        let codes = 32 + FRAMES * FRAME_WORDS;
        let mut memory = vec![0_u64; codes + FRAMES * CODE_WORDS];
        let base = memory.as_ptr() as usize;
        let address = |word: usize| (base + word * 8) as u64;
        let mut expected = Vec::new();
        for frame in 0..FRAMES {
            let (at, code) = (frame_at(frame), codes + frame * CODE_WORDS);
            memory[at + layout.code] = address(code) | layout.tag;
            memory[at + layout.previous] = if frame + 1 < FRAMES { address(frame_at(frame + 1)) } else { 0 };
            memory[at + INSTRUCTION] = address(code) + layout.start + 2 * (frame as u64 + 3);
            // Both halves are set, because 3.11 uses the lower one, the line of the `def`.
            memory[code + layout.identity] = (frame as u64 + 1) << 32 | (frame as u64 + 1);
            expected.push((address(code) as usize, 2 * (frame as u32 + 3)));
        }
        let mut thread = Self { layout, memory, expected };
        thread.enter(0);
        thread
    }

    /// Makes this frame the innermost one.
    fn enter(&mut self, frame: usize) {
        let base = self.memory.as_ptr() as u64;
        let address = |word: usize| base + word as u64 * 8;
        match self.layout.innermost {
            (word, None) => self.memory[word] = address(frame_at(frame)),
            (word, Some(of_it)) => {
                self.memory[word] = address(BETWEEN);
                self.memory[BETWEEN + of_it] = address(frame_at(frame));
            }
        }
    }

    /// Moves to another line of the program: other instructions in the three innermost frames, and up to three frames
    /// fewer.
    fn go_to(&mut self, line: u64) {
        let innermost = (line % 4) as usize;
        self.enter(innermost);
        let numbers = [line % 13, line / 13 % 13, line / 169];
        let Layout { code, tag, start, .. } = self.layout;
        for (place, frame) in (innermost..FRAMES).enumerate() {
            let at = frame_at(frame);
            let number = numbers.get(place).copied().unwrap_or(frame as u64);
            self.memory[at + INSTRUCTION] = (self.memory[at + code] & !tag) + start + 2 * number;
        }
        std::hint::black_box(&self.memory);
    }
}

/// One run: mean nanoseconds per event, and the median and the 99.9th percentile of single calls.
#[derive(Clone, Copy, Debug)]
struct Run {
    mean_ns: f64,
    p50_ns: f64,
    p999_ns: f64,
    dropped: u64,
}

/// Measures and returns a table.
///
/// # Errors
/// The region cannot be created, or the walk does not return the synthetic frames.
pub fn run(rounds: usize) -> Result<String, Box<dyn Error>> {
    let mut text = String::from("| callback | mean ns | p50 ns | p99.9 ns | dropped |\n|---|---|---|---|---|\n");
    let alike = [
        ("an event without a stack", V312, Walk::None, 1),
        ("an allocation with a known stack of 20 frames, by code objects, CPython 3.11", V311, Walk::Codes, 1),
        ("the same by places, 3.12", V312, Walk::Places, 1),
        ("3.13", V313, Walk::Places, 1),
        ("3.14 and 3.15", V314, Walk::Places, 1),
        ("3.14 and 3.15 by code objects", V314, Walk::Codes, 1),
        ("allocation (20 frames), free requested, free completed: an event, 3.12", V312, Walk::Places, 3),
    ];
    text += &table(&alike, rounds, |layout, stacks, every| one(&mut Thread::new(layout), stacks, every))?;
    let between = [
        ("other work between callbacks: an event without a stack", V312, Walk::None, 1),
        ("an allocation, 1,500 stacks of 17 to 20 frames, by code objects, 3.11", V311, Walk::Codes, 1),
        ("the same by places, 3.12", V312, Walk::Places, 1),
        ("3.14 and 3.15", V314, Walk::Places, 1),
    ];
    text += &table(&between, rounds, |layout, stacks, _| cold(layout, stacks))?;
    Ok(text)
}

/// One measurement: its name, the interpreter, the walk, and the number of events per allocation.
type Way = (&'static str, Layout, Walk, u64);

/// Medians of the rounds. The ways alternate within a round, so that other load on the machine affects all equally.
fn table(
    ways: &[Way],
    rounds: usize,
    measure: impl Fn(Layout, Walk, u64) -> Result<Run, Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut runs = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (&(_, layout, stacks, every), runs) in ways.iter().zip(&mut runs) {
            runs.push(measure(layout, stacks, every)?);
        }
    }
    let mut text = String::new();
    for (&(what, ..), runs) in ways.iter().zip(&mut runs) {
        runs.sort_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
        let Run { mean_ns, p50_ns, p999_ns, dropped } = runs[rounds / 2];
        text += &format!("| {what} | {mean_ns:.1} | {p50_ns:.1} | {p999_ns:.1} | {dropped} |\n");
    }
    Ok(text)
}

/// Callbacks as in a training: with other work between them, and each from another line.
fn cold(layout: Layout, stacks: Walk) -> Result<Run, Box<dyn Error>> {
    let rate = rate();
    let ((mut calls, mut empty), hook, _) = recorded(&mut Thread::new(layout), stacks, many_lines)?;
    if stacks != Walk::None && u64::from(hook.stacks()) != STACKS {
        return Err(format!("{} stacks instead of {STACKS}", hook.stacks()).into());
    }
    calls.sort_unstable();
    empty.sort_unstable();
    let empty = empty[empty.len() / 2];
    // The mean without the slowest hundredth: interrupts are not part of the callback.
    let usual = &calls[..calls.len() / 100 * 99];
    let mean = usual.iter().sum::<u64>() as f64 / usual.len() as f64 - empty as f64;
    let at = |share: f64| calls[(calls.len() as f64 * share) as usize].saturating_sub(empty) as f64;
    let dropped = hook.positions().iter().map(|position| position.dropped).sum();
    Ok(Run { mean_ns: mean * rate, p50_ns: at(0.5) * rate, p999_ns: at(0.999) * rate, dropped })
}

/// Ticks of single callbacks, each from another line and after other work, and ticks of an empty measurement.
fn many_lines(thread: &mut Thread) -> (Vec<u64>, Vec<u64>) {
    let other = vec![1_u64; OTHER_BYTES / 8];
    let (mut calls, mut empty, mut sum) = (Vec::new(), Vec::new(), 0_u64);
    for number in 0..COLD_EVENTS {
        thread.go_to(number % STACKS);
        // Relaxed: as above.
        NODE.store(number, Ordering::Relaxed);
        sum = other.iter().step_by(8).fold(sum, |sum, word| sum.wrapping_add(*word));
        std::hint::black_box(sum);
        let raw = event(number, 1);
        let begun = ticks();
        // SAFETY: this thread alone makes events.
        unsafe { hook::on_event(&raw const *std::hint::black_box(&raw)) };
        let took = ticks().since(begun);
        let begun = ticks();
        empty.push(ticks().since(begun));
        // In the first steps the stacks are new.
        if number >= 2 * STACKS {
            calls.push(took);
        }
    }
    (calls, empty)
}

/// Creates a hook over a ring that a reader empties, and runs `work`, which calls the hook.
fn recorded<T>(
    thread: &mut Thread,
    stacks: Walk,
    work: impl FnOnce(&mut Thread) -> T,
) -> Result<(T, Hook, Arc<Region>), Box<dyn Error>> {
    let region = Region::create(1, RING_EVENTS)?;
    region.populate(0);
    let hook = Hook::new(region.clone(), thread_state, Shim { sequence, node, node_type });
    if stacks != Walk::None {
        // Relaxed: nothing runs yet.
        THREAD.store(thread.memory.as_ptr() as usize, Ordering::Relaxed);
        if !hook.check_stacks(thread.layout.version, &thread.expected) {
            return Err("the synthetic frames were not walked as they were laid out".into());
        }
        if stacks == Walk::Places {
            hook.trust_places(thread.layout.version);
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let draining = drain(&region, stop.clone());
    // SAFETY: the hook is uninstalled below before it is dropped; only this thread makes events.
    unsafe { hook::install(Some(&hook)) };
    let came_to = work(thread);
    // SAFETY: nothing is installed.
    unsafe { hook::install(None) };
    // Relaxed: only ends a loop.
    stop.store(true, Ordering::Relaxed);
    draining.join().map_err(|_| "the reader panicked")?;
    Ok((came_to, hook, region))
}

fn one(thread: &mut Thread, stacks: Walk, every: u64) -> Result<Run, Box<dyn Error>> {
    let ((mean_ns, (p50_ns, p999_ns)), hook, region) = recorded(thread, stacks, |_| (mean(every), singles(every)))?;
    let learnt = std::iter::from_fn({
        let mut reader = Reader::new(region.clone());
        move || reader.pop()
    });
    if stacks != Walk::None && learnt.count() != FRAMES + 1 {
        return Err("the stack did not reach the dictionary once".into());
    }
    let dropped = hook.positions().iter().map(|position| position.dropped).sum();
    Ok(Run { mean_ns, p50_ns, p999_ns, dropped })
}

/// Empties the ring as the worker does.
fn drain(region: &Arc<Region>, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    // SAFETY: one consumer of this region.
    let mut consumer = unsafe { region.consumer(0) };
    std::thread::spawn(move || {
        let mut sum = 0_u64;
        // Relaxed: only ends the loop.
        while !stop.load(Ordering::Relaxed) {
            if consumer.read(16_384, |record| sum = sum.wrapping_add(record.event(Ticks::as_ns).addr)) == 0 {
                std::thread::park_timeout(std::time::Duration::from_millis(2));
            }
        }
        sum
    })
}

/// The number of events in a burst; a pause follows, in which the reader catches up.
const BURST: u64 = 4_096;

fn event(number: u64, every: u64) -> RawEvent {
    // 0 alloc, 1 free requested, 2 free completed; without stacks the action does not matter.
    RawEvent {
        addr: number << 9,
        size: 512,
        ticks: Ticks(number),
        action: (number % every) as i32,
        ..RawEvent::default()
    }
}

fn mean(every: u64) -> f64 {
    let (mut spent, mut number) = (0_u128, 0);
    while number < EVENTS {
        let begun = Instant::now();
        for _ in 0..BURST {
            number += 1;
            // SAFETY: this thread alone makes events.
            unsafe { hook::on_event(&raw const *std::hint::black_box(&event(number, every))) };
        }
        spent += begun.elapsed().as_nanos();
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    spent as f64 / number as f64
}

/// Single calls between two readings of the counter, less the cost of an empty pair.
fn singles(every: u64) -> (f64, f64) {
    let rate = rate();
    let mut calls = Vec::new();
    let mut empty = Vec::new();
    for number in 0..200_000 {
        let raw = event(number, every);
        let begun = ticks();
        // SAFETY: this thread alone makes events.
        unsafe { hook::on_event(&raw const *std::hint::black_box(&raw)) };
        calls.push(ticks().since(begun));
        let begun = ticks();
        empty.push(ticks().since(begun));
        if number % BURST == 0 {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
    calls.sort_unstable();
    empty.sort_unstable();
    let at = |share: f64| calls[(calls.len() as f64 * share) as usize].saturating_sub(empty[empty.len() / 2]) as f64;
    (at(0.5) * rate, at(0.999) * rate)
}

/// Nanoseconds per tick.
fn rate() -> f64 {
    let (begun, first) = (Instant::now(), ticks());
    std::thread::sleep(std::time::Duration::from_millis(20));
    begun.elapsed().as_nanos() as f64 / ticks().since(first) as f64
}
