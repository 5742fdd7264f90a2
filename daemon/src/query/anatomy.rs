//! Finds the live memory at the peak of one device by class, by module and by site.
//!
//! Guarantees: one replay up to the peak, with the same classes as the ledger of the peak. At most [`PARTS_MAX`] parts
//! are returned, the largest ones, with the number of omitted parts.
//! Refuses: more than one process at a time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memctl_analysis::classes::{Class, Shares};
use memctl_analysis::modules::Modules;
use memctl_answers::anatomy::{Anatomy, Held, Part};
use memctl_answers::format::time::rfc3339;
use memctl_answers::ledger::shares;
use memctl_answers::{Frame, SCHEMA};
use memctl_model::{self as model, BlockState, Stack, StackId};
use memctl_proto::v1;

use super::answer;
use super::ledger::{Then, peak, then};
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::store::{Selection, Store};
use crate::streams::Streams;

/// The most parts returned.
const PARTS_MAX: usize = 256;
/// The most modules returned.
pub(super) const MODULES_MAX: usize = 64;

/// Bytes and blocks.
pub(super) type Sum = (u64, u64);

/// Answers the request.
pub(super) async fn anatomy(
    store: &dyn Store,
    streams: &Streams,
    selection: &v1::Selection,
) -> Result<Anatomy, ReadError> {
    let found = find(store, selection).await?;
    let [session] = found.sessions.as_slice() else {
        return Err(ReadError::Invalid(
            "the peak's anatomy is of one process: give rank=N, and process=NAME if the rank has several".into(),
        ));
    };
    let Some(row) = found.devices_of(session.key).first() else {
        return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {}", session.info.rank)));
    };
    let chunks = store.chunks(session.key, row.info.index.0, Selection::default()).await?;
    let Some(position) = peak(store, session, row, &chunks, true).await? else {
        return Err(ReadError::Invalid(format!(
            "no events of rank {} are stored (any more), and the memory at the peak is computed from single events",
            session.info.rank
        )));
    };
    let Then { keyframe, stacks, epoch, step, known } = then(store, session, row, &chunks, position).await?;
    let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
    let classed = known.of(&keyframe);
    let mut sums = Shares::default();
    classed.iter().for_each(|(class, block)| sums.add(*class, block.size));
    let breakdown = Breakdown::new(&classed, &resolve);
    Ok(Anatomy {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        rank: session.info.rank,
        process: found.process_name(session),
        device: u32::from(row.info.index.0),
        at: rfc3339(keyframe.time_ns),
        epoch,
        step,
        exact: position.exact,
        allocated_bytes: sums.total(),
        classes: shares(&sums),
        modules: breakdown.modules,
        parts: breakdown.parts,
        modules_left_out: breakdown.modules_left_out,
        parts_left_out: breakdown.parts_left_out,
        left_out_bytes: breakdown.left_out_bytes,
    })
}

struct Breakdown {
    modules: Vec<Held>,
    parts: Vec<Part>,
    modules_left_out: u64,
    parts_left_out: u64,
    left_out_bytes: u64,
}

impl Breakdown {
    fn new(classed: &[(Class, &BlockState)], resolve: &dyn Fn(StackId) -> Stack) -> Self {
        let order: Vec<StackId> = classed.iter().map(|(_, block)| block.stack).collect();
        let known = Modules::new(&order, resolve);
        // Blocks are summed by stack first, because there are far fewer stacks than blocks.
        let mut by_stack: BTreeMap<(Class, StackId), (usize, Sum)> = BTreeMap::new();
        for (at, (class, block)) in classed.iter().enumerate() {
            add(&mut by_stack.entry((*class, block.stack)).or_insert((at, (0, 0))).1, (block.size, 1));
        }
        let mut parts: BTreeMap<(Class, Option<String>, Option<model::Frame>), Sum> = BTreeMap::new();
        for ((class, stack), (at, sum)) in by_stack {
            let module = known.around(at);
            add(parts.entry((class, module, resolve(stack).site().cloned())).or_default(), sum);
        }
        let mut modules = modules(classed, resolve);
        let mut parts: Vec<Part> = parts
            .into_iter()
            .map(|((class, module, site), (live_bytes, live_blocks))| Part {
                class: class.name(),
                module,
                site: site.as_ref().map(Frame::from),
                live_bytes,
                live_blocks,
            })
            .collect();
        parts.sort_by_key(|part| Reverse(part.live_bytes));
        let rest = parts.split_off(parts.len().min(PARTS_MAX));
        let modules_left_out = modules.split_off(modules.len().min(MODULES_MAX)).len() as u64;
        let left_out_bytes = rest.iter().fold(0_u64, |sum, part| sum.saturating_add(part.live_bytes));
        Self { modules, parts, modules_left_out, parts_left_out: rest.len() as u64, left_out_bytes }
    }
}

/// Live memory by the module in whose forward it was allocated, most first.
pub(super) fn modules(classed: &[(Class, &BlockState)], resolve: &dyn Fn(StackId) -> Stack) -> Vec<Held> {
    let order: Vec<StackId> = classed.iter().map(|(_, block)| block.stack).collect();
    let known = Modules::new(&order, resolve);
    let mut sums: BTreeMap<StackId, (usize, Sum)> = BTreeMap::new();
    for (at, (_, block)) in classed.iter().enumerate() {
        add(&mut sums.entry(block.stack).or_insert((at, (0, 0))).1, (block.size, 1));
    }
    let mut modules: BTreeMap<Option<String>, Sum> = BTreeMap::new();
    for (at, sum) in sums.into_values() {
        add(modules.entry(known.around(at)).or_default(), sum);
    }
    let held = |(module, (live_bytes, live_blocks))| Held { module, live_bytes, live_blocks };
    let mut modules: Vec<Held> = modules.into_iter().map(held).collect();
    modules.sort_by_key(|held| Reverse(held.live_bytes));
    modules
}

/// Adds bytes and blocks; saturating, because the figures come from the network.
pub(super) fn add(sum: &mut Sum, (bytes, blocks): Sum) {
    *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(blocks));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_by_class_module_and_site_and_the_rest_is_counted() {
        let resolve = |stack: StackId| -> Stack {
            let frame = |function: &str, file: &str, line: u32| model::Frame {
                function: function.into(),
                file: file.into(),
                line,
            };
            Stack {
                frames: vec![
                    frame("forward", "/me/net.py", stack.0),
                    frame("_call_impl", "/env/site-packages/torch/nn/modules/module.py", 9),
                    frame("step", "/me/train.py", 7),
                ],
            }
        };
        let block = |stack: u32, size: u64| BlockState { stack: StackId(stack), size, ..BlockState::default() };
        let blocks: Vec<BlockState> =
            (1..=300).flat_map(|line| [block(line, 512), block(line, u64::from(line))]).collect();
        let classed: Vec<(Class, &BlockState)> = blocks.iter().map(|block| (Class::Activations, block)).collect();
        let breakdown = Breakdown::new(&classed, &resolve);
        assert_eq!((breakdown.parts.len(), breakdown.parts_left_out), (PARTS_MAX, 44));
        assert_eq!(breakdown.left_out_bytes, (1..=44).map(|line| 512 + line).sum::<u64>());
        let first = &breakdown.parts[0];
        assert_eq!((first.class, first.live_bytes, first.live_blocks), ("activations", 812, 2));
        assert_eq!(first.site.as_ref().unwrap().line, Some(300));
        let all: u64 = breakdown.modules.iter().map(|held| held.live_blocks).sum();
        assert_eq!((all, breakdown.modules_left_out), (600, 0));
    }
}
