//! `memctl fit` through real binaries: a model recorded at batch 4 and 8, forecast at larger ones and compared with what these
//! really held; and two recordings that are not of one training.

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
    let one = memctl().args(["fit", "--daemon", &daemon.url, "--job", "gpt2_amp_b4=4", "--at", "16"]).output().unwrap();
    assert_eq!(one.status.code(), Some(2));
}
