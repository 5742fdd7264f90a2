//! Real models at two batches, forecast at others and compared with what runs at these really held.
//!
//! `MEMCTL_FIT_MODELS=FOLDER` prints the same of what `tests/workloads/fit_models.py` left in a folder: `MODEL_plain_bN.json`, and
//! `MODEL_plain_bN.pickle` at batch 4 and 8.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use memctl_analysis::initial_state;
use memctl_model::{Event, Frame, StackId};
use memctl_replay::fit::{Fit, FitError, Script, stack_key};
use memctl_replay::{Conf, Follow, Limit, Request, Version};
use serde_json::Value;

/// A recording's requests.
fn script(name: &str) -> (Conf, Script) {
    script_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).join("rank0.pickle.zst"))
}

fn script_of(path: &Path) -> (Conf, Script) {
    let recording = memctl_snapshot::load(path, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let version = Version::of_framework(recording.framework.as_deref());
    let device = recording.devices.iter().max_by_key(|device| device.events.len()).expect("a device");
    let events: Vec<Event> = device.events.iter().collect();
    let start = initial_state(&recording.settings, device.device, &device.final_segments, events.iter().copied());
    let conf = Conf::recorded(&recording.settings, version);
    let key_of = |stack: StackId| {
        let frames = (stack.0 as usize).checked_sub(1).and_then(|at| recording.stacks.get(at));
        let frames = frames.into_iter().flatten().map(|id| &recording.frames[id.0 as usize]);
        stack_key(frames)
    };
    let mut keys: HashMap<StackId, u64> = HashMap::new();
    let mut follow = Follow::new(conf.clone(), Limit::None, &start.keyframe.segments);
    let mut script = Script::new(&start.keyframe.segments);
    for event in &events {
        let key = *keys.entry(event.stack).or_insert_with(|| key_of(event.stack));
        follow.event(event, |_, request| script.push(request, key).expect("few requests"));
    }
    follow.finish(|_, request| script.push(request, 0).expect("few requests"));
    (conf, script)
}

fn fit(model: &str) -> Fit {
    let (conf, four) = script(&format!("fit_{model}_amp_b4"));
    let (_, eight) = script(&format!("fit_{model}_amp_b8"));
    Fit::new((4.0, four), (8.0, eight), conf).unwrap_or_else(|error| panic!("{error}"))
}

/// Peaks that were measured, reserved and allocated, by batch.
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
            // Not even what lived would have had room.
            let short = fit.at(batch as f64, Some(allocated - allocated / 50));
            assert_eq!(short.fits, Some(false), "{model} {batch}");
            let ample = fit.at(batch as f64, Some(reserved + reserved / 4));
            assert_eq!(ample.fits, Some(true), "{model} {batch}");
        }
        let limit = truth(model).iter().find(|row| row.0 == 32).expect("batch 32").1;
        let largest = fit.largest(limit + limit / 10).expect("something fits");
        assert!((28..=40).contains(&largest), "{model}: {largest}");
        assert_eq!(fit.largest(1 << 20), None);
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

#[test]
fn models_of_the_fake_gpu_lie_within_their_intervals() {
    let Some(folder) = std::env::var_os("MEMCTL_FIT_MODELS").map(PathBuf::from) else { return };
    let peaks = |model: &str, batch: u32| {
        let text = std::fs::read_to_string(folder.join(format!("{model}_plain_b{batch}.json"))).ok()?;
        let row: Value = serde_json::from_str(&text).ok()?;
        Some((row["peak_reserved"].as_u64()?, row["peak_allocated"].as_u64()?))
    };
    let mut outside = 0;
    for model in ["encoder", "lstm", "vgg", "unet", "vit", "mixer"] {
        let recorded = |batch: u32| {
            let path = folder.join(format!("{model}_plain_b{batch}.pickle"));
            path.exists().then(|| script_of(&path))
        };
        let (Some((conf, four)), Some((_, eight))) = (recorded(4), recorded(8)) else { continue };
        let fit = Fit::new((4.0, four), (8.0, eight), conf).expect("one training");
        println!("{model}: {:?}", fit.aligned());
        for batch in [16, 32, 64] {
            let Some((reserved, allocated)) = peaks(model, batch) else { continue };
            let forecast = fit.at(f64::from(batch), None);
            let (low, high) = (forecast.low_bytes, forecast.high_bytes);
            let fits = [90, 97, 100, 103, 110, 120]
                .map(|percent| fit.at(f64::from(batch), Some(reserved / 100 * percent)).fits);
            let counts = forecast.likely.counts;
            outside += usize::from(!(low..=high).contains(&reserved));
            println!(
                "{model} {batch}: reserved {} MiB, forecast {}, {} to {}; allocated {}, forecast {}; fits {fits:?}",
                reserved >> 20,
                counts.peak_reserved_bytes >> 20,
                low >> 20,
                high >> 20,
                allocated >> 20,
                counts.peak_allocated_bytes >> 20,
            );
        }
    }
    println!("{outside} outside");
}
