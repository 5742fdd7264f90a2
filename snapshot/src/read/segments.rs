//! Segments of the final state: orders their blocks by address without gaps, and derives the pools of events whose
//! entries do not contain them.

use std::collections::BTreeMap;

use memctl_model::{Action, BlockState, Event, PoolId, SegmentState};

use super::events::EventLog;

/// Orders a segment's blocks; returns true if they did not tile the segment and had to be corrected.
///
/// Blocks without an address follow one another. Gaps become free blocks. A block that overlaps the previous one or
/// exceeds the segment is left out.
pub(crate) fn put_in_order(segment: &mut SegmentState) -> bool {
    let end = segment.addr.saturating_add(segment.size);
    let mut next = segment.addr;
    for block in &mut segment.blocks {
        if block.addr == 0 {
            block.addr = next;
        }
        next = block.addr.saturating_add(block.size);
    }
    segment.blocks.sort_by_key(|block| block.addr);
    let mut at = segment.addr;
    let tiled = segment.blocks.iter().all(|block| {
        let fits = block.addr == at && block.size > 0;
        at = at.saturating_add(block.size);
        fits
    }) && at == end;
    if tiled {
        segment.blocks.shrink_to_fit();
        return false;
    }
    segment.blocks = tile(&segment.blocks, segment.addr, end);
    true
}

fn tile(blocks: &[BlockState], start: u64, end: u64) -> Vec<BlockState> {
    let free = |addr, until: u64| BlockState { addr, size: until - addr, ..BlockState::default() };
    let mut tiles = Vec::with_capacity(blocks.len());
    let mut at = start;
    for block in blocks {
        let Some(block_end) = block.addr.checked_add(block.size) else { continue };
        if block.addr < at || block_end > end || block.size == 0 {
            continue;
        }
        if block.addr > at {
            tiles.push(free(at, block.addr));
        }
        tiles.push(*block);
        at = block_end;
    }
    if at < end {
        tiles.push(free(at, end));
    }
    tiles
}

/// Derives the private pools of events from the segments in which they end up, for torch before 2.12.
///
/// Going backwards from the final state, an address belongs to its final segment until the event that made that
/// segment. Earlier segments at the address are unknown and keep the default pool.
pub(crate) fn derive_pools(log: &mut EventLog, segments: &[SegmentState]) {
    let mut pools: BTreeMap<u64, (u64, PoolId)> = segments
        .iter()
        .filter(|segment| segment.pool != PoolId::DEFAULT)
        .map(|segment| (segment.addr, (segment.addr.saturating_add(segment.size), segment.pool)))
        .collect();
    if pools.is_empty() {
        return;
    }
    log.repool_backwards(|event| {
        if matches!(event.action, Action::Oom | Action::Snapshot) {
            return event.pool;
        }
        let pool = match pools.range(..=event.addr).next_back() {
            Some((_, &(end, pool))) if event.addr < end => pool,
            _ => return event.pool,
        };
        if matches!(event.action, Action::SegmentAlloc | Action::SegmentMap) {
            forget(&mut pools, event);
        }
        pool
    });
}

/// Removes the range that an event made from the ranges.
fn forget(pools: &mut BTreeMap<u64, (u64, PoolId)>, event: &Event) {
    let end = event.addr.saturating_add(event.size);
    while let Some((&start, &(range_end, pool))) = pools.range(..end).next_back() {
        if range_end <= event.addr {
            break;
        }
        pools.remove(&start);
        if range_end > end {
            pools.insert(end, (range_end, pool));
        }
        if start < event.addr {
            pools.insert(start, (event.addr, pool));
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: PoolId = PoolId { first: 0, second: 1 };

    fn block(addr: u64, size: u64) -> BlockState {
        BlockState { addr, size, ..BlockState::default() }
    }

    fn segment(addr: u64, size: u64, blocks: Vec<BlockState>) -> SegmentState {
        SegmentState { addr, size, blocks, ..SegmentState::default() }
    }

    #[test]
    fn blocks_that_tile_stay_as_they_are() {
        let mut good = segment(100, 30, vec![block(110, 20), block(100, 10)]);
        assert!(!put_in_order(&mut good));
        assert_eq!(good.blocks, [block(100, 10), block(110, 20)]);
        let mut without_addresses = segment(100, 30, vec![block(0, 10), block(0, 20)]);
        assert!(!put_in_order(&mut without_addresses));
        assert_eq!(without_addresses.blocks, [block(100, 10), block(110, 20)]);
    }

    #[test]
    fn gaps_are_filled_and_overlaps_left_out() {
        let mut bad = segment(100, 30, vec![block(105, 5), block(107, 9), block(125, 50), block(u64::MAX, 2)]);
        assert!(put_in_order(&mut bad));
        assert_eq!(bad.blocks, [block(100, 5), block(105, 5), block(110, 20)]);
        let mut empty = segment(100, 30, vec![]);
        assert!(put_in_order(&mut empty));
        assert_eq!(empty.blocks, [block(100, 30)]);
    }

    #[test]
    fn pools_reach_back_to_the_event_that_made_the_segment() {
        let mut log = EventLog::new();
        let event = |action, addr, size| Event { action, addr, size, ..Event::default() };
        let events = [
            event(Action::Alloc, 1000, 10),
            event(Action::SegmentMap, 1000, 100),
            event(Action::Alloc, 1000, 10),
            event(Action::SegmentMap, 1100, 100),
            event(Action::Alloc, 1100, 10),
            event(Action::Oom, 1100, 10),
            event(Action::Alloc, 5000, 10),
        ];
        events.into_iter().for_each(|event| log.push(event).unwrap());
        let final_state = SegmentState { pool: PRIVATE, ..segment(1000, 200, vec![]) };
        derive_pools(&mut log, &[final_state]);
        let pools: Vec<bool> = log.iter().map(|event| event.pool == PRIVATE).collect();
        assert_eq!(pools, [false, true, true, true, true, false, false]);
    }
}
