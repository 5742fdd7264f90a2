//! Tests that owners' names are read, kept after annotations, written and read again.

use crate::pickle;

use memctl_model::limits::{OWNER_BYTES_MAX, SESSION_OWNED_STACKS_MAX};
use memctl_model::{Action, BlockUse, MarkKind, StackId};
use memctl_snapshot::{HELD_BYTES_MAX, Recording, load_from, write};
use pickle::*;
use proptest::prelude::*;

const MIB: i64 = 1 << 20;

fn recording(entries: Vec<Py>, blocks: Vec<Py>) -> Recording {
    let whole = snapshot(entries, vec![annotation("step#1", "END", 1_000_000)]);
    let whole = with(whole, "segments", Py::List(vec![segment(0, MIB, blocks, MIB)]));
    load_from(&dumps(&whole, Style::Python4)[..], HELD_BYTES_MAX, &mut |_| {}).unwrap()
}

/// A trace entry with one frame, of the function `make` at `line`, and with `name` as the name of the memory's owner.
fn named(action: &str, addr: i64, time_us: i64, line: i64, name: &str) -> Py {
    let entry = with(event(action, addr, 512, time_us), "frames", Py::List(vec![frame("make", line)]));
    with(entry, "user_metadata", str(name))
}

/// The owner's name and the lines of a stack.
fn owner_and_lines(recording: &Recording, stack: StackId) -> (Option<String>, Vec<u32>) {
    let frames = stack.0.checked_sub(1).map(|at| &recording.stacks[at as usize][..]).unwrap_or_default();
    let frames: Vec<_> = frames.iter().map(|frame| &recording.frames[frame.0 as usize]).collect();
    let owner = frames.first().and_then(|frame| frame.owner()).map(str::to_owned);
    (owner.clone(), frames[usize::from(owner.is_some())..].iter().map(|frame| frame.line).collect())
}

/// An owner's name, and the lines of the stack below it.
type OwnerAndLines = (Option<String>, Vec<u32>);

/// The owners and lines of every event, and of every block at the end.
fn all(recording: &Recording) -> (Vec<OwnerAndLines>, Vec<OwnerAndLines>) {
    let device = &recording.devices[0];
    let blocks = device.final_segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.usage != BlockUse::Inactive);
    (
        device.events.iter().map(|event| owner_and_lines(recording, event.stack)).collect(),
        live.map(|block| owner_and_lines(recording, block.stack)).collect(),
    )
}

fn again(recording: &Recording) -> Recording {
    let mut file = Vec::new();
    write(recording, &mut file).unwrap();
    load_from(&file[..], HELD_BYTES_MAX, &mut |_| {}).unwrap()
}

fn own(name: &str, line: u32) -> (Option<String>, Vec<u32>) {
    (Some(name).filter(|name| !name.is_empty()).map(str::to_owned), vec![line])
}

#[test]
fn requests_have_the_name_that_was_set_and_annotations_name_their_blocks() {
    let entries = vec![
        named("segment_alloc", MIB, 1, 1, "KV cache"),
        named("alloc", MIB, 2, 1, "KV cache"),
        named("alloc", MIB + 512, 3, 2, ""),
        named("annotate", MIB + 512, 4, 9, "logits"),
        named("annotate", MIB + 512, 5, 9, "logits of layer 3"),
        // One annotation for a block from before the recording, and one for an unknown block.
        named("annotate", MIB + 1024, 6, 9, "weights"),
        named("annotate", 7 * MIB, 7, 9, "weights"),
        // The name at a free does not change the owner.
        named("free_requested", MIB, 8, 5, "loader"),
        named("free_completed", MIB, 9, 5, "loader"),
    ];
    let blocks = vec![
        block(MIB, 512, "inactive"),
        block(MIB + 512, 512, "active_allocated"),
        block(MIB + 1024, 512, "active_allocated"),
    ];
    let recording = recording(entries, blocks);
    let (events, live) = all(&recording);
    let expected = [
        own("KV cache", 1),
        own("KV cache", 1),
        own("", 2),
        own("logits", 2),
        own("logits of layer 3", 2),
        own("weights", 3),
        (Some("weights".to_owned()), vec![]),
        own("", 5),
        own("", 5),
    ];
    assert_eq!(events, expected);
    // The fixture's blocks were made in line 3.
    assert_eq!(live, [own("logits of layer 3", 3), own("weights", 3)]);
    let notes: Vec<&MarkKind> =
        recording.marks.iter().map(|mark| &mark.kind).filter(|kind| matches!(kind, MarkKind::Note(_))).collect();
    let note = |name: &str| MarkKind::Note(format!("annotated: {name}"));
    assert_eq!(notes, [&note("logits"), &note("logits of layer 3"), &note("weights")]);
    assert_eq!((recording.remarks.events_with_metadata, recording.remarks.owners_refused), (0, 0));
    assert_eq!(recording.framework.as_deref(), Some("torch >= 2.10"));
}

