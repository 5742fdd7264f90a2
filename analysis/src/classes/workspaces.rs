//! Finds workspaces of cuBLAS among a device's requests if no frames of C++ name them.
//!
//! A library takes one workspace for each handle and stream, at a thread's first product of matrices, and keeps it. So
//! among the blocks of such a size that stay, the first of the training thread and the first of autograd's thread are
//! workspaces. Guarantees: no other block is a workspace. If frames of C++ are recorded, they decide. Blocks of other
//! sizes are never workspaces.

use std::collections::HashMap;

use super::Stay;
use super::rules::Says;
use super::sets::RequestFacts;

/// Sizes of workspaces: `:4096:2:16:8`, 32 MiB from Hopper on, and cuBLASLt's
/// (aten/src/ATen/cuda/CublasHandlePool.cpp).
const WORKSPACES: [u64; 3] = [8_519_680, 33_554_432, 1_048_576];
/// Maximum number of workspaces from before the recording: the training thread's and autograd's.
const FOUND_MAX: usize = 2;

/// Whether a block has the size of a workspace.
pub(super) fn has_size(bytes: u64) -> bool {
    WORKSPACES.contains(&bytes)
}

/// The requests that are workspaces.
pub(super) fn find(facts: &RequestFacts<'_>) -> Vec<bool> {
    let mut are = vec![false; facts.asked.len()];
    let are_named = facts.read.iter().any(|read| read.says == Says::Workspace);
    let mut found: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut first: HashMap<(u64, bool), (u64, usize)> = HashMap::new();
    for (at, one, says, _) in facts.each().filter(|(_, one, ..)| has_size(one.bytes)) {
        if RequestFacts::is_unknown_from_before(one, says) {
            found.entry(one.bytes).or_default().push(at);
        } else if matches!(says, Says::Forward | Says::Autograd | Says::Nothing) {
            let earliest = first.entry((one.bytes, facts.read[at].in_backward)).or_insert((u64::MAX, at));
            *earliest = (*earliest).min((one.born.unwrap_or(0), at));
        }
    }
    let stays = |at: usize| facts.stays[at] == Stay::Kept || facts.passes.are_survived_by(&facts.asked[at]);
    // If gradients of such a size come and go with each pass, the size is a parameter's.
    let is_parameters = |bytes: u64| first.get(&(bytes, true)).is_some_and(|&(_, at)| are_named || !stays(at));
    for (bytes, blocks) in found {
        let few = blocks.len() <= FOUND_MAX && !is_parameters(bytes);
        blocks.into_iter().filter(|_| few).for_each(|at| are[at] = true);
    }
    let earliest = first.into_values().map(|(_, at)| at).filter(|&at| !are_named && stays(at));
    earliest.for_each(|at| are[at] = true);
    are
}
