//! Explanations of memory, on the bundled recordings through real binaries: fragmentation, out of memory, churn, the
//! ledger.

use memctl_answers::ledger::{Ledger, Listed, Rank};
use memctl_answers::wire::from_wire;
use memctl_proto::v1::query_client::QueryClient;
use memctl_proto::v1::{LedgerRequest, Selection, ledger_request::Moment};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::{NAMES, folder, truth};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;
use tonic::transport::Channel;

/// A daemon on a separate store with all recordings.
struct Imported {
    daemon: DaemonProcess,
    _folder: tempfile::TempDir,
}

fn import(names: &[&str]) -> Imported {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    for name in names {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
    }
    Imported { daemon, _folder: store }
}

fn ask(verb: &str, imported: &Imported, name: &str) -> Value {
    run_json(memctl().args([verb, "-o", "json", "--daemon", &imported.daemon.url, "--job", name]))
}

fn findings(answer: &Value) -> &Vec<Value> {
    answer["findings"].as_array().expect("findings")
}

#[test]
fn fragmentation_is_found_where_it_is_and_nowhere_else() {
    let imported = import(&NAMES);
    for name in NAMES {
        let answer = ask("frag", &imported, name);
        let found = findings(&answer);
        match name {
            "gpt_varlen_fragmentation" => check_varying(&answer),
            "oom_by_fragmentation" => check_failed(&answer),
            _ => assert!(found.is_empty(), "{name}: {found:#?}"),
        }
        let ranks = answer["ranks"].as_array().expect("ranks");
        assert_eq!(ranks.len(), 4, "{name}");
        ranks.iter().enumerate().for_each(|(rank, report)| check_sums(name, rank, report));
    }
}

/// Asserts that the bytes add up, and that the peak of reserved memory equals the training loop's.
fn check_sums(name: &str, rank: usize, report: &Value) {
    let bytes = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{name}: {key}"));
    let free = bytes("empty_segment_bytes") + bytes("stranded_bytes");
    assert_eq!(bytes("reserved_bytes"), bytes("active_bytes") + free, "{name} rank {rank}");
    let in_lists: u64 =
        report["free_lists"].as_array().unwrap().iter().map(|list| list["free_bytes"].as_u64().unwrap()).sum();
    assert_eq!(in_lists, free, "{name} rank {rank}");
    let truth = truth(name, rank);
    let most = truth["epochs"].as_array().unwrap().iter().map(|epoch| epoch["peak_reserved"].as_u64().unwrap()).max();
    assert!(Some(bytes("reserved_bytes")) <= most, "{name} rank {rank}");
    let shares = report["unusable_free"].as_array().unwrap().iter().map(|point| point["unusable"].as_f64().unwrap());
    assert!(shares.clone().all(|share| (0.0..=1.0).contains(&share)), "{name} rank {rank}");
}

fn check_varying(answer: &Value) {
    let [found] = findings(answer).as_slice() else { panic!("one finding: {answer:#}") };
    assert_eq!(found["kind"], "fragmentation");
    assert!(["info", "warning"].contains(&found["severity"].as_str().unwrap()));
    assert_eq!((&found["all_ranks"], &found["evidence"]["cause"]), (&Value::Bool(true), &Value::from("varying_sizes")));
    insta::assert_snapshot!(found["title"].as_str().unwrap(), @"All 4 ranks hold 2.73 to 5.04 GiB each for steps of typically 452 to 640 MiB and at most 2.09 to 2.51 GiB: request sizes vary from step to step, mostly in forward (common.py:53)");
    assert!(!found["advice"].as_str().unwrap().contains("expandable_segments"), "no setting without its bytes");
    for rank in answer["ranks"].as_array().unwrap() {
        assert_eq!(rank["cause"], "varying_sizes");
        assert!(rank["varying_share"].as_f64().unwrap() > 0.9, "nearly all sizes of this job vary");
    }
}