#[test]
fn hostile_names_are_cut_and_their_number_is_bounded() {
    let names = (0..SESSION_OWNED_STACKS_MAX as i64 + 50).map(|n| named("alloc", MIB + 512 * n, n, 1, &n.to_string()));
    let long = "\u{1b}]0;\u{fc}".repeat(5_000);
    let recording = recording([named("alloc", 1, 0, 1, &long)].into_iter().chain(names).collect(), vec![]);
    let (events, _) = all(&recording);
    let (first, lines) = events[0].clone();
    assert!(first.as_ref().is_some_and(|name| name.len() <= OWNER_BYTES_MAX && long.starts_with(name.as_str())));
    assert_eq!((lines, events.last().unwrap()), (vec![1], &own("", 1)));
    assert_eq!(recording.remarks.owners_refused, 51);
}

/// The entries of one event of a random recording, at one of a few addresses.
fn entry(kind: u8, at: i64, name: &str, time_us: i64) -> Vec<Py> {
    let (addr, line) = (MIB + 512 * at, 1 + at);
    match kind {
        0 | 1 => vec![named("alloc", addr, time_us, line, name)],
        2 => {
            vec![named("free_requested", addr, time_us, line, name), named("free_completed", addr, time_us, line, name)]
        }
        _ => vec![named("annotate", addr, time_us, line, name)],
    }
}

proptest! {
    /// decode(encode(x)) = x for the names and stacks of events and of live blocks.
    #[test]
    fn names_come_back(
        entries in prop::collection::vec((0_u8..4, 0_i64..6, prop::sample::select(vec!["", "a", "KV cache", "\u{fc};\n"])), 1..60)
    ) {
        let mut living = [false; 6];
        let mut made = vec![event("segment_alloc", MIB, MIB, 1)];
        for (number, (kind, at, name)) in entries.into_iter().enumerate() {
            let live = &mut living[at as usize];
            // Only consistent entries are used, because inconsistent ones are corrected and then differ.
            let fits = match kind { 0 | 1 => !*live, _ => *live };
            if fits {
                *live = kind != 2;
                made.extend(entry(kind, at, name, 2 + number as i64));
            }
        }
        let whole = snapshot(made, vec![annotation("step#1", "END", 1_000_000)]);
        let first = load_from(&dumps(&whole, Style::Python4)[..], HELD_BYTES_MAX, &mut |_| {}).unwrap();
        let second = again(&first);
        prop_assert_eq!(all(&second).0, all(&first).0);
        prop_assert_eq!(&second.marks, &first.marks);
        let third = again(&second);
        prop_assert_eq!(all(&third), all(&second));
        prop_assert_eq!(&third.marks, &second.marks);
        // A live block has the stack of its request with the last name that was set.
        let mut living = std::collections::BTreeMap::new();
        for event in first.devices[0].events.iter() {
            match event.action {
                Action::Alloc => _ = living.insert(event.addr, owner_and_lines(&first, event.stack)),
                Action::Annotate if event.stack.is_some() => _ = living.insert(event.addr, owner_and_lines(&first, event.stack)),
                Action::FreeCompleted => _ = living.remove(&event.addr),
                _ => {}
            }
        }
        let live = all(&second).1;
        prop_assert_eq!(live, living.into_values().collect::<Vec<_>>());
    }
}
