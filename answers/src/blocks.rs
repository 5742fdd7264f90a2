//! A stretch of an allocator's life as data: segments, blocks and their stacks, in columns, for an interactive picture.
//!
//! Guarantees: all columns of a table have the same length. Live after the n-th event is everything with `from_event <=
//! n < to_event`, where null is before or after the stretch. Stacks share their frames, and excess frames are cut at
//! the outer end. This module computes no layout.

use std::collections::HashMap;

use serde::Serialize;

use crate::{Completeness, Frame, Job};

/// Frames of all stacks of one answer.
pub const STACK_FRAMES_MAX: usize = 500_000;

/// A stretch of an allocator's life.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Blocks {
    /// See [`crate::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Whether the state is exact.
    pub exact: bool,
    /// The moment that was asked for: behind so many events.
    pub at_event: u64,
    /// The stretch begins behind so many events.
    pub first_event: u64,
    /// And ends behind so many.
    pub last_event: u64,
    /// What is stored begins behind so many events.
    pub stored_from_event: u64,
    /// And ends behind so many.
    pub stored_to_event: u64,
    /// The course of the stretch.
    pub course: Course,
    /// Segments, and mapped ranges of expandable ones.
    pub segments: Vec<Segment>,
    /// Blocks.
    pub blocks: Columns,
    /// Blocks that had no room: the smallest.
    pub blocks_left_out: u64,
    /// Names of classes.
    pub classes: Vec<&'static str>,
    /// Frames of stacks.
    pub frames: Vec<Frame>,
    /// Stacks, innermost frame first; the first stack is none.
    pub stacks: Vec<Vec<u32>>,
    /// Of each stack the innermost frame of the user's own code.
    pub sites: Vec<Option<u32>>,
    /// Of each stack whose memory it is, as the process named it.
    pub owners: Vec<Option<String>>,
    /// Requests that failed.
    pub failures: Vec<Failure>,
    /// How requests are rounded and where they may lie.
    pub rules: Rules,
}

/// The time, and the allocated and reserved bytes, at regular numbers of events.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Course {
    /// The time of the first point.
    pub first_at: String,
    /// Of each point: behind so many events.
    pub event: Vec<u64>,
    /// Nanoseconds since the first point.
    pub elapsed_ns: Vec<u64>,
    /// The epoch under way.
    pub epoch: Vec<u32>,
    /// The step under way, or the last one before.
    pub step: Vec<u64>,
    /// Bytes.
    pub allocated_bytes: Vec<u64>,
    /// Bytes.
    pub reserved_bytes: Vec<u64>,
}

/// A segment, or a mapped range of an expandable one.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Stream its blocks belong to, in hexadecimal.
    pub stream: String,
    /// The pool; null for the default pool.
    pub pool: Option<String>,
    /// Of a private pool: the name that most of the memory in it has.
    pub owner: Option<String>,
    /// Whether its blocks are those up to 1 MiB.
    pub small: bool,
    /// Whether it is a mapped range of an expandable segment.
    pub expandable: bool,
    /// Live behind so many events on; null if it was so before the stretch.
    pub from_event: Option<u64>,
    /// Gone behind so many events; null if it is not within the stretch.
    pub to_event: Option<u64>,
}

/// Blocks, by columns.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Columns {
    /// Device address.
    pub address: Vec<u64>,
    /// True size.
    pub bytes: Vec<u64>,
    /// As asked for.
    pub requested_bytes: Vec<u64>,
    /// Index into the stacks.
    pub stack: Vec<u32>,
    /// Index into the classes.
    pub class: Vec<u8>,
    /// Epoch of its birth.
    pub birth_epoch: Vec<u32>,
    /// Step of its birth.
    pub birth_step: Vec<u64>,
    /// Live behind so many events on; null if it was so before the stretch.
    pub from_event: Vec<Option<u64>>,
    /// Given back behind so many events, and not gone yet.
    pub freed_event: Vec<Option<u64>>,
    /// Gone behind so many events; null if it is not within the stretch.
    pub to_event: Vec<Option<u64>>,
}

