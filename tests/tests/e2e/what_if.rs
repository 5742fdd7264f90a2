//! `memctl what-if` through real binaries, on the bundled recordings: replays repeat them exactly, other settings and limits end
//! as they do, and what the allocator would refuse is refused.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::{NAMES, folder};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

#[test]
fn recordings_are_repeated_and_settings_told_apart() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    for name in NAMES {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
    }
    let ask = |name: &str, flags: &[&str]| -> Value {
        run_json(memctl().args(["what-if", "-o", "json", "--daemon", &daemon.url, "--job", name]).args(flags))
    };
    for name in NAMES {
        let answer = ask(name, &["--rank", "0-3", "--set", "roundup_power2_divisions:8"]);
        let ranks = answer["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 4, "{name}");
        for rank in ranks {
            assert_eq!(rank["exact"], true, "{name}: {}", rank["replayed"]);
            for figure in ["peak_reserved_bytes", "peak_allocated_bytes", "device_allocs", "device_frees"] {
                assert_eq!(rank["recorded"][figure], rank["replayed"][figure], "{name}: {figure}");
            }
            assert_eq!(rank["settings"].as_array().unwrap().len(), 2, "{name}: the recorded setting and the other");
        }
    }

    let varying = ask("gpt_varlen_fragmentation", &[]);
    assert_eq!((varying["ranks"].as_array().unwrap().len(), &varying["ranks_left_out"]), (1, &Value::from(3)));
    let advised = &varying["ranks"][0]["recommended"];
    assert_eq!(advised["allocator_conf"], "expandable_segments:True");
    assert!(advised["saves_bytes"].as_u64().unwrap() > 2 << 30, "{advised}");

    let capped = ask("oom_by_fragmentation", &["--rank", "0", "--limit", "3GiB", "--limit", "40GiB"]);
    let rank = &capped["ranks"][0];
    let own = |limit: u64| {
        let settings = rank["settings"].as_array().unwrap();
        settings.iter().find(|it| it["allocator_conf"] == "" && it["limit_bytes"] == limit).unwrap().clone()
    };
    assert_eq!(own(3 << 30)["out_of_memory"]["requested_bytes"], 1 << 30);
    assert_eq!(own(3 << 30)["out_of_memory"]["site"]["function"], "oom_by_fragmentation");
    assert_eq!(own(40 << 30)["out_of_memory"], Value::Null);
    assert_eq!(rank["recommended"], Value::Null, "no setting helps where every page holds a live block");

    let ask = ["what-if", "--daemon", &daemon.url, "--job", "gpt_clean", "--set", "expandable_segments:yes"];
    let refused = memctl().args(ask).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains("expandable_segments:yes is refused: must be True or False"), "{words}");
}
