//! Finds the blocks that lived in a stretch of one device's events around a moment, for a picture over time.
//!
//! Guarantees: one replay from the keyframe before the stretch, of at most [`STRETCH`] further events. At most
//! [`BLOCKS_MAX`] blocks are returned, the largest ones, with the number of omitted blocks.
//! Refuses: more than one device at a time.

use std::cmp::Reverse;

use memctl_analysis::classes::Class;
use memctl_analysis::lifetimes::{BlockLife, Lives, OPEN};
use memctl_analysis::{Birth, BlockMap};
use memctl_answers::blocks::{
    Blocks, Columns, Course, Failure, Rules, STACK_FRAMES_MAX, Segment, StackContent, Stacks,
};
use memctl_answers::format::time::rfc3339;
use memctl_answers::{Frame, SCHEMA};
use memctl_model::allocator::{MIN_BLOCK_BYTES, SMALL_BYTES_MAX};
use memctl_model::{DeviceIndex, Event, Keyframe, KeyframeReason, PoolId, SegmentKind, StackId};
use memctl_proto::{StackDictionary, v1};

use super::answer;
use super::ledger::owners;
use super::moment::At;
use super::one_device::{OneDevice, end_of};
use crate::event_analysis::classed::{Classed, Until};
use crate::job_data::error::ReadError;
use crate::job_data::job::{FoundJob, find};
use crate::job_data::mark_cursor::MarkCursor;
use crate::job_data::replay::Go;
use crate::job_data::stacks::dictionary;
use crate::store::{ChunkRow, EpochEndRow, Store};
use crate::streams::Streams;

/// Events of a stretch. They cover some tens of training steps.
pub(super) const STRETCH: u64 = 1 << 15;
/// The most blocks returned; each takes about forty bytes.
const BLOCKS_MAX: usize = 150_000;
/// Points of the timeline.
const POINTS: u64 = 1_024;

/// Answers the request.
pub(super) async fn blocks(
    store: &dyn Store,
    streams: &Streams,
    selection: &v1::Selection,
    at: At,
) -> Result<Blocks, ReadError> {
    let found = find(store, selection).await?;
    let device = OneDevice::of(store, &found, "blocks are").await?;
    let at_event = device.event_of(at, &found).await?;
    stretch(&device, at_event, &found, streams).await
}

async fn stretch(of: &OneDevice<'_>, at_event: u64, found: &FoundJob, streams: &Streams) -> Result<Blocks, ReadError> {
    let (stored_from, stored_to) = of.stored();
    let first = at_event.saturating_sub(STRETCH / 2).min(stored_to.saturating_sub(STRETCH)).max(stored_from);
    let last = first.saturating_add(STRETCH).min(stored_to);
    let mut replay = of.replay(first).await?;
    let near = |chunk: &&ChunkRow| end_of(chunk) > replay.at_event() && chunk.index.first_event < last;
    let times_ns = of
        .chunks
        .iter()
        .filter(near)
        .fold((u64::MAX, 0), |(from, to), chunk| (chunk.index.first_ns.min(from), chunk.index.last_ns.max(to)));
    let cursor = MarkCursor::between(of.store, of.session.key, times_ns).await?;
    replay = replay.with_cursor(cursor.clone());
    replay.run(first, |_, _, _| Go::On).await?;
    let begin =
        of.chunks.iter().rfind(|chunk| chunk.index.first_event <= first).map_or(0, |chunk| chunk.index.first_ns);
    let device = DeviceIndex(of.row.info.index.0);
    let state = replay.map().keyframe(device, first, begin, KeyframeReason::Periodic);
    let mut watch = Watch::new(&state, (first, last), cursor, of.ends());
    replay
        .run(last, |number, event, map| {
            watch.event(number, event, map);
            Go::On
        })
        .await?;
    let stacks = dictionary(of.store, of.session.key).await?;
    let exact = of.chunks.iter().rfind(|chunk| chunk.index.first_event < last);
    let moment = (at_event, Until::Later);
    let known = Classed::around(of.store, of.session, device.0, &of.chunks, moment, &stacks).await?;
    let table = BlockTable::new(&watch.lives, &known, first, &stacks);
    Ok(Blocks {
        schema: SCHEMA,
        job: answer::found_job(found, streams),
        completeness: found.completeness(streams, of.store).into(),
        rank: of.session.info.rank,
        process: found.process_name(of.session),
        device: u32::from(device.0),
        exact: exact.is_none_or(|chunk| chunk.levels.exact) && !replay.jumped(),
        at_event,
        first_event: first,
        last_event: last,
        stored_from_event: stored_from,
        stored_to_event: stored_to,
        course: watch.course,
        segments: segments(&watch.lives, &stacks),
        blocks: table.columns,
        blocks_left_out: table.left_out,
        classes: Class::ALL.iter().map(|class| class.name()).collect(),
        frames: table.stacks.frames,
        stacks: table.stacks.stacks,
        sites: table.stacks.sites,
        owners: table.stacks.owners,
        failures: failures(&watch.lives),
        rules: Rules { round_bytes: MIN_BLOCK_BYTES, small_bytes_max: SMALL_BYTES_MAX },
    })
}