/// A request that failed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Failure {
    /// Its event.
    pub event: u64,
    /// The rounded request.
    pub bytes: u64,
    /// On this stream, in hexadecimal.
    pub stream: String,
}

/// The rules that a request follows.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Rules {
    /// Sizes are rounded up to a multiple of this, at least.
    pub round_bytes: u64,
    /// Rounded requests up to this many bytes are served from segments of small blocks.
    pub small_bytes_max: u64,
}

/// Numbers stacks in the order of their first use; the frames are shared.
#[derive(Default)]
pub struct Stacks<K> {
    known: HashMap<K, u32>,
    numbers: HashMap<Frame, u32>,
    room: usize,
    /// See [`Blocks::frames`].
    pub frames: Vec<Frame>,
    /// See [`Blocks::stacks`].
    pub stacks: Vec<Vec<u32>>,
    /// See [`Blocks::sites`].
    pub sites: Vec<Option<u32>>,
    /// See [`Blocks::owners`].
    pub owners: Vec<Option<String>>,
}

/// The content of a stack, stored at its first use.
#[derive(Clone, Debug, Default)]
pub struct StackContent {
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// The innermost frame of the user's own code.
    pub site: Option<Frame>,
    /// Whose memory it is.
    pub owner: Option<String>,
}

impl<K: Copy + Eq + std::hash::Hash> Stacks<K> {
    /// Holds only the empty stack; `room` is the number of frames in all.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self {
            known: HashMap::new(),
            numbers: HashMap::new(),
            room,
            frames: Vec::new(),
            stacks: vec![Vec::new()],
            sites: vec![None],
            owners: vec![None],
        }
    }

    /// The number of a stack; `content` is called only at its first use.
    pub fn number(&mut self, key: K, content: impl FnOnce() -> StackContent) -> u32 {
        if let Some(number) = self.known.get(&key) {
            return *number;
        }
        let StackContent { mut frames, site, owner } = content();
        let number = if frames.is_empty() && owner.is_none() {
            0
        } else {
            frames.truncate(self.room);
            self.room -= frames.len();
            let frames = frames.into_iter().map(|frame| self.frame(frame)).collect();
            let site = site.map(|site| self.frame(site));
            self.stacks.push(frames);
            self.sites.push(site);
            self.owners.push(owner);
            (self.stacks.len() - 1) as u32
        };
        self.known.insert(key, number);
        number
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        let frames = &mut self.frames;
        *self.numbers.entry(frame).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            next
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(line: u32) -> Frame {
        Frame { function: "f".into(), file: "a.py".into(), line: Some(line) }
    }

    #[test]
    fn stacks_share_their_frames_and_have_room_for_so_many() {
        let content = |frames, site| StackContent { frames, site, owner: None };
        let mut stacks = Stacks::new(5);
        assert_eq!(stacks.number(7, || content(vec![frame(1), frame(2)], Some(frame(2)))), 1);
        assert_eq!(stacks.number(8, || content(vec![frame(3), frame(2)], None)), 2);
        assert_eq!(stacks.number(7, || unreachable!("it is known")), 1);
        assert_eq!(stacks.number(0, StackContent::default), 0, "none");
        assert_eq!(stacks.number(9, || content(vec![frame(1), frame(2), frame(3)], Some(frame(3)))), 3);
        assert_eq!(stacks.stacks, [vec![], vec![0, 1], vec![2, 1], vec![0]], "cut at the outer end");
        assert_eq!(stacks.sites, [None, Some(1), None, Some(2)]);
        assert_eq!(stacks.frames.len(), 3);
        let owner = || StackContent { owner: Some("KV cache".into()), ..StackContent::default() };
        assert_eq!(stacks.number(10, owner), 4, "without frames, but with an owner");
        assert_eq!((stacks.owners.len(), stacks.owners[4].as_deref()), (5, Some("KV cache")));
    }
}
