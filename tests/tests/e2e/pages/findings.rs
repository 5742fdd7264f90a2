//! The whole text that `query`, `leaks`, `ranks`, `diagnose` and `assert` print about findings, for people and scripts.

use memctl_model::FindingKind;
use unicode_width::UnicodeWidthStr;

use super::{Screen, ended};

const SCREEN: Screen = Screen { columns: Some(100), unicode: true };

fn memctl(line: &str) -> String {
    let (text, result) = ended(line, SCREEN);
    result.unwrap();
    text
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(&ended(&format!("{line} -o json"), SCREEN).0).unwrap()
}

/// The exit code and its sentence.
fn failed(line: &str) -> (i32, String) {
    let failure = ended(line, SCREEN).1.unwrap_err();
    (failure.code, failure.words)
}

#[test]
fn the_note_on_an_evaluation_that_keeps_its_graph() {
    let text = memctl("diagnose --job gpt_val_graph_leak");
    insta::assert_snapshot!(text);
    assert!((24..=42).contains(&text.lines().count()), "{} lines are not one screen", text.lines().count());
}

#[test]
fn the_note_on_every_kind_says_what_to_change_and_how_to_prove_it() {
    let mut all = String::new();
    for kind in FindingKind::ALL {
        let text = memctl(&format!("diagnose --job kind/{}", kind.name()));
        assert!(text.lines().count() <= 40, "{kind:?}: {} lines", text.lines().count());
        let from = text.find("4 Which line").unwrap();
        all.push_str(&format!("## {}\n{}\n", kind.name(), &text[from..]));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn the_note_on_other_jobs() {
    insta::assert_snapshot!("clean", memctl("diagnose --job gpt_clean"));
    insta::assert_snapshot!("hidden_chain", memctl("diagnose --job lstm_hidden_chain"));
    insta::assert_snapshot!("rank0_leak", memctl("diagnose --job cnn_rank0_cache"));
    assert!(memctl("diagnose --job appended_to").contains("- self.history = torch.cat([self.history, new])"));
    insta::assert_snapshot!("unfinished", memctl("diagnose --job unfinished"));
    insta::assert_snapshot!("no_stacks", memctl("diagnose --job no_stacks"));
    insta::assert_snapshot!("one_epoch", memctl("diagnose --job one_epoch"));
    insta::assert_snapshot!("nothing_recorded", memctl("diagnose --job nothing_recorded"));
}

#[test]
fn the_note_as_data() {
    let note = json("diagnose --job gpt_val_graph_leak");
    assert_eq!((note["schema"].as_u64(), note["severity"].as_str()), (Some(2), Some("critical")));
    assert_eq!(note["questions"].as_array().unwrap().len(), 6);
    assert_eq!(note["questions"][4]["after"][0], "with torch.no_grad():");
    assert_eq!(note["usage"]["by"][0]["live_bytes"], 245 << 20);
    let proof = &note["questions"][5]["commands"];
    assert_eq!(proof[0], "memctl run --job gpt_val_graph_leak-fixed --daemon http://gpu-7:7717 -- ...");
    let page = memctl("diagnose --job gpt_val_graph_leak");
    for command in proof.as_array().unwrap() {
        assert!(page.contains(command.as_str().unwrap()), "{command}");
    }
}

#[test]
fn query_says_the_worst_first() {
    insta::assert_snapshot!("query_val_graph", memctl("query --job gpt_val_graph_leak"));
    insta::assert_snapshot!("query_clean", memctl("query --job gpt_clean"));
    insta::assert_snapshot!("query_several", memctl("query --job several"));
    assert!(memctl("query --job no_stacks").contains("no stacks were recorded"));
}

#[test]
fn a_job_that_could_not_be_judged_says_so_first_and_nowhere_that_it_is_well() {
    for verb in ["query", "leaks", "ranks", "diagnose"] {
        let text = memctl(&format!("{verb} --job one_epoch"));
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("Inconclusive: Leaks not judged"), "{verb}: {text}");
        assert!(text.contains("needs 30 steps or 3 epoch ends, found 1 epoch end"), "{verb}: {text}");
        assert!(text.contains("memctl_agent.step(number)"), "{verb}: what to do: {text}");
        for well in ["Nothing wrong", "No leak was found", "rank: none lost", "No growth was found"] {
            assert!(!text.contains(well), "{verb} says {well:?}: {text}");
        }
        let data = json(&format!("{verb} --job one_epoch"));
        assert_eq!(data["not_judged"][0]["reason"], "needs 30 steps or 3 epoch ends, found 1 epoch end", "{verb}");
        assert!(data["judged"]["ranks"].is_array(), "{verb}");
    }
    assert_eq!(json("diagnose --job one_epoch")["severity"], "inconclusive");
    for line in ["query --job one_epoch --fail-on critical", "assert --job one_epoch no-leak"] {
        let (code, words) = failed(line);
        assert_eq!(code, 1, "{line}");
        assert!(words.contains("inconclusive: needs 30 steps or 3 epoch ends, found 1 epoch end"), "{line}: {words}");
    }
    assert!(ended("query --job gpt_clean --fail-on info", SCREEN).1.is_ok(), "a job that was judged");
}

#[test]
fn what_the_note_proposes_for_a_clean_job_holds_for_it() {
    for (job, conditions) in [("gpt_clean", "--after-epoch 1"), ("late_step_up", "--after-epoch 3")] {
        let commands = json(&format!("diagnose --job {job}"))["questions"][5]["commands"].clone();
        let command = commands[0].as_str().unwrap();
        assert!(command.contains("no-leak stable 'peak<=") && command.contains(conditions), "{command}");
        let line = command.strip_prefix("memctl ").unwrap().split(" --daemon ").next().unwrap().replace('\'', "");
        assert!(ended(&line, SCREEN).1.is_ok(), "{line}");
    }
}

#[test]
fn a_job_that_failed_is_not_called_well() {
    for verb in ["query", "diagnose", "leaks"] {
        let text = memctl(&format!("{verb} --job failed_request"));
        assert!(!text.contains("Nothing wrong") && !text.contains("nothing wrong"), "{verb}: {text}");
    }
    let text = memctl("diagnose --job failed_request");
    assert!(text.contains("A request or a rank failed, and no finding explains why."), "{text}");
}

#[test]
fn a_finding_as_data() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&json("query --job gpt_val_graph_leak")["findings"]).unwrap());
}