/// The data that a replay of the stretch collects.
struct Watch {
    lives: Lives,
    course: Course,
    cursor: MarkCursor,
    /// Epoch ends, sorted by event. They are used if no mark names the epoch.
    ends: Vec<(u64, u32, u64)>,
    every: u64,
    first_ns: Option<u64>,
    last: u64,
}

impl Watch {
    fn new<'a>(
        state: &Keyframe,
        (first, last): (u64, u64),
        mut cursor: MarkCursor,
        ends: impl Iterator<Item = &'a EpochEndRow>,
    ) -> Self {
        cursor.advance(state.time_ns, |_| ());
        let lives = Lives::new(state);
        let mut ends: Vec<(u64, u32, u64)> = ends.map(|end| (end.at_event, end.epoch, end.step)).collect();
        ends.sort_unstable();
        let every = ((last - first) / POINTS).max(1);
        Self { lives, course: Course::default(), cursor, ends, every, first_ns: None, last }
    }

    fn event(&mut self, number: u64, event: &Event, map: &BlockMap) {
        let next = self.ends.partition_point(|(at, ..)| *at < number);
        let end = self.ends.get(next).or(self.ends.last());
        let mut birth = end.map_or_else(Birth::default, |&(_, epoch, step)| Birth { epoch, step, phase: None });
        self.cursor.refine(event, &mut birth);
        self.lives.event(number, event, map.block_bytes(event.addr), birth);
        let first_ns = *self.first_ns.get_or_insert(event.time_ns);
        if self.course.event.is_empty() || number.is_multiple_of(self.every) || number == self.last {
            let (course, levels) = (&mut self.course, map.levels());
            if course.event.is_empty() {
                course.first_at = rfc3339(event.time_ns);
            }
            course.event.push(number);
            course.elapsed_ns.push(event.time_ns.saturating_sub(first_ns));
            course.epoch.push(birth.epoch);
            course.step.push(birth.step);
            course.allocated_bytes.push(levels.allocated_bytes);
            course.reserved_bytes.push(levels.reserved_bytes);
        }
    }
}

/// The blocks as columns, with their stacks.
struct BlockTable {
    columns: Columns,
    stacks: Stacks<StackId>,
    left_out: u64,
}

impl BlockTable {
    fn new(lives: &Lives, known: &Classed, first: u64, dictionary: &StackDictionary) -> Self {
        let mut order: Vec<&BlockLife> = lives.blocks.iter().collect();
        let left_out = order.len().saturating_sub(BLOCKS_MAX);
        if left_out > 0 {
            order.sort_unstable_by_key(|block| (Reverse(block.bytes), block.addr));
            order.truncate(BLOCKS_MAX);
        }
        order.sort_unstable_by_key(|block| (block.addr, block.from));
        let mut stacks = Stacks::new(STACK_FRAMES_MAX);
        let mut columns = Columns::default();
        let of = |frame: &memctl_model::Frame| Frame::from(frame);
        let seen = |event: u64| (event != OPEN).then_some(event);
        for block in order {
            // The class of a block that lived before the stretch is looked up at the beginning of the stretch.
            let class = known.class_at(block.addr, block.from.max(first)).unwrap_or(Class::Unknown);
            let content = || {
                let stack = dictionary.stack(block.stack);
                StackContent {
                    frames: stack.calls().iter().map(of).collect(),
                    site: stack.site().map(of),
                    owner: stack.owner().map(str::to_owned),
                }
            };
            columns.stack.push(stacks.number(block.stack, content));
            columns.address.push(block.addr);
            columns.bytes.push(block.bytes);
            columns.requested_bytes.push(block.requested_bytes);
            columns.class.push(class as u8);
            columns.birth_epoch.push(block.birth.epoch);
            columns.birth_step.push(block.birth.step);
            columns.from_event.push((block.from > 0).then_some(block.from));
            columns.freed_event.push(seen(block.freed));
            columns.to_event.push(seen(block.to));
        }
        Self { columns, stacks, left_out: left_out as u64 }
    }
}

fn segments(lives: &Lives, dictionary: &StackDictionary) -> Vec<Segment> {
    let owners = owners::of_pools(lives, dictionary);
    let pool = |pool: PoolId| (pool != PoolId::DEFAULT).then(|| format!("{}.{}", pool.first, pool.second));
    lives
        .segments
        .iter()
        .map(|segment| Segment {
            address: segment.addr,
            bytes: segment.bytes,
            stream: format!("{:x}", segment.stream),
            pool: pool(segment.pool),
            owner: owners.get(&segment.pool).cloned(),
            small: segment.kind == SegmentKind::Small,
            expandable: segment.expandable,
            from_event: (segment.from > 0).then_some(segment.from),
            to_event: (segment.to != OPEN).then_some(segment.to),
        })
        .collect()
}

fn failures(lives: &Lives) -> Vec<Failure> {
    let row = |failure: &memctl_analysis::lifetimes::Failure| Failure {
        event: failure.event,
        bytes: failure.bytes,
        stream: format!("{:x}", failure.stream),
    };
    lives.failures.iter().map(row).collect()
}
