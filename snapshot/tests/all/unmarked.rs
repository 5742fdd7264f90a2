//! Tests of snapshots without marks or with some of them: what is found in their stacks, and how it is combined with
//! annotations.

use crate::pickle;

use std::path::Path;

use memctl_model::{Action, Boundary, Frame, MarkKind, site_of};
use memctl_snapshot::{FoundBoundaries, HELD_BYTES_MAX, Recording, load_from};
use pickle::*;

const TORCH: &str = "/usr/lib/python3.11/site-packages/torch/";

/// Frames as (function, file, line), innermost first.
fn stack(frames: &[(&str, &str, i64)]) -> Py {
    let frame = |&(name, file, line): &(&str, &str, i64)| {
        dict([("name", str(name)), ("filename", str(file)), ("line", Py::Int(line))])
    };
    Py::List(frames.iter().map(frame).collect())
}

/// A training of `epochs` epochs with 5 steps of 100 µs each, and an evaluation of 50 µs after each epoch.
fn training(epochs: i64) -> Vec<Py> {
    let mut events = Vec::new();
    let mut at = |time_us: i64, line: i64, size: i64, inner: &[(&str, &str, i64)]| {
        let frames = [inner, &[("main", "/home/u/train.py", line)]].concat();
        let event = |action: &str| with(event(action, size << 9, size, time_us), "frames", stack(&frames));
        events.extend([event("alloc"), event("free_requested"), event("free_completed")]);
    };
    let module = format!("{TORCH}nn/modules/module.py");
    let (tensor, adam) = (format!("{TORCH}_tensor.py"), format!("{TORCH}optim/adam.py"));
    for epoch in 0..epochs {
        for step in 0..5 {
            let begin = epoch * 550 + step * 100;
            at(begin + 10, 11, 4096, &[("_call_impl", &module, 1790)]);
            at(begin + 40, 12, 4, &[("backward", &tensor, 631)]);
            at(begin + 70, 13, 2048, &[("step", &adam, 248)]);
        }
        at(epoch * 550 + 520, 20, 8192, &[("_call_impl", &module, 1790)]);
    }
    events
}

fn read(events: Vec<Py>, annotations: &[(String, &str, i64)]) -> Recording {
    let annotations = annotations.iter().map(|(name, stage, time)| annotation(name, stage, *time)).collect();
    let whole = snapshot(events, annotations);
    load_from(&dumps(&whole, Style::Python4)[..], HELD_BYTES_MAX, &mut |_| {}).unwrap()
}

fn ends(recording: &Recording, kind: fn(&MarkKind) -> bool) -> Vec<u64> {
    recording.marks.iter().filter(|mark| kind(&mark.kind)).map(|mark| mark.time_ns / 1000).collect()
}

fn epoch_end(kind: &MarkKind) -> bool {
    matches!(kind, MarkKind::EpochEnd(_))
}

fn step_end(kind: &MarkKind) -> bool {
    matches!(kind, MarkKind::StepEnd(_))
}

#[test]
fn a_training_that_marks_nothing() {
    let recording = read(training(4), &[]);
    let by = Some("the loop at train.py:11".to_owned());
    assert_eq!(recording.found, FoundBoundaries { by, steps: 20, epochs: 4, windows: 0 });
    assert_eq!(recording.found.boundaries(), [Boundary::StepEnd, Boundary::EpochEnd]);
    assert_eq!(ends(&recording, step_end)[..6], [70, 170, 270, 370, 470, 620]);
    assert_eq!(ends(&recording, epoch_end), [520, 1070, 1620, 2170]);
    assert!(recording.marks.is_sorted_by_key(|mark| mark.time_ns));
}

#[test]
fn given_epochs_have_found_steps_and_stay_as_they_are() {
    let mut given = Vec::new();
    for epoch in 0..4 {
        let name = format!("epoch#{}", epoch + 7);
        given.push((name.clone(), "START", epoch * 550 + 5));
        given.push((name, "END", epoch * 550 + 540));
    }
    let recording = read(training(4), &given);
    assert_eq!((recording.found.steps, recording.found.epochs), (20, 0));
    assert_eq!(recording.found.boundaries(), [Boundary::StepEnd]);
    assert_eq!(ends(&recording, epoch_end), [540, 1090, 1640, 2190]);
}