#[test]
fn query_fails_on_request() {
    assert!(ended("query --job gpt_val_graph_leak", SCREEN).1.is_ok());
    let (code, sentence) = failed("query --job cnn_rank0_cache --fail-on warning");
    assert_eq!((code, sentence.as_str()), (1, "1 finding of severity warning or worse (--fail-on)"));
    assert!(ended("query --job cnn_rank0_cache --fail-on critical", SCREEN).1.is_ok());
    assert!(ended("query --job gpt_clean --fail-on info", SCREEN).1.is_ok());
}

#[test]
fn leaks_in_full() {
    insta::assert_snapshot!("leaks_val_graph", memctl("leaks --job gpt_val_graph_leak"));
    insta::assert_snapshot!("leaks_none", memctl("leaks --job gpt_clean"));
    let text = memctl("leaks --job several");
    assert!(text.contains("2 suspected findings not shown"), "{text}");
    assert!(!text.contains("fragmentation") && text.contains("host growth"), "{text}");
    assert_eq!(json("leaks --job several")["findings"].as_array().unwrap().len(), 2);
    assert_eq!(json("leaks --job several --all")["findings"].as_array().unwrap().len(), 4);
    assert_eq!(ended("leaks --job several --all -o csv", SCREEN).0.lines().count(), 5);
}

