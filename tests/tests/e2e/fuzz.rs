//! Every fuzz target over its corpus (`tests/fuzz/corpus`) and a fixed number of mutations of it.
//!
//! Guarantees: the same inputs on every run, and no clock. An input that breaks a guarantee, or exceeds the memory
//! limit, fails the test and stays in the corpus. `MEMCTL_FUZZ=INPUTS` or `MEMCTL_FUZZ=INPUTS:SEED` runs more: this
//! many inputs of each target, from another seed. An input that ends the process (a stack that overflows) is named by
//! libFuzzer: `cargo +nightly fuzz run --fuzz-dir tests/fuzz TARGET`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memctl_tests::fuzz::{INPUT_BYTES_MAX, TARGETS, Target, corpus, drive, target};

/// The most that one input may allocate at once: the decoders' own limits, plus a reserve.
const MEMORY_MAX: isize = 160 << 20;
const SEED: u64 = 1;

/// The system allocator with a count of each thread's live bytes and their peak.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: all calls are forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn taken(bytes: usize) {
    LIVE.set(LIVE.get() + bytes as isize);
    MOST.set(MOST.get().max(LIVE.get()));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The peak of live bytes since the last call, above what is live now.
fn most() -> isize {
    MOST.replace(LIVE.get()) - LIVE.get()
}

fn within_memory() -> Result<(), String> {
    let most = most();
    if most <= MEMORY_MAX { Ok(()) } else { Err(format!("it took {most} bytes at once")) }
}

fn wanted(target: &Target) -> (u64, u64) {
    let Ok(text) = std::env::var("MEMCTL_FUZZ") else { return (target.inputs, SEED) };
    let (inputs, seed) = text.split_once(':').unwrap_or((&text, "1"));
    let number = |text: &str| text.parse().expect("MEMCTL_FUZZ is INPUTS or INPUTS:SEED");
    (number(inputs), number(seed))
}

/// Runs a target; it must have at least this many distinct outcomes, or its corpus does not reach the inner code.
fn fuzzed(name: &str, outcomes_min: usize) {
    let target = target(name);
    let (inputs, seed) = wanted(&target);
    most();
    match drive(&target, inputs, seed, within_memory) {
        Ok(outcomes) => {
            println!("{name}: {inputs} inputs, {} outcomes", outcomes.len());
            assert!(outcomes.len() >= outcomes_min, "{} outcomes: {outcomes:#?}", outcomes.len());
        }
        Err(crash) => panic!("{name}: {}\nthe input is in {}", crash.said, crash.keep(&target).display()),
    }
}

#[test]
fn chunks() {
    fuzzed("chunk", 20);
}

#[test]
fn conditions() {
    fuzzed("condition", 16);
}

#[test]
fn configurations() {
    fuzzed("config", 12);
}

#[test]
fn requests_of_http() {
    fuzzed("http", 8);
}

#[test]
fn requests_of_grpc() {
    fuzzed("http2", 12);
}

#[test]
fn notes() {
    fuzzed("note", 5);
}

#[test]
fn regions() {
    fuzzed("region", 8);
}

#[test]
fn spools() {
    fuzzed("spool", 3);
}

#[test]
fn items() {
    fuzzed("item", 20);
}

#[test]
fn rules() {
    fuzzed("rules", 20);
}

#[test]
fn snapshots() {
    fuzzed("snapshot", 20);
}

/// A seed is not larger than the inputs that the driver generates.
#[test]
fn every_target_has_a_seed_and_all_seeds_are_small() {
    for target in TARGETS {
        let seeds = corpus(&target);
        assert!(seeds.iter().all(|seed| seed.len() <= INPUT_BYTES_MAX), "{}", target.name);
    }
}

#[test]
fn a_promise_that_is_broken_is_found() {
    let broken = |run| Target { run, inputs: 0, ..target("condition") };
    let found = |target: &Target| drive(target, 20_000, SEED, within_memory).expect_err("a promise is broken");
    let crash = found(&broken(|bytes| {
        assert!(bytes.iter().filter(|byte| **byte == b'<').count() < 3, "three of them");
        String::new()
    }));
    assert_eq!(crash.said, "three of them");
    assert!(crash.input.iter().filter(|byte| **byte == b'<').count() >= 3);
    let crash = found(&broken(|bytes| {
        drop(vec![1u8; if bytes.len() > 40 { 200 << 20 } else { 0 }]);
        String::new()
    }));
    assert!(crash.said.contains("bytes at once") && crash.input.len() > 40, "{}", crash.said);
}
