//! Sums memory by the names of owners that the process gave, and memory in private pools.
//!
//! Guarantees: a block counts for at most one name. A pool gets the name of the owner of most of its allocated bytes.
//! The largest [`LISTED_MAX`] entries are returned, with the number of omitted names.
//!
//! Names are never guessed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use memctl_analysis::lifetimes::Lives;
use memctl_answers::ledger::{Owned, Pool, Rank, ratio};
use memctl_model::{BlockUse, Keyframe, PoolId, Stack, StackId};
use memctl_proto::StackDictionary;

/// The most names per rank, and the most pools.
const LISTED_MAX: usize = 1_000;

/// Bytes and blocks.
type Sum = (u64, u64);

/// Adds names and private pools to a rank's ledger.
pub(super) fn add(ledger: &mut Rank, state: &Keyframe, resolve: &dyn Fn(StackId) -> Stack) {
    let mut named: HashMap<StackId, Option<String>> = HashMap::new();
    let mut all: HashMap<String, Sum> = HashMap::new();
    let mut pools: HashMap<PoolId, (Pool, HashMap<String, Sum>)> = HashMap::new();
    let loose = state.loose.iter().map(|block| (None, block));
    let held =
        state.segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (Some(segment.pool), block)));
    for segment in state.segments.iter().filter(|segment| segment.pool != PoolId::DEFAULT) {
        let (pool, _) = pools.entry(segment.pool).or_default();
        pool.reserved_bytes = pool.reserved_bytes.saturating_add(segment.size);
    }
    for (pool, block) in held.chain(loose).filter(|(_, block)| block.usage == BlockUse::Allocated) {
        let owner = named.entry(block.stack).or_insert_with(|| resolve(block.stack).owner().map(str::to_owned));
        let mut pool = pool.and_then(|pool| pools.get_mut(&pool));
        if let Some((pool, _)) = &mut pool {
            pool.allocated_bytes = pool.allocated_bytes.saturating_add(block.size);
        }
        let Some(owner) = owner else { continue };
        let sums = [Some(&mut all), pool.map(|(_, owners)| owners)];
        for (bytes, blocks) in sums.into_iter().flatten().map(|sums| sums.entry(owner.clone()).or_default()) {
            (*bytes, *blocks) = (bytes.saturating_add(block.size), *blocks + 1);
        }
    }
    let sorted = |owners: HashMap<String, Sum>| {
        let mut owners: Vec<(String, Sum)> = owners.into_iter().collect();
        owners.sort_by(|(name, sum), (other, than)| than.cmp(sum).then_with(|| name.cmp(other)));
        owners
    };
    let owners = sorted(all);
    ledger.owners_left_out = owners.len().saturating_sub(LISTED_MAX) as u64;
    let largest = owners.into_iter().take(LISTED_MAX);
    let all = ledger.allocated_bytes;
    let owned =
        |(owner, (live_bytes, live_blocks))| Owned { owner, live_bytes, live_blocks, share: ratio(live_bytes, all) };
    ledger.owners = largest.map(owned).collect();
    let mut pools: Vec<_> = pools.into_iter().collect();
    pools.sort_by_key(|(id, (pool, _))| (Reverse(pool.reserved_bytes), id.first, id.second));
    let named = |(id, (pool, owners)): (PoolId, (Pool, HashMap<String, Sum>))| {
        let owner = sorted(owners).into_iter().next().map(|(owner, _)| owner);
        Pool { pool: format!("{}.{}", id.first, id.second), owner, ..pool }
    };
    ledger.pools = pools.into_iter().take(LISTED_MAX).map(named).collect();
}

/// For each private pool, the name with most of its memory over the stretch.
pub(in crate::query) fn of_pools(lives: &Lives, dictionary: &StackDictionary) -> HashMap<PoolId, String> {
    let mut held: BTreeMap<u64, (u64, PoolId)> = BTreeMap::new();
    for segment in lives.segments.iter().filter(|segment| segment.pool != PoolId::DEFAULT) {
        let (bytes, pool) = held.entry(segment.addr).or_insert((segment.bytes, segment.pool));
        (*bytes, *pool) = ((*bytes).max(segment.bytes), segment.pool);
    }
    let mut bytes: HashMap<(PoolId, StackId), u64> = HashMap::new();
    for block in &lives.blocks {
        let below = held.range(..=block.addr).next_back();
        if let Some((_, &(_, pool))) = below.filter(|&(&addr, &(bytes, _))| block.addr - addr < bytes) {
            let sum = bytes.entry((pool, block.stack)).or_default();
            *sum = sum.saturating_add(block.bytes);
        }
    }
    let mut named: HashMap<(PoolId, String), u64> = HashMap::new();
    for ((pool, stack), bytes) in bytes {
        if let Some(owner) = dictionary.stack(stack).owner() {
            let sum = named.entry((pool, owner.to_owned())).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let mut order: Vec<((PoolId, String), u64)> = named.into_iter().collect();
    order.sort_by(|((_, one), bytes), ((_, other), more)| bytes.cmp(more).then_with(|| other.cmp(one)));
    // The largest name of each pool comes last and replaces the others.
    order.into_iter().map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::{BlockState, DeviceIndex, Frame, KeyframeReason, SegmentState};

    fn resolve(id: StackId) -> Stack {
        let line = Frame { function: "f".into(), file: "train.py".into(), line: 3 };
        let name = match id.0 {
            1 => Some("KV cache"),
            2 => Some("graph"),
            _ => None,
        };
        Stack { frames: name.map(Frame::of_owner).into_iter().chain([line]).collect() }
    }

    fn block(size: u64, stack: u32, usage: BlockUse) -> BlockState {
        BlockState { size, usage, stack: StackId(stack), ..BlockState::default() }
    }

    #[test]
    fn blocks_count_for_their_names_and_pools_have_that_of_most_of_theirs() {
        use BlockUse::{Allocated, Inactive, PendingFree};
        let segment = |size, pool, blocks| SegmentState { size, pool, blocks, ..SegmentState::default() };
        let pool = |second| PoolId { first: 0, second };
        let state = Keyframe {
            device: DeviceIndex(0),
            at_event: 0,
            time_ns: 0,
            reason: KeyframeReason::Periodic,
            segments: vec![
                segment(900, PoolId::DEFAULT, vec![block(500, 1, Allocated), block(400, 3, Allocated)]),
                segment(
                    300,
                    pool(1),
                    vec![block(100, 1, Allocated), block(50, 2, PendingFree), block(150, 0, Inactive)],
                ),
                segment(200, pool(1), vec![block(120, 2, Allocated)]),
                segment(700, pool(2), vec![block(70, 3, Allocated)]),
            ],
            loose: vec![block(7, 2, Allocated)],
        };
        let mut ledger = Rank::default();
        add(&mut ledger, &state, &resolve);
        let owners: Vec<_> =
            ledger.owners.iter().map(|owner| (&*owner.owner, owner.live_bytes, owner.live_blocks)).collect();
        assert_eq!(owners, [("KV cache", 600, 2), ("graph", 127, 2)]);
        let pools: Vec<_> = ledger
            .pools
            .iter()
            .map(|pool| (&*pool.pool, pool.reserved_bytes, pool.allocated_bytes, pool.owner.as_deref()))
            .collect();
        assert_eq!(pools, [("0.2", 700, 70, None), ("0.1", 500, 220, Some("graph"))]);
        assert_eq!(ledger.owners_left_out, 0);
    }
}