fn check_failed(answer: &Value) {
    let [found] = findings(answer).as_slice() else { panic!("one finding: {answer:#}") };
    assert_eq!((found["severity"].as_str(), found["all_ranks"].as_bool()), (Some("info"), Some(true)));
    insta::assert_snapshot!(found["title"].as_str().unwrap(), @"A request for 1.00 GiB failed on all 4 ranks although 1.18 GiB were free in the cache, in holes of at most 4.61 MiB beside 300 live blocks of oom_by_fragmentation (scenarios.py:93)");
    assert_eq!(found["site"]["function"], "oom_by_fragmentation");
    let holder = &answer["ranks"][0]["held_by"][0];
    assert_eq!((holder["live_blocks"].as_u64(), holder["live_bytes"].as_u64()), (Some(300), Some(300 << 22)));
}

#[test]
fn out_of_memory_is_explained_with_its_arithmetic() {
    let imported = import(&["oom_by_fragmentation", "gpt_clean"]);
    assert_eq!(ask("oom", &imported, "gpt_clean")["failures"], Value::Array(Vec::new()));
    let answer = ask("oom", &imported, "oom_by_fragmentation");
    assert_eq!(answer["failed"], 4);
    let failures = answer["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 4);
    for failed in failures {
        let rank = failed["rank"].as_u64().unwrap() as usize;
        let truth = &truth("oom_by_fragmentation", rank)["epochs"][0];
        let bytes = |key: &str| failed[key].as_u64().unwrap_or_else(|| panic!("{key} of rank {rank}"));
        assert_eq!(failed["cause"], "fragmentation");
        assert_eq!((bytes("asked_bytes"), failed["site"]["line"].as_u64()), (1 << 30, Some(95)));
        // The values that the loop read directly after the failure.
        assert_eq!(bytes("reserved_bytes"), truth["reserved"].as_u64().unwrap());
        assert_eq!(bytes("allocated_bytes"), truth["allocated"].as_u64().unwrap());
        assert_eq!(bytes("free_in_cache_bytes"), bytes("reserved_bytes") - bytes("allocated_bytes"));
        assert!(bytes("free_in_cache_bytes") > bytes("asked_bytes"), "there were enough bytes");
        assert!(bytes("largest_usable_bytes") < 5 << 20, "in holes of 4 MiB and little more");
        // The cap was 3 GiB; the events bound it to an interval.
        assert!(bytes("limit_at_least_bytes") <= 3 << 30 && bytes("limit_below_bytes") > 3 << 30);
        let classes: u64 =
            failed["classes"].as_array().unwrap().iter().map(|class| class["live_bytes"].as_u64().unwrap()).sum();
        assert_eq!(classes, bytes("allocated_bytes"), "classes sum to what is allocated");
    }
    let [found] = findings(&answer).as_slice() else { panic!("one finding over the ranks: {answer:#}") };
    assert_eq!((found["severity"].as_str(), found["all_ranks"].as_bool()), (Some("critical"), Some(true)));
    insta::assert_snapshot!(found["title"].as_str().unwrap(), @"Out of memory on all 4 ranks in epoch 0: 1.00 GiB requested in oom_by_fragmentation (scenarios.py:95), 1.18 GiB are free in the cache, but in blocks of at most 4.61 MiB: fragmentation");
    insta::assert_snapshot!(found["advice"].as_str().unwrap(), @"300 blocks of oom_by_fragmentation (scenarios.py:93) lie between the holes: free them together, keep them in one tensor, or allocate the large tensor first; `memctl what-if --job 'oom_by_fragmentation#1'` replays the job under other allocator settings.");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_sums_and_knows_what_most_of_it_is_for() {
    let imported = tokio::task::spawn_blocking(|| import(&["gpt_clean", "cnn_rank0_cache"])).await.unwrap();
    let channel = Channel::from_shared(imported.daemon.url.clone()).unwrap().connect().await.unwrap();
    for moment in [Moment::Peak(true), Moment::EpochEnd(2), Moment::End(true)] {
        for name in ["gpt_clean", "cnn_rank0_cache"] {
            for listed in ledger(&channel, name, moment).await {
                let rank = &listed.rank;
                let classes: u64 = rank.classes.iter().map(|class| class.live_bytes).sum();
                assert_eq!(classes, rank.allocated_bytes, "{name} {moment:?}");
                // Recordings have no data of the device, and the ledger does not invent it.
                assert_eq!((rank.device_used_bytes, rank.unexplained_bytes, rank.context_bytes), (None, None, None));
                check_blocks(&listed);
                check_truth(name, moment, rank);
            }
        }
    }
    // TinyGPT under AdamW: 53 parameters, 28.6 MiB; two moments each, and the gradients in the reducer's buckets.
    let end = &ledger(&channel, "gpt_clean", Moment::EpochEnd(2)).await[0].rank;
    let of = |class: &str| end.classes.iter().find(|found| found.class == class).map_or(0, |found| found.live_bytes);
    let parameters = of("parameters");
    assert!((28 << 20..30 << 20).contains(&parameters), "{:?}", end.classes);
    assert!(of("optimizer_state").abs_diff(2 * parameters) < 1 << 20, "{:?}", end.classes);
    assert!(of("gradients").abs_diff(parameters) < 1 << 20, "{:?}", end.classes);
    let peak = &ledger(&channel, "gpt_clean", Moment::Peak(true)).await[0].rank;
    let most = peak.classes.iter().max_by_key(|class| class.live_bytes).unwrap();
    assert_eq!(most.class, "activations", "{:?}", peak.classes);
}

async fn ledger(channel: &Channel, name: &str, moment: Moment) -> Vec<Listed> {
    let selection = Some(Selection { job: name.into(), ..Selection::default() });
    let request = LedgerRequest { selection, moment: Some(moment), blocks: true };
    let answer = QueryClient::new(channel.clone()).get_ledger(request).await.expect("a ledger");
    let ranks = from_wire::<Ledger>(answer.get_ref()).unwrap().ranks;
    assert_eq!(ranks.len(), 4);
    ranks
}

fn check_blocks(Listed { rank, blocks }: &Listed) {
    let blocks = blocks.as_ref().expect("they were requested");
    assert_eq!(rank.blocks_left_out, 0);
    assert!(blocks.windows(2).all(|pair| pair[0].address + pair[0].bytes <= pair[1].address), "they do not overlap");
    for class in &rank.classes {
        let of_class = blocks.iter().filter(|block| block.class == class.class);
        assert_eq!(of_class.map(|block| block.bytes).sum::<u64>(), class.live_bytes, "{}", class.class);
    }
    assert_eq!(blocks.iter().map(|block| block.bytes).sum::<u64>(), rank.allocated_bytes);
    assert!(blocks.iter().any(|block| block.site.as_ref().is_some_and(|site| site.file.ends_with("common.py"))));
}

fn check_truth(name: &str, moment: Moment, rank: &Rank) {
    let truth = truth(name, rank.rank as usize);
    let epochs = truth["epochs"].as_array().unwrap();
    let (allocated, reserved) = match moment {
        Moment::EpochEnd(epoch) => ("allocated", epochs[epoch as usize]["reserved"].as_u64()),
        _ => return,
    };
    let Moment::EpochEnd(epoch) = moment else { return };
    assert_eq!((rank.epoch, Some(rank.step)), (epoch, Some(8 * u64::from(epoch) + 7)), "8 steps an epoch");
    assert_eq!(Some(rank.allocated_bytes), epochs[epoch as usize][allocated].as_u64(), "{name} rank {}", rank.rank);
    assert_eq!(Some(rank.allocated_bytes + rank.cached_bytes), reserved, "{name} rank {}", rank.rank);
}
