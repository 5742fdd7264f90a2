//! `memctl what-if` through real binaries, on the bundled recordings: replays reproduce them exactly, trials under
//! other settings and limits have the expected results, and settings that the allocator would refuse are refused.

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
            let settings = rank["settings"].as_array().unwrap();
            let limits: std::collections::BTreeSet<u64> =
                settings.iter().filter_map(|it| it["limit_bytes"].as_u64()).collect();
            assert_eq!(settings.len(), 2 * limits.len().max(1), "{name}: the recorded setting and the other");
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

    // The limit of the failure is recorded, so without another limit the request fails again.
    let own = ask("oom_by_fragmentation", &["--rank", "0"]);
    let settings = own["ranks"][0]["settings"].as_array().unwrap();
    let exported: Vec<&Value> = settings.iter().filter(|it| it["allocator_conf"] == "").collect();
    assert!(exported.iter().any(|it| it["out_of_memory"]["requested_bytes"] == 1 << 30), "{exported:?}");
    let words = own["not_looked_at"].to_string();
    assert!(!words.contains("without --limit"), "{words}");

    let ask = ["what-if", "--daemon", &daemon.url, "--job", "gpt_clean", "--set", "expandable_segments:yes"];
    let refused = memctl().args(ask).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{words}");
    assert!(words.contains("expandable_segments:yes is refused: must be True or False"), "{words}");
}

/// The advice of `diagnose`, `frag` and `oom` on allocator settings equals the result of their replay.
#[test]
fn advice_on_settings_has_its_bytes_or_says_that_none_helps() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    for name in ["gpt_varlen_fragmentation", "oom_by_fragmentation", "gpt_clean"] {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
    }
    let ask = |verb: &str, name: &str| -> Value {
        run_json(memctl().args([verb, "-o", "json", "--daemon", &daemon.url, "--job", name]))
    };
    for verb in ["diagnose", "frag", "oom"] {
        assert_eq!(ask(verb, "gpt_clean")["replay"], Value::Null, "{verb}: nothing depends on a setting");
    }

    for verb in ["diagnose", "frag"] {
        let advice = &ask(verb, "gpt_varlen_fragmentation")["replay"];
        let (device, says) = (&advice["device"], advice["says"][0].as_str().unwrap());
        let (recommended, recorded) = (&device["recommended"], &device["recorded"]);
        assert_eq!((&device["exact"], &advice["not_replayed"]), (&Value::Bool(true), &Value::Null), "{verb}");
        let conf = recommended["allocator_conf"].as_str().unwrap();
        assert!(says.contains(conf) && says.ends_with("less."), "{verb}: {says}");
        let settings = device["settings"].as_array().unwrap();
        let chosen = settings.iter().find(|setting| setting["allocator_conf"] == conf).unwrap();
        assert!(chosen["peak_reserved_bytes"].as_u64() < recorded["peak_reserved_bytes"].as_u64(), "{verb}");
    }
    let note = ask("diagnose", "gpt_varlen_fragmentation");
    let change = &note["questions"][4];
    let conf = note["replay"]["device"]["recommended"]["allocator_conf"].as_str().unwrap();
    assert_eq!(change["after"][0], format!("export PYTORCH_CUDA_ALLOC_CONF={conf}"));
    assert_eq!(change["answer"][0], note["replay"]["says"][0]);

    for verb in ["diagnose", "frag", "oom"] {
        let answer = ask(verb, "oom_by_fragmentation");
        let says: Vec<&str> =
            answer["replay"]["says"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        assert!(says[0].starts_with("No allocator setting helps"), "{verb}: {says:?}");
        assert!(says[1].starts_with("What pins free memory: 300 blocks of oom_by_fragmentation"), "{verb}: {says:?}");
        assert_eq!(answer["replay"]["device"]["recommended"], Value::Null, "{verb}");
        let text = answer.to_string();
        assert!(!text.contains("Set PYTORCH_CUDA_ALLOC_CONF") && !text.contains("export PYTORCH"), "{verb}");
    }
}

/// Some steps of a recording are replayed from the state at the begin of the first one.
#[test]
fn a_part_of_the_steps_is_replayed() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "j"]).arg(folder("cnn_rank0_cache")));
    let ask = |flags: &[&str]| -> Value {
        let line =
            ["what-if", "-o", "json", "--daemon", &daemon.url, "--job", "j", "--set", "expandable_segments:True"];
        run_json(memctl().args(line).args(flags))
    };
    let allocs = |answer: &Value| answer["ranks"][0]["recorded"]["device_allocs"].as_u64().unwrap();
    let peak = |answer: &Value| answer["ranks"][0]["recorded"]["peak_allocated_bytes"].as_u64().unwrap();
    let whole = ask(&["--rank", "0"]);
    let (early, late) = (ask(&["--rank", "0", "--until", "3"]), ask(&["--rank", "0", "--from", "4"]));
    for part in [&early, &late] {
        assert_eq!(part["ranks"][0]["exact"], true, "{}", part["ranks"][0]["replayed"]);
    }
    assert_eq!(allocs(&early) + allocs(&late), allocs(&whole), "every event is in one of the parts");
    assert!(peak(&early) < peak(&late) && peak(&late) == peak(&whole), "it grows");
    let words = late["not_looked_at"].to_string();
    assert!(words.contains("events before are not replayed") && words.contains("in use: requested again"), "{words}");
    let beyond = ask(&["--rank", "0", "--from", "1000000"]);
    assert_eq!(beyond["ranks"], Value::Array(Vec::new()));
    assert!(beyond["not_looked_at"].to_string().contains("ended before the first step"), "{beyond}");
    // The outlier rank is the one that caches.
    let odd = ask(&[]);
    assert_eq!(odd["ranks"][0]["rank"], 0, "{odd}");

    let line = ["what-if", "--daemon", &daemon.url, "--job", "j", "--from", "5", "--until", "4"];
    let refused = memctl().args(line).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

/// The most trials, and the most sizes, are checked before the job is looked up.
#[test]
fn more_than_a_daemon_replays_at_once_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let trials = |settings: u32, limits: u32| -> Vec<String> {
        let settings = (0..settings).map(|at| format!("--set=max_split_size_mb:{}", 21 + at));
        let limits = (0..limits).map(|at| format!("--limit={}MiB", 1 + at));
        ["what-if".to_owned(), "--job=none".to_owned()].into_iter().chain(settings).chain(limits).collect()
    };
    let sizes = |sizes: u32| -> Vec<String> {
        let sizes: Vec<String> = (1..=sizes).map(|size| size.to_string()).collect();
        vec!["fit".to_owned(), "--job=none=4".to_owned(), format!("--at={}", sizes.join(","))]
    };
    for (line, code, words) in [
        (trials(32, 32), 4, "no job"),
        (trials(32, 33), 2, "more than 1024 settings and limits"),
        (trials(1025, 0), 2, "more than 1024 settings and limits"),
        (sizes(1024), 4, "no job"),
        (sizes(1025), 2, "more than 1024 sizes"),
    ] {
        let refused = memctl().args(line).args(["--daemon", &daemon.url]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
