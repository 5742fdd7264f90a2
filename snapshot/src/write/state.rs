//! The state of a device at its end, kept until the file reaches the list of segments.
//!
//! Guarantees: the blocks keep their own stacks, even if a following session reuses the numbers. A block outside every
//! segment gets a segment of its own, because viewers look up every block in a segment.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use memctl_model::{BlockState, BlockUse, DeviceIndex, Frame, Keyframe, SegmentKind, SegmentState, StackId};

use super::WrittenStacks;
use super::pickle::{Memo, OpenList, Pickle};

pub(super) struct EndState {
    device: DeviceIndex,
    /// In address order.
    segments: Vec<SegmentState>,
    stacks: HashMap<StackId, Stack>,
    owners: HashMap<StackId, Arc<str>>,
}

/// The stack of a live block.
enum Stack {
    Written(Memo),
    Kept(Vec<Frame>),
}

impl EndState {
    /// Keeps the frames of stacks that are not in the file yet.
    pub(super) fn new<'a, I>(keyframe: Keyframe, written: &WrittenStacks, mut frames: impl FnMut(StackId) -> I) -> Self
    where
        I: IntoIterator<Item = &'a Frame>,
    {
        let Keyframe { device, segments, loose, .. } = keyframe;
        let own = loose.into_iter().map(|block| SegmentState {
            addr: block.addr,
            size: block.size,
            blocks: vec![block],
            ..Default::default()
        });
        let mut segments: Vec<SegmentState> = segments.into_iter().chain(own).collect();
        segments.sort_by_key(|segment| segment.addr);
        let (mut stacks, mut owners) = (HashMap::new(), HashMap::new());
        for id in segments.iter().flat_map(|segment| &segment.blocks).filter_map(stack_of) {
            stacks.entry(id).or_insert_with(|| match written.stacks.get(&id) {
                Some(&memo) => {
                    owners.extend(written.owners.get(&id).map(|name| (id, Arc::clone(name))));
                    Stack::Written(memo)
                }
                None => {
                    let mut kept: Vec<Frame> = frames(id).into_iter().cloned().collect();
                    if let Some(name) = kept.first().and_then(Frame::owner).map(Arc::from) {
                        owners.insert(id, name);
                        kept.remove(0);
                    }
                    Stack::Kept(kept)
                }
            });
        }
        Self { device, segments, stacks, owners }
    }

    /// Writes the segments as items of the list.
    pub(super) fn write(
        mut self,
        pickle: &mut Pickle<impl Write>,
        list: &mut OpenList,
        written: &mut WrittenStacks,
    ) -> io::Result<()> {
        for segment in std::mem::take(&mut self.segments) {
            pickle.item(list)?;
            self.segment(pickle, &segment, written)?;
        }
        Ok(())
    }

    fn segment(
        &mut self,
        pickle: &mut Pickle<impl Write>,
        segment: &SegmentState,
        written: &mut WrittenStacks,
    ) -> io::Result<()> {
        let SegmentState { addr, size, stream, pool, kind, expandable, blocks } = segment;
        let sum = |wanted: fn(&BlockState) -> bool, bytes: fn(&BlockState) -> u64| {
            blocks.iter().filter(|block| wanted(block)).map(bytes).fold(0_u64, u64::saturating_add)
        };
        let active = |block: &BlockState| block.usage != BlockUse::Inactive;
        pickle.begin_dict()?;
        pickle.number("device", self.device.0.into())?;
        pickle.number("address", *addr)?;
        pickle.number("total_size", *size)?;
        pickle.number("allocated_size", sum(|block| block.usage == BlockUse::Allocated, |block| block.size))?;
        pickle.number("active_size", sum(active, |block| block.size))?;
        pickle.number("requested_size", sum(active, |block| block.requested))?;
        pickle.number("stream", *stream)?;
        pickle.word("segment_type")?;
        pickle.word(if *kind == SegmentKind::Small { "small" } else { "large" })?;
        pickle.word("segment_pool_id")?;
        pickle.pair(pool.first.into(), pool.second.into())?;
        pickle.word("is_expandable")?;
        pickle.boolean(*expandable)?;
        pickle.word("frames")?;
        pickle.empty_list()?;
        pickle.word("blocks")?;
        let mut list = pickle.begin_list()?;
        for block in blocks {
            pickle.item(&mut list)?;
            self.block(pickle, block, written)?;
        }
        pickle.end_list(list)?;
        pickle.end_dict()
    }

    fn block(
        &mut self,
        pickle: &mut Pickle<impl Write>,
        block: &BlockState,
        written: &mut WrittenStacks,
    ) -> io::Result<()> {
        pickle.begin_dict()?;
        pickle.number("address", block.addr)?;
        pickle.number("size", block.size)?;
        pickle.number("requested_size", block.requested)?;
        pickle.word("state")?;
        pickle.word(match block.usage {
            BlockUse::Inactive => "inactive",
            BlockUse::Allocated => "active_allocated",
            BlockUse::PendingFree => "active_pending_free",
        })?;
        pickle.word("frames")?;
        match stack_of(block).and_then(|id| self.stacks.get_mut(&id)) {
            None => pickle.empty_list()?,
            Some(Stack::Written(memo)) => pickle.again(*memo)?,
            Some(stack @ Stack::Kept(_)) => {
                let Stack::Kept(frames) = &*stack else { return Ok(()) };
                *stack = Stack::Written(written.list(pickle, frames)?);
            }
        }
        if let Some(name) = stack_of(block).and_then(|id| self.owners.get(&id)) {
            // PyTorch's own blocks have no such key; viewers ignore keys that they do not know.
            pickle.word("user_metadata")?;
            pickle.text(name)?;
        }
        pickle.end_dict()
    }
}

/// The stack that a block is shown with.
fn stack_of(block: &BlockState) -> Option<StackId> {
    (block.usage != BlockUse::Inactive && block.stack.is_some()).then_some(block.stack)
}
