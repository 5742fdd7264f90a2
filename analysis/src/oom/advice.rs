//! Advises on a failed request: what would have served it, with figures.
//!
//! Guarantees: nothing is advised that would not have helped according to the arithmetic. A smaller batch is advised
//! only where the failed step was like the steps before it.

use super::demand::{Accumulation, Requests};
use super::places::{Place, by_place};
use super::requests::Input;
use super::{OomCause, Report};
use crate::classes::Class;
use crate::wording::{REPLAYED, bytes, place_or_none, plural, sentence};

/// Minimum number of blocks at one place before they may have been kept one by one and not by a single step.
const KEPT_BLOCKS_MIN: u64 = 16;
/// A step that needs this many times what every earlier step needed is unlike them.
const UNLIKE: u64 = 2;

/// What would have served the first failed request. `failed` are the ranks that failed alike.
pub(super) fn of(report: &Report, failed: &[u32]) -> String {
    let cause = of_cause(report, failed);
    match report.facts.input {
        // Memory that is kept is the cause, whatever the sizes of inputs.
        Some(input) if !report.cause.is_growth() && !names_the_input(report, input) => {
            format!("{}. {}", input.advice(), sentence(cause))
        }
        _ => cause,
    }
}

/// Whether the advice on the cause is already about the size of the input.
fn names_the_input(report: &Report, input: Input) -> bool {
    matches!(input, Input::Largest { .. }) && report.cause == OomCause::Capacity && larger_step(report).is_some()
}

fn of_cause(report: &Report, failed: &[u32]) -> String {
    let facts = &report.facts;
    match report.cause {
        OomCause::Fragmentation => {
            let holder = facts.stranding_blocks.first();
            let between = holder.map(|holder| {
                format!("{} of {} {} between the holes", plural(holder.pin.blocks, "block"), place_or_none(holder.stack.site()), if holder.pin.blocks == 1 { "lies" } else { "lie" })
            });
            let between = between.map_or(String::new(), |between| format!("{between}: free them together, keep them in one tensor, or allocate the large tensor first"));
            [between.as_str(), REPLAYED].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
        }
        OomCause::Neighbour => format!(
            "End the other processes on this device (nvidia-smi lists them), or choose another device: without them, {} more would have been free.",
            bytes(facts.others_bytes.unwrap_or(0))
        ),
        OomCause::OutsideAllocator => "Look for libraries that allocate device memory on their own (NCCL, cuDNN, DALI, TensorRT, RAPIDS) and for other CUDA contexts in this process; torch.cuda.mem_get_info() before and after each shows which.".to_owned(),
        OomCause::Accumulation => report.accumulated().map_or_else(String::new, Accumulation::advice),
        OomCause::Capacity | OomCause::Leak => capacity(report, failed),
    }
}

fn capacity(report: &Report, failed: &[u32]) -> String {
    let missing = report.needed_bytes();
    let activations = report.facts.classes.of(Class::Activations).saturating_add(report.facts.rounded_bytes);
    let alone = match failed {
        [rank] if !report.facts.peers.is_empty() => {
            let at_least = if report.limit_bytes.is_some() { "at most" } else { "at least" };
            format!("rank {rank} alone would have needed {at_least} {} less", bytes(missing))
        }
        // The limit is known as an interval. If nothing of the request fits under its lower end, the difference is no advice.
        _ if missing >= report.facts.rounded_bytes && report.limit_bytes.is_some() => {
            let limit = report.limit().unwrap_or_default();
            format!("the process's own limit, {limit}, had no known room for this request")
        }
        _ if report.limit_bytes.is_some() && report.facts.own_limit_bytes.is_none() => {
            format!("this request would have been served with at most {} less", bytes(missing))
        }
        _ => format!("this request would have been served with {} less", bytes(missing)),
    };
    if report.facts.demand.failed_before {
        return format!(
            "{alone}. A request of this line failed in an earlier step as well: make it smaller, or do without it"
        );
    }
    if let Some(larger) = larger_step(report) {
        return format!("{alone}: {larger}");
    }
    let share = missing as f64 / activations.max(1) as f64;
    let batch = if share < 0.9 {
        // Activations grow in proportion to the batch.
        let more = if report.limit_bytes.is_some() { "is enough for it" } else { "or more" };
        format!(
            ": a batch smaller by {:.0} % {more} (activations and this request are {}; what the step allocates after it comes on \
             top)",
            (share * 100.0).ceil().max(1.0),
            bytes(activations)
        )
    } else {
        String::new()
    };
    let optimizer = report.facts.classes.of(Class::OptimizerState);
    let shard = if optimizer > 0 && optimizer >= missing {
        format!(", or shard the optimizer's state ({})", bytes(optimizer))
    } else {
        String::new()
    };
    let enough = format!("{alone}{batch}; gradient checkpointing trades time for activations{shard}");
    match in_one_place(report) {
        Some(most) => {
            format!("{most}: if something keeps them from step to step, release that first. Otherwise, {enough}")
        }
        None => enough,
    }
}

/// The place that holds most of the memory in many blocks, if there is one. Its class does not show whether the
/// program needs these blocks or merely keeps them.
fn in_one_place(report: &Report) -> Option<String> {
    let Place { site, bytes: of, blocks, grown: _ } = by_place(&report.facts.sites).into_iter().next()?;
    let is_most = of >= report.facts.at_request.allocated_bytes / 2 && blocks >= KEPT_BLOCKS_MIN;
    (is_most && report.leaked.is_none())
        .then(|| format!("{} are in {} of {}", bytes(of), plural(blocks, "block"), place_or_none(site)))
}

/// What the failed step needed beyond the memory that stays between steps, if that is far more than any earlier step
/// needed. The batch of the other steps is then not at fault.
fn larger_step(report: &Report) -> Option<String> {
    let earlier = report.facts.earlier?;
    let usual = earlier.peak_bytes.saturating_sub(earlier.kept_bytes);
    let needed = report.facts.at_request.allocated_bytes.saturating_add(report.facts.rounded_bytes);
    let own = needed.saturating_sub(earlier.kept_bytes);
    // Whether the requests are larger is known only where the lines of earlier steps are.
    let requests = report.facts.demand.requests?;
    (usual > 0 && own >= usual.saturating_mul(UNLIKE)).then(|| {
        let what = match requests {
            Requests::Larger => {
                "Look at the size of its input (a longer sequence, a larger image): limit it, split it, or sort inputs by size"
            }
            Requests::OfNewLines => {
                "Most of that is requested by lines that made no request in an earlier step: look at the size of these requests, \
                 and why this step reaches them"
            }
            Requests::Alike => {
                "Its requests are not larger than those of earlier steps, so it makes or keeps more of them: look for what keeps \
                 them (a list of outputs or losses, for example)"
            }
        };
        format!(
            "beyond the {} that stay between steps, earlier steps needed at most {} and this one at least {}. {what}",
            bytes(earlier.kept_bytes),
            bytes(usual),
            bytes(own)
        )
    })
}
