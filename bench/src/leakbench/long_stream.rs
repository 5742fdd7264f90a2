//! The site tables of one epoch with 20,000 steps. They are computed on demand.
//!
//! Guarantees: the tables repeat those of a recorded training's steps and include the added blocks. The sizes of added
//! blocks are those of the caching allocator. The 20,000 tables are not kept in memory. The peak within a step is the
//! peak of the recorded step plus the blocks that were added until its end.
//! Refuses trainings whose own memory still grows in their last half.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memctl_model::{Action, Boundary, Counters, DeviceIndex, Peaks, Phase, PoolRow, SiteRow, SiteTable, StackId};

use super::arena::{Arena, captured_bytes};
use super::overlay::{Change, Overlay};

/// Number of steps of a run.
pub const STEPS: usize = 20_000;
/// The time at which the first step ends.
pub const BEGIN_NS: u64 = 1_767_225_600_000_000_000;
/// While nothing leaks, the detectors are queried once in this number of steps.
const ASKED_EVERY: usize = 200;

/// The number of blocks and their bytes, each valid from a step on.
type Course = Vec<(usize, u64, u64)>;

/// The tables of a rank.
pub struct LongStream {
    /// The recorded steps that are repeated.
    steps: Arc<Vec<SiteTable>>,
    /// The added blocks by stack and phase of allocation, and the private pools by stack.
    rows: BTreeMap<(StackId, Option<Phase>), Course>,
    pools: BTreeMap<StackId, Course>,
    /// The allocated, requested and reserved bytes of added blocks, each valid from a step on.
    levels: Vec<(usize, [u64; 3])>,
    asked: BTreeSet<usize>,
    step_ns: u64,
}

fn at<T>(course: &[T], step: usize, of: impl Fn(&T) -> usize) -> Option<&T> {
    course.get(course.partition_point(|point| of(point) <= step).checked_sub(1)?)
}

impl LongStream {
    /// The number of tables.
    #[must_use]
    pub const fn len(&self) -> usize {
        STEPS
    }

    /// Whether detectors are queried after a step.
    #[must_use]
    pub fn asks_after(&self, step: usize) -> bool {
        step % ASKED_EVERY == ASKED_EVERY - 1 || self.asked.contains(&step)
    }

    /// The table of a step.
    #[must_use]
    pub fn table(&self, step: usize) -> Option<SiteTable> {
        let recorded = self.steps.get(step % self.steps.len().max(1)).filter(|_| step < STEPS)?;
        let mut rows = recorded.rows.clone();
        for (&(stack, birth_phase), course) in &self.rows {
            let Some(&(_, blocks, bytes)) = at(course, step, |point| point.0).filter(|point| point.1 > 0) else {
                continue;
            };
            let row = SiteRow { stack, birth_epoch: 0, birth_phase, blocks, bytes };
            let key = |row: &SiteRow| (row.stack, row.birth_phase);
            match rows.binary_search_by_key(&key(&row), key) {
                Ok(known) => {
                    rows[known].blocks += blocks;
                    rows[known].bytes += bytes;
                }
                Err(place) => rows.insert(place, row),
            }
        }
        let pool = |(&stack, course): (&StackId, &Course)| {
            let &(_, segments, bytes) = at(course, step, |point| point.0)?;
            Some(PoolRow { stack, segments, bytes })
        };
        let [allocated, requested, reserved] = at(&self.levels, step, |level| level.0).map_or([0; 3], |level| level.1);
        let counters = Counters {
            allocated_bytes: recorded.counters.allocated_bytes + allocated,
            active_bytes: recorded.counters.active_bytes + allocated,
            requested_bytes: recorded.counters.requested_bytes + requested,
            reserved_bytes: recorded.counters.reserved_bytes + reserved,
            ..recorded.counters
        };
        let raised = |peaks: Peaks| Peaks {
            allocated_bytes: peaks.allocated_bytes + allocated,
            reserved_bytes: peaks.reserved_bytes + reserved,
        };
        Some(SiteTable {
            device: DeviceIndex(0),
            boundary: Boundary::StepEnd,
            epoch: 0,
            step: step as u64,
            time_ns: BEGIN_NS + step as u64 * self.step_ns,
            at_event: step as u64,
            exact: true,
            counters,
            peaks: raised(recorded.peaks),
            peaks_within: raised(recorded.peaks_within),
            found: false,
            rows,
            private_pools: self.pools.iter().filter_map(pool).collect(),
        })
    }
}

