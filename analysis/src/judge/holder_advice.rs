//! The advice to give once the holder of the memory is known.
//!
//! Guarantees: the advice names the holder of most blocks and nothing that this holder already does. The advice for
//! patterns with known code (an evaluation's graph, hooks, optimizers) is not replaced.

use super::second_holders::beside;
use crate::wording::all_of;
use memctl_model::{Collector, Finding, HolderBound, HolderKind, HolderPattern, Pattern, TensorHolder};

/// The advice about the holder of most of a finding's blocks; `None` if the finding's own advice is as good.
pub(super) fn advice(finding: &Finding) -> Option<String> {
    if finding.main_holder().is_none() {
        return of_traced(finding);
    }
    // No program should bound an optimizer's state.
    let (_, holder, _) = finding.main_holder().filter(|(_, holder, _)| !holder.is_optimizer_state())?;
    let is_open = match finding.pattern {
        // The frames of a traceback keep every variable, with or without a graph.
        _ if holder.is_kept_by_traceback() => true,
        None | Some(Pattern::TensorsKept) => true,
        // Where a graph's blocks are allocated is not where it is kept.
        Some(Pattern::GraphKept) => holder.holder == HolderKind::Graph,
        Some(_) => false,
    };
    if !is_open {
        return None;
    }
    let mut others: Vec<String> = beside(finding).into_iter().map(named).collect();
    // A container and the graphs of its tensors have one name.
    others.retain(|name| *name != named(holder));
    others.dedup();
    let advice = match holder.bound {
        HolderBound::Bounded { limit } if finding.filled_device => too_large_a_bound(holder, limit),
        _ => about(holder)?,
    };
    if others.is_empty() { Some(advice) } else { Some(format!("{advice} The same goes for {}.", all_of(&others))) }
}

/// The advice if a search ended early and had traced blocks to a graph alone.
fn of_traced(finding: &Finding) -> Option<String> {
    let is_open = matches!(finding.pattern, None | Some(Pattern::TensorsKept | Pattern::GraphKept));
    let (graph, found) = finding.traced_graph().filter(|_| is_open)?;
    let (name, blocks, asked) = (named(graph), graph.blocks, found.asked_blocks);
    Some(format!(
        "Look at {name} first: the search ended early and had traced {blocks} of {asked} blocks to its graph. {}",
        about(graph)?
    ))
}

/// The advice on a holder whose limit was not reached before memory ran out.
fn too_large_a_bound(holder: &TensorHolder, limit: Option<u64>) -> String {
    let limit = limit.map_or(String::new(), |limit| format!(", at most {limit} items"));
    format!(
        "{} has a limit{limit}, but memory ran out before it was full: lower the limit, or keep its items on the host.",
        named(holder)
    )
}

/// The type of a thread-safe queue, as the agent names it.
const QUEUE: &str = "queue.Queue";

fn about(holder: &TensorHolder) -> Option<String> {
    let name = named(holder);
    if is_hook_table(holder) {
        return Some(
            "Register each hook once, keep its handle, and call handle.remove() when the hook is no longer needed: a hook \
             keeps what its function refers to."
                .to_owned(),
        );
    }
    if holder.is_kept_by_traceback() {
        return Some(
            "Keep the exception's text, such as traceback.format_exc(), and not the exception: its traceback keeps the frames \
             of all calls, and they keep their variables."
                .to_owned(),
        );
    }
    if holder.type_name == QUEUE && !matches!(holder.bound, HolderBound::Bounded { .. }) {
        return Some(
            "Give the queue a size, queue.Queue(maxsize=...): the producer then waits for the consumer.".to_owned(),
        );
    }
    Some(match (holder.holder, holder.bound) {
        (HolderKind::Container | HolderKind::Cache, HolderBound::Bounded { limit }) => match limit {
            Some(limit) => format!(
                "{name} holds at most {limit} items: this growth ends there, where the device has room for that; a lower limit makes it hold less."
            ),
            None => format!("{name} has a limit: this growth ends there, where the device has room for that; a lower one makes it hold less."),
        },
        (HolderKind::Container | HolderKind::Cache, _) => format!(
            "Give {name} a bound, clear it when its items are no longer needed, or keep numbers in it (.item()). Copies on \
             the host move the growth there.{}",
            if holder.kind == "dict" { " If it caches a finite set, it stops growing when each item was stored." } else { "" }
        ),
        (HolderKind::Graph, _) => format!(
            "Detach what goes into {name}, or keep numbers: `total += loss.item()` instead of `total = total + loss`. A sum \
             of losses keeps the graphs of all of them."
        ),
        (HolderKind::Cycle, _) => match holder.collector {
            Some(Collector::Off | Collector::Rare) => {
                "Break the cycle of references, or let the garbage collector free it: gc.enable(), or gc.collect() once \
                 in a while."
            }
            _ => "Break the cycle of references: it is freed only when the garbage collector runs.",
        }
        .to_owned(),
        (HolderKind::Thread, _) => {
            "Let these threads end, or hand them less: each keeps its variables until it ends.".to_owned()
        }
        (HolderKind::Cpp, _) => match holder.pattern? {
            HolderPattern::CreateGraph => {
                "Use torch.autograd.grad instead of backward(create_graph=True), or set the gradients to None after each \
                 use."
            }
            HolderPattern::AutocastCache => {
                "Leave autocast after each step: use it as a context manager, or call __exit__ for each __enter__."
            }
        }
        .to_owned(),
        _ => return None,
    })
}

