//! Forecasts of real models from two batches, compared with measurements of runs at other batches.

use std::collections::HashMap;
use std::path::Path;

use memctl_analysis::initial_state;
use memctl_analysis::modules::{self, Modules, saves_itself};
use memctl_model::{Event, Frame, Stack, StackId};
use memctl_replay::fit::{CheckpointFacts, Fit, FitError, Pass, Script, stack_key};
use memctl_replay::{Conf, Follow, Limit, Request, Version};
use serde_json::Value;

/// The requests of a recording.
fn script(name: &str) -> (Conf, Script) {
    script_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).join("rank0.pickle.zst"))
}

fn script_of(path: &Path) -> (Conf, Script) {
    let (conf, script, _) = with_modules(path);
    (conf, script)
}

/// The requests of a recording, its modules derived from the stacks, and whether each request's operation saves its
/// own result.
fn with_modules(path: &Path) -> (Conf, Script, (Modules, Vec<bool>)) {
    let recording = memctl_snapshot::load(path, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let version = Version::of_framework(recording.framework.as_deref());
    let device = recording.devices.iter().max_by_key(|device| device.events.len()).expect("a device");
    let events: Vec<Event> = device.events.iter().collect();
    let start = initial_state(&recording.settings, device.device, &device.final_segments, events.iter().copied());
    let conf = Conf::recorded(&recording.settings, version);
    let frames_of = |stack: StackId| {
        let frames = (stack.0 as usize).checked_sub(1).and_then(|at| recording.stacks.get(at));
        frames.into_iter().flatten().map(|id| &recording.frames[id.0 as usize])
    };
    let key_of = |stack: StackId| stack_key(frames_of(stack));
    let mut keys: HashMap<StackId, u64> = HashMap::new();
    let mut follow = Follow::new(conf.clone(), Limit::None, &start.keyframe.segments);
    let mut script = Script::new(&start.keyframe.segments);
    let mut stacks = vec![StackId(0); script.requests()];
    for event in &events {
        let key = *keys.entry(event.stack).or_insert_with(|| key_of(event.stack));
        follow.event(event, |_, request| script.push(request, key).expect("few requests"));
        stacks.resize(script.requests(), event.stack);
    }
    follow.finish(|_, request| script.push(request, 0).expect("few requests"));
    stacks.resize(script.requests(), StackId(0));
    let resolve = |stack: StackId| Stack { frames: frames_of(stack).cloned().collect() };
    let saving = stacks.iter().map(|&stack| saves_itself(&resolve(stack))).collect();
    (conf, script, (Modules::new(&stacks, &resolve), saving))
}

fn fit(model: &str) -> Fit {
    let (conf, four) = script(&format!("fit_{model}_amp_b4"));
    let (_, eight) = script(&format!("fit_{model}_amp_b8"));
    Fit::new((4.0, four), (8.0, eight), conf).unwrap_or_else(|error| panic!("{error}"))
}

/// The measured peaks of reserved and allocated bytes, by batch.
fn truth(model: &str) -> Vec<(u64, u64, u64)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fit.jsonl");
    let text = std::fs::read_to_string(path).expect("rows");
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a row is JSON"));
    let number = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    let rows = rows.filter(|row| row["kind"] == model);
    rows.map(|row| (number(&row, "batch"), number(&row, "peak_reserved"), number(&row, "peak_allocated"))).collect()
}