/// The steps of a training after its memory has settled, as steps of one epoch; `None` if its memory still grows.
pub fn settled_steps(tables: &[SiteTable]) -> Option<Vec<SiteTable>> {
    let steps: Vec<&SiteTable> = tables.iter().filter(|table| table.boundary == Boundary::StepEnd).collect();
    let last = &steps[steps.len() / 2..steps.len() * 19 / 20];
    let bytes = |table: &&SiteTable| table.counters.allocated_bytes;
    let (least, most) = (last.iter().map(bytes).min()?, last.iter().map(bytes).max()?);
    // The levels at step ends may differ by the memory of the last batch. They must not rise.
    let drifts = last.first().map(bytes)?.abs_diff(last.last().map(bytes)?) > (most - least) / 2 + (1 << 20);
    (last.len() >= 20 && !drifts).then(|| last.iter().map(|&table| in_one_epoch(table)).collect())
}

fn in_one_epoch(table: &SiteTable) -> SiteTable {
    let mut rows: BTreeMap<(StackId, Option<Phase>), SiteRow> = BTreeMap::new();
    for row in &table.rows {
        let sum =
            rows.entry((row.stack, row.birth_phase)).or_insert(SiteRow { birth_epoch: 0, blocks: 0, bytes: 0, ..*row });
        sum.blocks += row.blocks;
        sum.bytes += row.bytes;
    }
    SiteTable { rows: rows.into_values().collect(), ..table.clone() }
}

/// The levels of an overlay, step by step.
pub fn added(
    overlay: Overlay,
    phases: &BTreeMap<StackId, Phase>,
    steps: Arc<Vec<SiteTable>>,
    asked: BTreeSet<usize>,
    step_ns: u64,
) -> LongStream {
    let mut stream =
        LongStream { steps, rows: BTreeMap::new(), pools: BTreeMap::new(), levels: Vec::new(), asked, step_ns };
    let mut arena = Arena::default();
    let mut live: BTreeMap<u32, (StackId, u64, u64)> = BTreeMap::new();
    let mut level = [0_u64; 3];
    for (step, block, change) in overlay.sorted() {
        let gone = arena.size(block);
        arena.change(block, change, 0, &mut |event| {
            if event.action == Action::SegmentAlloc {
                level[2] += event.size;
            }
        });
        match change {
            Change::Keep { size, stack } => {
                let bytes = arena.size(block).unwrap_or(size);
                live.insert(block.0, (stack, bytes, size));
                note(stream.rows.entry((stack, phases.get(&stack).copied())).or_default(), step, 1, bytes as i64);
                (level[0], level[1]) = (level[0] + bytes, level[1] + size);
            }
            Change::Capture { size, stack } => {
                let bytes = captured_bytes(size);
                note(stream.pools.entry(stack).or_default(), step, 1, bytes as i64);
                note(stream.rows.entry((stack, phases.get(&stack).copied())).or_default(), step, 1, bytes as i64 / 4);
                (level[0], level[1]) = (level[0] + bytes / 4, level[1] + bytes / 4);
            }
            Change::Drop => {
                let Some((stack, bytes, size)) = live.remove(&block.0).filter(|_| gone.is_some()) else { continue };
                note(stream.rows.entry((stack, phases.get(&stack).copied())).or_default(), step, -1, -(bytes as i64));
                (level[0], level[1]) = (level[0] - bytes, level[1] - size);
            }
        }
        match stream.levels.last_mut() {
            Some(last) if last.0 == step => last.1 = level,
            _ => stream.levels.push((step, level)),
        }
    }
    stream
}

fn note(course: &mut Course, step: usize, blocks: i64, bytes: i64) {
    let (before, known_blocks, known_bytes) = course.last().copied().unwrap_or((usize::MAX, 0, 0));
    let point = (step, known_blocks.saturating_add_signed(blocks), known_bytes.saturating_add_signed(bytes));
    if before == step {
        course.pop();
    }
    course.push(point);
}
