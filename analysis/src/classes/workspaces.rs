//! Workspaces of cuBLAS among a device's requests, where no frame of C++ names them.
//!
//! A library takes one for each handle and stream, at the first product of matrices that a thread makes, and keeps it. So of the
//! blocks of such a size that stay, the first one of the thread that trains and the first one of autograd's are workspaces.
//! Guarantees: no more than that; where frames of C++ are recorded they decide. Refuses other sizes.

use std::collections::HashMap;

use super::Stay;
use super::rules::Says;
use super::sets::Shown;

/// Sizes: `:4096:2:16:8`, 32 MiB from Hopper on, and cuBLASLt's (aten/src/ATen/cuda/CublasHandlePool.cpp).
const WORKSPACES: [u64; 3] = [8_519_680, 33_554_432, 1_048_576];
/// Handles whose workspaces were there before anything that was seen: of the thread that trains, and of autograd's.
const FOUND_MAX: usize = 2;

/// Whether a block has the size of one.
pub(super) fn has_size(bytes: u64) -> bool {
    WORKSPACES.contains(&bytes)
}

/// The requests that are workspaces.
pub(super) fn find(shown: &Shown<'_>) -> Vec<bool> {
    let mut are = vec![false; shown.asked.len()];
    let are_named = shown.read.iter().any(|read| read.says == Says::Workspace);
    let mut found: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut first: HashMap<(u64, bool), (u64, usize)> = HashMap::new();
    for (at, one, says, _) in shown.each().filter(|(_, one, ..)| has_size(one.bytes)) {
        if Shown::is_found(one, says) {
            found.entry(one.bytes).or_default().push(at);
        } else if matches!(says, Says::Forward | Says::Autograd | Says::Nothing) {
            let earliest = first.entry((one.bytes, shown.read[at].in_backward)).or_insert((u64::MAX, at));
            *earliest = (*earliest).min((one.born.unwrap_or(0), at));
        }
    }
    let stays = |at: usize| shown.stays[at] == Stay::Kept || shown.passes.are_survived_by(&shown.asked[at]);
    // Gradients of such a size come with each pass, and go: it is a parameter's.
    let is_parameters = |bytes: u64| first.get(&(bytes, true)).is_some_and(|&(_, at)| are_named || !stays(at));
    for (bytes, blocks) in found {
        let few = blocks.len() <= FOUND_MAX && !is_parameters(bytes);
        blocks.into_iter().filter(|_| few).for_each(|at| are[at] = true);
    }
    let earliest = first.into_values().map(|(_, at)| at).filter(|&at| !are_named && stays(at));
    earliest.for_each(|at| are[at] = true);
    are
}
