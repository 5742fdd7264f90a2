//! The time that a step costs the agent's worker thread, for 10³ to 10⁶ live blocks, of which a step touches a few.
//!
//! The same step for every size: 65 blocks of 20 stacks are allocated, all but one are freed, and the step's end yields
//! a site table. The time is this thread's processor time as counted by the kernel, so a busy machine affects it only
//! through the caches. The sizes alternate, and the median of all rounds counts.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use memctl_agent::internals::{BatchConfig, Batcher};
use memctl_analysis::statistics::upper_median;
use memctl_model::{Action, AllocatorSettings, DeviceIndex, Dropped, Event, Mark, MarkKind, StackId};
use memctl_proto::v1::ItemKind;

const STEPS: u64 = 2_000;
/// The number of steps after which the batcher's linger time is over, if a step takes 10 ms.
const STEPS_PER_LINGER: u64 = 100;
const BLOCKS_PER_STEP: u64 = 65;
const SEGMENT_BYTES: u64 = 2 << 20;
const BLOCK_BYTES: u64 = 2_048;
const BASE: u64 = 0x7f00_0000_0000;

/// Numbers of live blocks and of the sites that they come from. The other pairs are compared with the first.
const SIZES: [(u64, u64); 6] =
    [(1_000, 100), (10_000, 100), (100_000, 1_000), (100_000, 100_000), (1_000_000, 1_000), (1_000_000, 100_000)];

/// One run of a size.
struct Run {
    blocks: u64,
    sites: u64,
    /// A step: its events and its table, packed.
    step: Duration,
    /// The step's end only.
    table: Duration,
    /// Bytes of a step's items without keyframes.
    bytes_per_step: f64,
    keyframes: u64,
    largest_keyframe: usize,
}

/// The medians of a size's rounds.
struct Row {
    run: Run,
    /// The time of a step relative to one of the first size.
    ratio: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { blocks, sites, step, table, bytes_per_step, keyframes, largest_keyframe } = self.run;
        let (step, table) = (step.as_nanos() as f64 / 1e3, table.as_nanos() as f64 / 1e3);
        let (ratio, largest) = (self.ratio, largest_keyframe as f64 / 1e6);
        write!(
            f,
            "| {blocks} | {sites} | {step:.1} µs | {ratio:.2} | {table:.1} µs | {bytes_per_step:.0} \
             | {keyframes} of at most {largest:.2} MB |"
        )
    }
}

/// The table of all sizes.
///
/// # Errors
/// As [`one`].
pub fn run(rounds: usize) -> Result<String, Box<dyn Error>> {
    let mut runs: [Vec<Run>; SIZES.len()] = Default::default();
    for _ in 0..rounds {
        for (&(blocks, sites), runs) in SIZES.iter().zip(&mut runs) {
            runs.push(one(blocks, sites)?);
        }
    }
    let mut lines = vec![
        "| live blocks | sites | a step | × the first row | of this, the table | bytes a step | keyframes |".to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    let mut first = None;
    for mut runs in runs {
        let table = median(&mut runs, |run| run.table);
        let step = median(&mut runs, |run| run.step);
        let Some(run) = runs.pop() else { continue };
        let first = *first.get_or_insert(step);
        let ratio = step.as_secs_f64() / first.as_secs_f64();
        lines.push(Row { run: Run { step, table, ..run }, ratio }.to_string());
    }
    Ok(lines.join("\n"))
}

fn median(runs: &mut [Run], of: impl Fn(&Run) -> Duration) -> Duration {
    runs.sort_by_key(&of);
    upper_median(runs).map(of).unwrap_or_default()
}

/// Nanoseconds that this thread has been on a core.
fn on_core() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns = stat.split_ascii_whitespace().next().ok_or("the kernel counts no time of threads")?;
    Ok(Duration::from_nanos(ns.parse()?))
}

/// Runs a device with this many live blocks through a number of steps.
///
/// # Errors
/// The batch stage cannot be created, or part of the result is missing.
fn one(blocks: u64, sites: u64) -> Result<Run, Box<dyn Error>> {
    let (devices, linger) = (vec![DeviceIndex(0)], Some(Duration::from_secs(1)));
    let settings = AllocatorSettings::default();
    let mut batcher = Batcher::new(BatchConfig {
        resolution_ns: 100,
        settings,
        devices,
        linger,
        found: Vec::new(),
        source_paths: Default::default(),
    })?;
    let mut produced = 0;
    let mut event = |batcher: &mut Batcher, action, addr, size, stack: u64| {
        produced += 1;
        let stack = StackId(stack as u32);
        batcher.event(0, &Event { time_ns: 1 + 100 * produced, action, addr, size, stack, ..Event::default() });
    };
    let in_segment = SEGMENT_BYTES / BLOCK_BYTES;
    for block in 0..blocks {
        if block % in_segment == 0 {
            event(&mut batcher, Action::SegmentAlloc, BASE + block * BLOCK_BYTES, SEGMENT_BYTES, 1);
        }
        event(&mut batcher, Action::Alloc, BASE + block * BLOCK_BYTES, BLOCK_BYTES - block % 500, 1 + block % sites);
    }
    // Steps have separate segments.
    let ours = BASE + blocks.next_multiple_of(in_segment) * BLOCK_BYTES;
    for segment in 0..8 {
        event(&mut batcher, Action::SegmentAlloc, ours + segment * SEGMENT_BYTES, SEGMENT_BYTES, 1);
    }
    batcher.flush();
    batcher.take();
    let (mut step_time, mut table_time, mut bytes, mut keyframes, mut largest) =
        (Duration::ZERO, Duration::ZERO, 0, 0, 0);
    for step in 0..STEPS {
        let begun = on_core()?;
        // One of the blocks stays.
        let kept = step * BLOCK_BYTES;
        for block in 0..BLOCKS_PER_STEP {
            event(&mut batcher, Action::Alloc, ours + kept + block * BLOCK_BYTES, BLOCK_BYTES, 1 + block % 20);
        }
        for block in 1..BLOCKS_PER_STEP {
            event(&mut batcher, Action::FreeRequested, ours + kept + block * BLOCK_BYTES, BLOCK_BYTES, 0);
            event(&mut batcher, Action::FreeCompleted, ours + kept + block * BLOCK_BYTES, BLOCK_BYTES, 0);
        }
        let at_end = on_core()?;
        let mark = Mark { time_ns: 1, kind: MarkKind::StepEnd(step) };
        batcher.device_mark(0, &mark);
        table_time += on_core()? - at_end;
        batcher.mark(mark);
        if step % STEPS_PER_LINGER == STEPS_PER_LINGER - 1 {
            batcher.linger();
        }
        step_time += on_core()? - begun;
        for item in batcher.take() {
            let size = item.packed.payload.len();
            match item.packed.kind {
                ItemKind::Keyframe => (keyframes, largest) = (keyframes + 1, size.max(largest)),
                _ => bytes += size,
            }
        }
    }
    let end = batcher.finish(1, produced, Dropped::default(), None);
    if end.unknown_frees + end.contradictions > 0 {
        return Err(format!("the events contradict each other: {end:?}").into());
    }
    let steps = STEPS as u32;
    Ok(Run {
        blocks,
        sites,
        step: step_time / steps,
        table: table_time / steps,
        bytes_per_step: bytes as f64 / STEPS as f64,
        keyframes,
        largest_keyframe: largest,
    })
}