/// Whether it is the table in which torch keeps the hooks of a module or a tensor. A program adds hooks to it and not
/// tensors.
fn is_hook_table(holder: &TensorHolder) -> bool {
    let is_table = |name: &String| name.starts_with('_') && name.ends_with("_hooks");
    holder.kind == "hook" && holder.name.as_ref().is_some_and(is_table)
}

/// The name in backquotes (`ring`), or its type if it has no name.
fn named(holder: &TensorHolder) -> String {
    match (&holder.name, holder.type_name.is_empty()) {
        (Some(name), _) => format!("`{name}`"),
        (None, false) => format!("this {}", holder.type_name),
        (None, true) => "what holds it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(kind: HolderKind, bound: HolderBound) -> TensorHolder {
        TensorHolder {
            kind: "list".into(),
            sentence: "list `kept`".into(),
            blocks: 1,
            bytes: 1,
            holder: kind,
            type_name: "list".into(),
            name: Some("kept".into()),
            bound,
            ..TensorHolder::default()
        }
    }

    #[test]
    fn the_advice_is_about_the_holder() {
        let said = |kind, bound| about(&holder(kind, bound)).unwrap();
        let full = said(HolderKind::Container, HolderBound::Bounded { limit: Some(200) });
        assert!(full.starts_with("`kept` holds at most 200 items"), "{full}");
        assert!(!full.contains("maxlen"), "it has one already: {full}");
        assert!(said(HolderKind::Container, HolderBound::Unbounded).starts_with("Give `kept` a bound"));
        assert!(said(HolderKind::Graph, HolderBound::Unknown).contains("loss.item()"));
        assert!(said(HolderKind::Cycle, HolderBound::Unknown).starts_with("Break the cycle"));
        assert_eq!(about(&holder(HolderKind::Cpp, HolderBound::Unknown)), None, "no cause is known");
        let unbounded = holder(HolderKind::Container, HolderBound::Unbounded);
        let hooks = TensorHolder { kind: "hook".into(), name: Some("_forward_hooks".into()), ..unbounded.clone() };
        assert!(about(&hooks).unwrap().contains("handle.remove()"));
        let list_of_hook = TensorHolder { kind: "hook".into(), ..unbounded };
        assert!(about(&list_of_hook).unwrap().starts_with("Give `kept` a bound"), "a list that a hook fills");
        let unbounded = holder(HolderKind::Container, HolderBound::Unbounded);
        let queue = TensorHolder { type_name: QUEUE.into(), ..unbounded.clone() };
        assert!(about(&queue).unwrap().contains("maxsize"));
        let chain = [
            "list, 3 items",
            "`ValueError` object",
            memctl_model::holders::TRACEBACK,
            "local `h` of function `compute`",
            "Tensor",
        ];
        let graph = holder(HolderKind::Graph, HolderBound::Unknown);
        let raised = TensorHolder { chain: chain.map(str::to_owned).to_vec(), ..graph };
        assert!(about(&raised).unwrap().starts_with("Keep the exception's text"));
        let graph =
            TensorHolder { pattern: Some(HolderPattern::CreateGraph), ..holder(HolderKind::Cpp, HolderBound::Unknown) };
        assert!(about(&graph).unwrap().contains("torch.autograd.grad"));
    }
}