#[test]
fn larger_batches_hold_what_was_forecast() {
    let mut errors = Vec::new();
    for model in ["gpt2", "resnet50"] {
        let fit = fit(model);
        println!("{model}: {:?}", fit.aligned());
        for (batch, reserved, allocated) in truth(model) {
            let forecast = fit.at(batch as f64, None);
            let counts = forecast.likely.counts;
            let off = |ours: u64, truth: u64| (ours as f64 - truth as f64) / truth as f64 * 100.0;
            println!(
                "{model} {batch}: reserved {reserved} {} ({:+.2} %), {}..{}, allocated {allocated} {} ({:+.2} %)",
                counts.peak_reserved_bytes,
                off(counts.peak_reserved_bytes, reserved),
                forecast.low_bytes,
                forecast.high_bytes,
                counts.peak_allocated_bytes,
                off(counts.peak_allocated_bytes, allocated),
            );
            if batch >= 16 {
                errors.push(off(counts.peak_reserved_bytes, reserved).abs());
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    assert_eq!(errors.len(), 5);
    assert!(errors[errors.len() / 2] <= 2.0 && errors[errors.len() - 1] <= 5.0, "{errors:?}");
}

#[test]
fn fits_is_said_only_where_it_does() {
    for model in ["gpt2", "resnet50"] {
        let fit = fit(model);
        for (batch, reserved, allocated) in truth(model) {
            // Below the allocated peak not even the live memory has room.
            let short = fit.at(batch as f64, Some(allocated - allocated / 50));
            assert_eq!(short.fits, Some(false), "{model} {batch}");
            let ample = fit.at(batch as f64, Some(reserved + reserved / 4));
            assert_eq!(ample.fits, Some(true), "{model} {batch}");
        }
        let limit = truth(model).iter().find(|row| row.0 == 32).expect("batch 32").1;
        let largest = fit.largest(limit + limit / 10, || true).expect("something fits");
        assert!((28..=40).contains(&largest), "{model}: {largest}");
        assert_eq!(fit.largest(1 << 20, || true), None);
    }
}

#[test]
fn two_trainings_are_not_taken_for_one() {
    let ((conf, gpt), (_, resnet)) = (script("fit_gpt2_amp_b4"), script("fit_resnet50_amp_b8"));
    let error = Fit::new((4.0, gpt.clone()), (8.0, resnet), conf.clone()).expect_err("two models");
    assert!(matches!(error, FitError::Different { .. }), "{error}");
    for numbers in [(4.0, 4.0), (0.0, 4.0), (f64::NAN, 4.0), (4.0, f64::INFINITY)] {
        let same = Fit::new((numbers.0, gpt.clone()), (numbers.1, gpt.clone()), conf.clone());
        assert_eq!(same.expect_err("no two numbers"), FitError::Numbers);
    }
    let (follow, request) = (Script::new(&[]), Request::EmptyCache);
    assert!(follow.clone().push(&request, 0).is_ok());
    let _ = stack_key(std::iter::empty::<&Frame>());
}

/// Six models that genuine torch 2.11.0 trained on the fake GPU (tests/workloads/fit_models.py). They use kernels of
/// their own, with buffers that appear or stop to grow between the recorded and the requested batches.
#[test]
fn models_of_the_fake_gpu_reserve_what_was_forecast() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fit_models");
    let text = std::fs::read_to_string(folder.join("rows.jsonl")).expect("rows");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect();
    let mut compared = 0;
    for model in ["encoder", "lstm", "vgg", "unet", "vit", "mixer"] {
        let recorded = |batch: u32| script_of(&folder.join(format!("{model}_b{batch}.pickle.zst")));
        let ((conf, four), (_, eight)) = (recorded(4), recorded(8));
        let fit = Fit::new((4.0, four), (8.0, eight), conf).expect("one training");
        for row in rows.iter().filter(|row| row["model"] == model && row["mode"] == "plain") {
            let number = |key: &str| row[key].as_u64().expect("a number");
            let (batch, reserved) = (number("batch"), number("peak_reserved"));
            let forecast = fit.at(batch as f64, None);
            let counts = forecast.likely.counts;
            // A request that only the larger recording has is assumed to exist at the smaller batch as well.
            let may_be_off = if batch < 8 { reserved / 50 } else { 0 };
            let off = counts.peak_reserved_bytes.abs_diff(reserved);
            assert!(off <= may_be_off, "{model} at {batch}: reserved is {off} bytes off");
            let off = counts.peak_allocated_bytes.abs_diff(number("peak_allocated"));
            assert!(off * 1000 <= number("peak_allocated"), "{model} at {batch}: allocated is {off} bytes off");
            assert!((forecast.low_bytes..=forecast.high_bytes).contains(&reserved), "{model} at {batch}");
            compared += 1;
        }
    }
    assert_eq!(compared, 30);
}

/// Three of these models, compared with runs whose blocks really were checkpointed. All are in single precision, so
/// there are no copies of weights.
#[test]
fn models_of_the_fake_gpu_reserve_checkpointed_what_was_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fit_models");
    let text = std::fs::read_to_string(folder.join("rows.jsonl")).expect("rows");
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a row is JSON"));
    let mut compared = 0;
    for row in rows.filter(|row| row["mode"] == "ckpt") {
        let (model, batch) = (row["model"].as_str().expect("a name"), row["batch"].as_u64().expect("a number"));
        let (conf, script, (modules, saving)) = with_modules(&folder.join(format!("{model}_b{batch}.pickle.zst")));
        let pass = |request: usize| match modules.pass(request) {
            modules::Pass::Forward => Pass::Forward,
            modules::Pass::Backward => Pass::Backward,
            modules::Pass::Optimizer => Pass::Other,
        };
        let (saves_itself, lines) = (|request: usize| saving[request], |request: usize| modules.lines(request));
        let calls = modules::chosen(&modules.all(), "all");
        let edited = script
            .checkpointed(&calls, CheckpointFacts { pass, lingers: |_| false, saves_itself, once: |_| false, lines });
        let counts = edited.script.outcome(&conf, Limit::None).counts;
        assert_eq!(Some(counts.peak_reserved_bytes), row["peak_reserved"].as_u64(), "{model} at {batch}: reserved");
        let allocated = row["peak_allocated"].as_u64().expect("a number");
        let off = counts.peak_allocated_bytes.abs_diff(allocated);
        assert!(off * 50 <= allocated, "{model} at {batch}: allocated is {off} bytes off");
        compared += 1;
    }
    assert_eq!(compared, 5);
}