#[test]
fn ranks_side_by_side() {
    insta::assert_snapshot!("ranks_skewed", memctl("ranks --job cnn_rank0_cache"));
    insta::assert_snapshot!("ranks_lost", memctl("ranks --job kind/rank_lost"));
    let json = json("ranks --job cnn_rank0_cache");
    assert_eq!(json["ranks"][0]["stands_out"], serde_json::json!(["allocated_bytes", "growth_bytes_per_epoch"]));
    assert_eq!(json["spread"][0]["median_bytes"], 80 << 20);
}

#[test]
fn what_holds_holds() {
    insta::assert_snapshot!(memctl(
        "assert --job gpt_clean no-leak stable peak<181MiB peak<=180MiB fragmentation<0.7 --after-epoch 1"
    ));
}

#[test]
fn what_does_not_hold_is_exit_code_1() {
    let line = "assert --job cnn_rank0_cache no-leak stable peak<180MiB fragmentation<0.2";
    insta::assert_snapshot!(ended(line, SCREEN).0);
    let (code, sentence) = failed(line);
    assert_eq!(code, 1);
    assert_eq!(sentence, "does not hold: no-leak, stable, peak<180MiB, fragmentation<0.2");
    // Other ranks did not leak.
    assert!(ended("assert --job cnn_rank0_cache no-leak stable --rank 1-3", SCREEN).1.is_ok());
    assert_eq!(json(line)["conditions"][0]["findings"][0], "1bff5e5b500e1962");
}

#[test]
fn growth_that_no_finding_names_breaks_stable_beyond_its_tolerance() {
    // Here the rate belongs to no finding of a leak kind, so only the levels at epoch ends count.
    let report = |line: &str| ended(line, SCREEN).1.map_err(|failure| failure.to_string());
    assert!(report("assert --job kind/rank_skew stable").is_ok());
    assert_eq!(report("assert --job kind/host_growth stable").unwrap_err(), "does not hold: stable");
    assert!(report("assert --job kind/host_growth no-leak").is_ok());
    assert!(report("assert --job kind/fragmentation no-leak stable").is_ok());
}

#[test]
fn what_cannot_be_told_fails_unless_that_is_allowed() {
    for job in ["unfinished", "one_epoch", "nothing_recorded"] {
        for condition in ["no-leak", "stable"] {
            let (code, sentence) = failed(&format!("assert --job {job} {condition}"));
            assert_eq!(code, 1, "{job} {condition}");
            assert!(sentence.starts_with("inconclusive: ") && sentence.contains(condition), "{sentence}");
        }
    }
    insta::assert_snapshot!(ended("assert --job unfinished no-leak stable peak<1GiB", SCREEN).0);
    assert!(ended("assert --job unfinished no-leak peak<1GiB --allow-incomplete", SCREEN).1.is_ok());
    assert!(ended("assert --job one_epoch stable no-leak --allow-incomplete", SCREEN).1.is_ok());
    // Evidence against a condition also counts on incomplete data, and a missing figure never passes.
    assert_eq!(failed("assert --job unfinished peak<1MiB").1, "does not hold: peak<1MiB");
    assert!(ended("assert --job nothing_recorded peak<1GiB --allow-incomplete", SCREEN).1.is_err());
}

#[test]
fn no_words_from_elsewhere_steer_the_terminal_or_leave_the_screen() {
    for columns in [Some(40), Some(100), None] {
        let screen = Screen { columns, unicode: false };
        for verb in ["query", "leaks --all", "ranks", "diagnose", "assert no-leak stable --allow-incomplete"] {
            let (verb, rest) = verb.split_once(' ').unwrap_or((verb, ""));
            for job in ["hostile", "several", "no_stacks", "gpt_val_graph_leak"] {
                let text = ended(&format!("{verb} --job {job} {rest}"), screen).0;
                assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{verb} {job}: {text}");
                let wide = text.lines().filter(|line| columns.is_some_and(|columns| line.width() > columns));
                // Commands and code are never cut, because they are meant to be copied.
                let wide = wide.filter(|line| !line.contains("memctl ") && !line.starts_with("      "));
                assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new(), "{verb} {job} on {columns:?} columns");
            }
        }
    }
}