#[test]
fn given_steps_have_found_epochs_that_cut_none_of_them() {
    let mut given = Vec::new();
    for step in 0..20 {
        // The last step of each epoch ends late, within the evaluation.
        let begin = step / 5 * 550 + step % 5 * 100;
        given.push((format!("ProfilerStep#{step}"), "START", begin));
        given.push((format!("ProfilerStep#{step}"), "END", begin + if step % 5 == 4 { 530 - 400 } else { 99 }));
    }
    let recording = read(training(4), &given);
    assert_eq!((recording.found.steps, recording.found.epochs), (0, 4));
    assert_eq!(ends(&recording, epoch_end), [530, 1080, 1630, 2180]);
    assert_eq!(ends(&recording, step_end).len(), 20);
}

#[test]
fn compiled_code_is_read_by_the_lines_that_torch_says_it_comes_from() {
    let generated = ("forward", "/tmp/x/fx_generated_1a2b.py", 7);
    let with_trace = |trace: &str| {
        let Py::List(frames) = stack(&[generated]) else { unreachable!() };
        let frames = frames.into_iter().map(|frame| with(frame, "fx_original_trace", str(trace))).collect();
        vec![with(event("alloc", 512, 512, 1), "frames", Py::List(frames))]
    };
    let frame = |trace: &str| {
        let recording = read(with_trace(trace), &[]);
        let frame = &recording.frames[0];
        (frame.function.to_string(), frame.file.to_string(), frame.line)
    };
    let trace = "  File \"/home/u/model.py\", line 31, in forward\n    return self.block(x)\n  \
                 File \"/home/u/model.py\", line 12, in block\n    return F.gelu(self.up(x))\n";
    assert_eq!(frame(trace), ("block".into(), "/home/u/model.py".into(), 12));
    let as_recorded = (generated.0.to_owned(), generated.1.to_owned(), 7);
    for odd in ["", "File \"", "File \"x\", line 99999999999999, in f", "File \"x\", line , in ", "no traceback"] {
        assert_eq!(frame(odd), as_recorded, "{odd}");
    }
}

/// A recording made by `fixtures/unmarked/train.py`, either unchanged or without the optimizer's own ranges.
fn recorded(name: &str, annotations: bool) -> Recording {
    const KEY: &[u8] = b"external_annotations";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/unmarked/{name}.pickle.zst"));
    let mut pickle = zstd::decode_all(&std::fs::read(path).unwrap()[..]).unwrap();
    if !annotations {
        let at = pickle.windows(KEY.len()).position(|bytes| bytes == KEY).unwrap();
        // An unknown key is skipped.
        pickle[at] = b'X';
    }
    load_from(&pickle[..], HELD_BYTES_MAX, &mut |_| {}).unwrap()
}

#[test]
fn trainings_of_genuine_pytorch_have_the_steps_and_epochs_they_had() {
    let truth = [
        ("script", 40_usize, 4_usize),
        ("functions", 60, 5),
        ("accumulated", 20, 4),
        ("two_optimizers", 40, 0),
        ("serving", 50, 0),
        ("huggingface", 40, 4),
        ("lightning", 48, 4),
    ];
    for (name, steps, epochs) in truth {
        let found = recorded(name, false).found;
        assert_eq!(
            (found.steps, found.epochs, found.windows),
            (steps as u64, epochs as u64, 0),
            "{name}: {:?}",
            found.by
        );
        let place = match name {
            "huggingface" => "trainer.py:",
            "lightning" => "training_epoch_loop.py:",
            _ => "train.py:",
        };
        assert!(found.by.as_ref().is_some_and(|by| by.starts_with("the loop at ") && by.contains(place)), "{name}");
        // The ranges that optimizers write themselves mark steps, and the epochs are found as before.
        let as_it_is = recorded(name, true);
        assert_eq!(as_it_is.found.epochs, epochs as u64, "{name}");
        assert!(ends(&as_it_is, step_end).len() >= steps, "{name}");
    }
}

#[test]
fn what_a_library_drives_is_told_by_the_models_lines() {
    let recording = recorded("huggingface", true);
    let events = recording.devices.iter().flat_map(|device| device.events.iter());
    let (mut bytes, mut at_script, mut at_model) = (0_u64, 0_u64, 0_u64);
    for event in events.filter(|event| event.action == Action::Alloc && event.stack.is_some()) {
        let ids = &recording.stacks[event.stack.0 as usize - 1];
        let frames: Vec<&Frame> = ids.iter().map(|id| &recording.frames[id.0 as usize]).collect();
        let Some(site) = site_of(frames.iter().copied()) else { continue };
        bytes += event.size;
        at_script += if site.file.ends_with("/train.py") { event.size } else { 0 };
        at_model += if site.file.contains("/transformers/") { event.size } else { 0 };
    }
    assert!(at_script * 20 < bytes, "{at_script} of {bytes} bytes at the script's lines");
    assert!(at_model * 2 > bytes / 2, "{at_model} of {bytes} bytes at the model's lines");
}
