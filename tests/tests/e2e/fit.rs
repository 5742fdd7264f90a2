//! `memctl fit` through real binaries: a model recorded at batch 4 and 8, forecast at larger ones and compared with
//! their real memory; forecasts from one recording; forecasts with changes; and two recordings of different trainings.

use std::path::{Path, PathBuf};

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data")
}

#[test]
fn a_training_recorded_at_two_batches_is_forecast_at_others() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    for name in ["gpt2_amp_b4", "resnet50_amp_b4", "resnet50_amp_b8"] {
        let file = data().join(format!("fit_{name}/rank0.pickle.zst"));
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(file));
    }
    let jobs = ["--job", "resnet50_amp_b8=8", "--job", "resnet50_amp_b4=4", "--at", "16,32,64"];
    let ask = ["fit", "-o", "json", "--daemon", &daemon.url, "--device-memory", "2GiB"];
    let answer = run_json(memctl().args(ask).args(jobs));
    let sizes: Vec<&Value> = answer["recordings"].as_array().unwrap().iter().map(|it| &it["size"]).collect();
    assert_eq!(sizes, [4, 8]);
    let rows = std::fs::read_to_string(data().join("fit.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for at in answer["at"].as_array().unwrap() {
        let row = rows.iter().find(|row| row["kind"] == "resnet50" && row["batch"] == at["size"]).unwrap();
        let (ours, truth) = (at["peak_reserved_bytes"].as_u64().unwrap(), row["peak_reserved"].as_u64().unwrap());
        assert!(ours.abs_diff(truth) * 20 <= truth, "{at}: {row}");
        assert!(at["low"].as_u64() <= Some(ours) && Some(ours) <= at["high"].as_u64(), "{at}");
        assert_eq!(at["fits"], truth <= 2 << 30, "{at}");
    }
    let largest = answer["largest_that_fits"].as_u64().unwrap();
    assert!((32..48).contains(&largest), "{largest}");

    let two = ["--job", "gpt2_amp_b4=4", "--job", "resnet50_amp_b8=8", "--at", "16"];
    let refused = memctl().args(["fit", "--daemon", &daemon.url]).args(two).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{words}");
    assert!(words.contains("they are not of one training"), "{words}");
    for flags in [["--job", "gpt2_amp_b4", "--at", "16"].as_slice(), &["--job", "gpt2_amp_b4=4"]] {
        let one = memctl().args(["fit", "--daemon", &daemon.url]).args(flags).output().unwrap();
        assert_eq!(one.status.code(), Some(2), "{flags:?}");
    }
}

/// The peak reserved and allocated bytes of a GPT-2 run at a batch size, from a file of rows.
fn truth(file: &str, batch: u64) -> (u64, u64) {
    let rows = std::fs::read_to_string(data().join(file)).unwrap();
    let mut rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let row = rows.find(|row| row["kind"] == "gpt2" && row["batch"] == batch).unwrap();
    (row["peak_reserved"].as_u64().unwrap(), row["peak_allocated"].as_u64().unwrap())
}

/// One recording is scaled by its classes; changes are judged by replays; a change that names something missing is
/// refused with what exists.
#[test]
fn one_recording_is_forecast_and_changed() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let file = data().join("fit_gpt2_amp_b4/rank0.pickle.zst");
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "gpt2"]).arg(file));
    let ask = |flags: &[&str]| run_json(memctl().args(["fit", "-o", "json", "--daemon", &daemon.url]).args(flags));
    let bytes = |value: &Value| value.as_u64().unwrap();

    let alone = ask(&["--job", "gpt2=4", "--at", "8,16,32"]);
    assert!(alone["aligned"].is_null() && alone["scaled"]["proportional"].as_u64() > Some(100), "{}", alone["scaled"]);
    assert!(alone["not_looked_at"].to_string().contains("weaker than two"));
    for at in alone["at"].as_array().unwrap() {
        let (reserved, _) = truth("fit.jsonl", bytes(&at["size"]));
        assert!(bytes(&at["peak_reserved_bytes"]).abs_diff(reserved) * 10 <= reserved, "{at}: {reserved}");
        assert!((bytes(&at["low"])..=bytes(&at["high"])).contains(&reserved), "{at}: {reserved}");
    }

    let whole = bytes(&alone["recordings"][0]["peak_allocated_bytes"]);
    let changed = ask(&["--job", "gpt2", "--checkpoint", "all"]);
    let (_, allocated) = truth("fit_ckpt.jsonl", 4);
    let checkpointed = bytes(&changed["checkpoint"]["peak_allocated_bytes"]);
    assert!(checkpointed.abs_diff(allocated) * 20 <= allocated, "{}: {allocated}", changed["checkpoint"]);
    assert!(checkpointed < whole / 4 * 3, "{}", changed["checkpoint"]);
    let share = changed["checkpoint"]["repeated_share"].as_f64().unwrap();
    assert!((0.3..0.95).contains(&share), "{share}");

    let without = ask(&["--job", "gpt2", "--without", "fit.py:10"]);
    assert!(bytes(&without["without"]["peak_allocated_bytes"]) < whole, "{}", without["without"]);

    let under = ask(&["--job", "gpt2=4", "--under", "4GiB"]);
    let (peak, under) = (&under["peak"], &under["under"]);
    let sum = |held: &Value| held.as_array().unwrap().iter().map(|it| bytes(&it["bytes"])).sum::<u64>();
    assert_eq!(sum(&peak["classes"]), bytes(&peak["allocated_bytes"]), "every byte has a class");
    assert_eq!(bytes(&under["excess_bytes"]), bytes(&under["peak_reserved_bytes"]) - (4 << 30));
    assert_eq!(under["is_enough"], true, "{}", under["must_go"]);
    let kinds: Vec<&str> =
        under["measures"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    for kind in ["checkpointing", "smaller_size", "optimizer_8_bit", "optimizer_sharded"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }

    for (flags, words) in [
        (["--without", "nowhere.py:1"], "those that hold most at the peak: "),
        (["--checkpoint", "Nothing"], "no module Nothing was called"),
    ] {
        let refused = memctl().args(["fit", "--daemon", &daemon.url, "--job", "gpt2"]).args(flags).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(5) && said.contains(words), "{said}");
    }
}

/// Figures agree: the replay without a change, the peak, the measures and `what-if` have the same values. A failed
/// request and growing memory are named.
#[test]
fn figures_agree_with_what_if_and_growth_is_named() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/recordings");
    for job in ["gpt_val_graph_leak", "oom_by_fragmentation"] {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", job]).arg(recordings.join(job)));
        let ask = |command: &str, flags: &[&str]| {
            run_json(memctl().args([command, "-o", "json", "--daemon", &daemon.url, "--job", job]).args(flags))
        };
        let answer = ask("fit", &["--rank", "0", "--under", "200MiB"]);
        let other = ask("what-if", &["--rank", "0", "--limit", "64GiB"]);
        let replayed = &answer["recordings"][0]["replayed"];
        for peak in [&answer["peak"], &answer["under"], &other["ranks"][0]["settings"][0]] {
            assert_eq!(peak["peak_reserved_bytes"], replayed["peak_reserved_bytes"], "{job}");
        }
        assert_eq!(answer["peak"]["allocated_bytes"], replayed["peak_allocated_bytes"], "{job}");
        let failed = replayed["failed_requests"].as_u64().unwrap();
        assert_eq!(failed > 0, job == "oom_by_fragmentation", "{replayed}");
        assert_eq!(answer["not_looked_at"].to_string().contains("would have asked for behind"), failed > 0);
        let first = answer["under"]["first"].to_string();
        if job == "gpt_val_graph_leak" {
            assert_eq!((&answer["growing"][0]["is_leak"], &answer["growing"][0]["job"]), (&true.into(), &job.into()));
            assert!(first.contains("Remove the leak first") && first.contains("torch.no_grad()"), "{first}");
            let page = run(memctl().args(["fit", "--daemon", &daemon.url, "--job", job, "--under", "200MiB"]));
            assert!(page.contains("steps that were recorded: a longer run holds more."), "{page}");
        }
    }
}
