//! Jobs that could not be judged, whole or in part: no page, JSON or exit code of any command states or implies that
//! they have no problem. The commands are those that the command line itself lists; an unknown one fails the test.
//!
//! (Over 400 lines: a table of commands, with the expected output of each for each kind of job.)
//!
//! The test searches for the words of an all-clear; a job without a problem shows that these words are in use.

use std::collections::BTreeSet;
use std::path::Path;

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::jobs::{self, Training, record, session};
use memctl_tests::recordings::folder;
use memctl_tests::{commands_in, memctl, run, stderr, stdout};
use serde_json::Value;

/// A command: its queries, or none if its output is not about a job's state.
enum Verb {
    Asked(&'static [&'static [&'static str]]),
    Silent,
}

use Verb::{Asked, Silent};

const VERBS: [(&str, Verb); 37] = [
    // It has its own recorded job; its golden page tests the output.
    ("demo", Silent),
    // A page in a browser, made of the responses below; it has its own tests.
    ("ui", Silent),
    // Made of the responses below, for assistants; it has its own tests.
    ("mcp", Silent),
    ("run", Silent),
    ("daemon", Silent),
    ("import", Silent),
    ("jobs", Asked(&[&["jobs"], &["jobs", "--state", "finished"]])),
    ("query", Asked(&[&["query"]])),
    ("leaks", Asked(&[&["leaks"], &["leaks", "--all"]])),
    ("ranks", Asked(&[&["ranks"]])),
    ("frag", Asked(&[&["frag"]])),
    ("oom", Asked(&[&["oom"]])),
    ("ledger", Asked(&[&["ledger"], &["ledger", "--end"]])),
    ("diagnose", Asked(&[&["diagnose"]])),
    ("assert", Asked(&[&["assert", "no-leak", "stable", "growth<1GiB/epoch"], &["assert", "--against", "well"]])),
    ("timeline", Asked(&[&["timeline"]])),
    ("sites", Asked(&[&["sites"], &["sites", "--peak"], &["sites", "--peak", "--epoch", "0.."], &["sites", "--end"]])),
    ("alerts", Asked(&[&["alerts"], &["alerts", "--firing"]])),
    (
        "export",
        Asked(&[
            &["export", "--format", "csv"],
            &["export", "--format", "folded"],
            &["export", "--format", "memory-viz", "-f", "out.pickle"],
        ]),
    ),
    // Made of the responses above; it shows their words and gaps in its own formats.
    ("report", Silent),
    // About settings, which are not judged.
    ("what-if", Silent),
    // About the memory that is needed, whatever it is used for.
    ("need", Silent),
    ("fit", Silent),
    // They compare figures; a figure that one side lacks is not compared. They have their own tests.
    ("diff", Silent),
    ("baseline", Silent),
    // About the holders of a running process, which are not judged.
    ("holders", Silent),
    // About the installation, not about a job.
    ("doctor", Silent),
    ("node", Silent),
    ("spool", Silent),
    ("delete", Silent),
    ("completions", Silent),
    ("token", Silent),
    ("backup", Silent),
    ("restore", Silent),
    ("check", Silent),
    ("audit", Silent),
    ("version", Silent),
];
/// Subcommands of `alerts`; none of them is about a job's state.
const ALERTS: [&str; 5] = ["test", "silence", "unsilence", "silences", "rules"];
/// The data that decides a condition of `assert`.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The analysis of growth.
    Growth,
    /// The allocator's counters, without events.
    Counters,
    /// Events.
    Events,
}

/// The conditions of `assert`.
const CONDITIONS: [(&str, By); 11] = [
    ("no-leak", By::Growth),
    ("no-oom", By::Events),
    ("no-findings", By::Growth),
    ("stable", By::Growth),
    ("peak<1TiB", By::Counters),
    ("peak_reserved<1TiB", By::Counters),
    ("reserved/allocated<100", By::Counters),
    ("growth<1GiB/epoch", By::Growth),
    ("growth<1GiB/step", By::Growth),
    ("growth<1GiB/minute", By::Growth),
    ("unused<0.999", By::Counters),
];

/// Words of an all-clear about growth, about the layout of blocks, and about completeness.
const NO_GROWTH: [&str; 7] = [
    "Nothing wrong was found",
    "live memory was flat",
    "no leak was found",
    "rank: none lost",
    "Nothing needs to be changed",
    " at every one of 8 epoch ends",
    "None: there is no finding",
];
const BLOCKS_WELL: [&str; 4] = ["No significant fragmentation", "no churn", "No request failed", "Real demand"];
const ALL_KNOWN: [&str; 1] = ["Exact: all"];

/// The data that is known about a job.
#[derive(Clone, Copy, Debug)]
struct JobKnowledge {
    job: &'static str,
    /// Whether growth can be judged.
    growth: bool,
    /// Whether single blocks can be judged.
    blocks: bool,
    /// Whether a steady state was seen.
    steady: bool,
    /// Whether any level was recorded.
    levels: bool,
    /// Whether retention deleted something.
    expired: bool,
}

const ALL: JobKnowledge =
    JobKnowledge { job: "well", growth: true, blocks: true, steady: true, levels: true, expired: false };

struct CommandOutput {
    page: String,
    beside: String,
    code: Option<i32>,
}

fn ask(url: &str, words: &[&str], place: &Path) -> CommandOutput {
    let output = memctl().args(words).args(["--daemon", url]).current_dir(place).output().expect("memctl starts");
    CommandOutput { page: stdout(&output), beside: stderr(&output), code: output.status.code() }
}

/// The commands that a help page lists.
fn listed(words: &[&str]) -> BTreeSet<String> {
    commands_in(&run(memctl().args(words).arg("--help"))).into_iter().collect()
}

fn set<'a>(words: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    words.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_command_of_the_command_line_is_asked_here() {
    assert_eq!(listed(&[]), set(VERBS.iter().map(|(name, _)| *name)), "a verb that says nothing here of unjudged jobs");
    assert_eq!(listed(&["alerts"]), set(ALERTS));
    let help = run(memctl().args(["assert", "--help"]));
    let (_, conditions) = help.split_once("Conditions:\n").expect("a list of conditions");
    let names = |text: &str| text.trim_matches('\'').split('<').next().unwrap_or_default().to_owned();
    let documented =
        conditions.lines().take_while(|line| line.starts_with("  ")).filter(|line| line.trim().contains("  "));
    // (Conditions about another job have their own tests.)
    let documented = documented.filter(|line| !line.contains("with --against"));
    let documented: BTreeSet<String> =
        documented.filter_map(|line| line.split_whitespace().next()).map(names).collect();
    assert_eq!(documented, CONDITIONS.iter().map(|(condition, _)| names(condition)).collect::<BTreeSet<_>>());
}

/// Words that must not occur in any output about the job.
fn forbidden(known: JobKnowledge) -> Vec<&'static str> {
    let mut words = Vec::new();
    if !known.growth {
        words.extend(NO_GROWTH);
        // Words that are used for jobs other than the one without a problem: without epoch ends, or with growth that
        // ends.
        words.extend(["No growth was found", "No unbounded growth", " at every one of "]);
    }
    if !known.blocks {
        words.extend(BLOCKS_WELL);
    }
    if !known.steady {
        words.push("no churn");
    }
    if known.expired || !known.blocks {
        words.extend(ALL_KNOWN);
    }
    if !known.levels {
        // Levels that were never measured, at a time without data.
        words.extend([" 0 B ", "1970-01-01"]);
    }
    words
}

fn sweep(url: &str, known: JobKnowledge, place: &Path) {
    for (verb, asked) in &VERBS {
        let Asked(questions) = asked else { continue };
        for words in *questions {
            for format in ["table", "json", "ndjson", "csv"] {
                if *verb == "export" && format != "table" {
                    continue;
                }
                let narrow: &[&str] = if ["jobs", "alerts"].contains(verb) { &[] } else { &["--job", known.job] };
                let said = ask(url, &[words, narrow, &["-o", format]].concat(), place);
                check(known, verb, words, format, &said);
            }
        }
    }
    conditions(url, known, place);
    for severity in ["info", "warning", "critical"] {
        let said = ask(url, &["query", "--job", known.job, "--fail-on", severity], place);
        if !known.growth {
            assert_eq!(said.code, Some(1), "{known:?}: {severity}: {}", said.beside);
            let found = said.beside.contains(&format!("finding of severity {severity} or worse"));
            assert!(found || said.beside.contains("inconclusive: "), "{known:?}: {}", said.beside);
        }
    }
}

fn check(known: JobKnowledge, verb: &str, words: &[&str], format: &str, said: &CommandOutput) {
    let context = format!("{} of {known:?} as {format}:\n{}\n{}", words.join(" "), said.page, said.beside);
    let about_many = ["jobs", "alerts"].contains(&verb);
    for word in forbidden(known).into_iter().filter(|_| !about_many) {
        assert!(!said.page.contains(word), "{word:?} is said: {context}");
    }
    // If data has expired, live memory at the end is unknown, so a folded export is refused.
    let folded = words.contains(&"folded");
    let refuses = verb == "export" && (!known.blocks || folded && known.expired)
        || known.expired && (words.contains(&"--peak") || words == ["ledger"] && known.blocks);
    // If more was judged in the other job, the absence of new findings means nothing.
    let fails = verb == "assert" && (!known.growth || known.expired || !known.blocks && words.contains(&"--against"));
    match (refuses, fails) {
        (true, _) => {
            assert_eq!((said.code, said.page.as_str()), (Some(5), ""), "it refuses: {context}");
            let why = if known.expired && !folded { "retention removed" } else { "nothing was written" };
            assert!(said.beside.contains(why), "{context}");
        }
        (false, true) => assert_eq!(said.code, Some(1), "{context}"),
        (false, false) => assert_eq!(said.code, Some(0), "{context}"),
    }
    if refuses {
        return;
    }
    match format {
        "table" => page(known, verb, &said.page, &context),
        "json" => json(known, verb, &said.page, &context),
        _ => {}
    }
    if verb == "export" && known.expired {
        assert!(said.beside.contains("the export is incomplete: retention removed"), "{context}");
    }
    if fails && format == "table" {
        // Conditions on counters may hold; conditions on findings may not.
        let held = said.page.lines().filter(|line| line.starts_with("holds  "));
        let by_findings =
            |line: &&str| ["no-leak", "stable", "growth<", "findings against"].iter().any(|word| line.contains(word));
        assert_eq!(held.filter(by_findings).count(), 0, "{context}");
    }
}

/// Asserts the required text of a page about the job.
fn page(known: JobKnowledge, verb: &str, page: &str, context: &str) {
    let first = page.lines().next().unwrap_or_default();
    if !known.growth && ["query", "leaks", "ranks", "diagnose"].contains(&verb) {
        // Past growth is a fact, even if it is unknown whether it would continue.
        assert!(first.starts_with("Inconclusive: ") || first.starts_with("Live memory has grown "), "{context}");
        assert!(page.contains("What to do:") || first.starts_with("Live memory has grown "), "{context}");
        assert!(!page.contains("et it run "), "it has ended: {context}");
    }
    if !known.blocks && ["frag", "oom"].contains(&verb) {
        assert!(first.starts_with("Inconclusive: "), "{context}");
    }
    if !known.blocks && (["ledger", "timeline"].contains(&verb) || verb == "sites" && !known.expired) {
        assert!(page.contains("No allocator event of this part of the job is stored, so "), "{context}");
    }
    if known.expired && ["query", "leaks", "ranks", "frag", "oom", "diagnose"].contains(&verb) {
        let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("removed by retention"), "{context}");
        assert!(page.contains("NOT EXACT: ") || !known.blocks, "{context}");
    }
    if verb == "alerts" {
        assert!(page.contains("No alert.\n") && page.contains(" stored"), "{context}");
        assert_eq!(!known.growth, not_judged_list(page).contains(&known.job.to_owned()), "{context}");
    }
    if verb == "jobs" {
        let row = page.lines().find(|line| line.split_whitespace().any(|word| word == known.job)).expect("its row");
        let is_open = row.contains("inconclusive") || row.contains("growing");
        assert_eq!(!known.growth, is_open, "{context}");
    }
}

/// The jobs after `Not judged: ` on a page.
fn not_judged_list(page: &str) -> Vec<String> {
    let list =
        page.split_once("Not judged: ").and_then(|(_, rest)| rest.split_once(".\n")).map_or("", |(list, _)| list);
    list.split(',').map(|job| job.trim().to_owned()).collect()
}

/// Asserts the required fields of JSON about the job.
fn json(known: JobKnowledge, verb: &str, text: &str, context: &str) {
    let json: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {context}"));
    let lacks = |kind: &str| {
        let gaps = json["not_judged"].as_array().unwrap_or_else(|| panic!("no list: {context}"));
        assert!(gaps.iter().all(|gap| gap["reason"].as_str().is_some_and(|reason| !reason.is_empty())), "{context}");
        gaps.iter().any(|gap| gap["kind"] == kind && gap["gap"] == "whole")
    };
    if ["query", "leaks", "ranks", "diagnose"].contains(&verb) {
        assert_eq!(!known.growth, lacks("leak"), "{context}");
        assert_eq!(
            !known.growth,
            json["not_judged"].as_array().is_some_and(|gaps| gaps.iter().any(|gap| gap["decides"] == true)),
            "{context}"
        );
        assert_eq!(!known.blocks, lacks("fragmentation"), "{context}");
        assert_eq!(!known.blocks, lacks("oom"), "{context}");
    }
    if verb == "frag" {
        assert_eq!(!known.blocks, lacks("fragmentation"), "{context}");
        assert_eq!(!known.steady, lacks("churn"), "{context}");
    }
    if verb == "oom" {
        assert_eq!(!known.blocks, lacks("oom"), "{context}");
    }
    if verb == "ledger" {
        assert!(lacks("outside_allocator") && lacks("foreign_process"), "nothing measures the device: {context}");
        for rank in json["ranks"].as_array().expect("ranks") {
            assert!(rank["context_bytes"].is_null() && rank["unexplained_bytes"].is_null(), "{context}");
        }
    }
    if ["query", "ranks"].contains(&verb) && !known.levels {
        let rank = &json["ranks"][0];
        assert!(rank["allocated_bytes"].is_null() && rank["peak_reserved_bytes"].is_null(), "{context}");
    }
    if verb != "jobs" && verb != "alerts" && verb != "assert" {
        let completeness = &json["completeness"];
        assert_eq!(known.expired, completeness["exact"] == false, "{context}");
        assert_eq!(!known.blocks, completeness["events_stored"] == 0, "{context}");
    }
    if verb == "diagnose" && !known.growth {
        assert_ne!(json["severity"], "none", "{context}");
    }
    if verb == "jobs" {
        let job = json["jobs"].as_array().expect("jobs").iter().find(|job| job["id"] == known.job).expect("the job");
        assert_eq!(!known.growth, job["verdict"]["inconclusive"].is_string(), "{context}");
    }
    if verb == "alerts" {
        let names = json["jobs"]["not_judged"].as_array().expect("names");
        assert_eq!(!known.growth, names.contains(&Value::from(known.job)), "{context}");
    }
}

/// Asserts each condition separately, so that other conditions do not decide the exit code.
fn conditions(url: &str, known: JobKnowledge, place: &Path) {
    for (condition, by) in CONDITIONS {
        let decided = match by {
            By::Growth => known.growth,
            By::Counters => true,
            By::Events => known.blocks,
        };
        let can_hold = !known.expired && known.levels && decided;
        let said = ask(url, &["assert", "--job", known.job, condition], place);
        let context = format!("{condition} of {known:?}: {}{}", said.page, said.beside);
        assert_eq!(said.code, Some(i32::from(!can_hold)), "{context}");
        assert_eq!(can_hold, said.page.contains("holds  ") && !said.page.contains("does not hold"), "{context}");
        let says_why = said.beside.contains("inconclusive") || said.beside.contains("does not hold");
        assert!(can_hold || says_why, "{context}");
    }
}

#[test]
fn no_command_implies_that_an_unjudged_job_is_well() {
    let (store, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let steady = Training::default();
    let short = Training { epochs: 1, kept_a_step: 1 << 20, ..steady };
    record(&daemon.url, session("well", 0), |agent| jobs::train(agent, steady));
    record(&daemon.url, session("short", 0), |agent| jobs::train(agent, short));
    record(&daemon.url, session("stackless", 0), |agent| jobs::train(agent, Training { stacks: false, ..short }));
    record(&daemon.url, session("counted", 0), |agent| jobs::train_counted(agent, 8, 0));
    record(&daemon.url, session("counted-short", 0), |agent| jobs::train_counted(agent, 1, 0));
    record(&daemon.url, session("empty", 0), |_| {});
    sweep(&daemon.url, JobKnowledge { job: "short", growth: false, steady: false, ..ALL }, place.path());
    sweep(&daemon.url, JobKnowledge { job: "stackless", growth: false, steady: false, ..ALL }, place.path());
    let counted = JobKnowledge { job: "counted", blocks: false, steady: false, ..ALL };
    sweep(&daemon.url, counted, place.path());
    sweep(&daemon.url, JobKnowledge { job: "counted-short", growth: false, ..counted }, place.path());
    sweep(&daemon.url, JobKnowledge { job: "empty", growth: false, levels: false, ..counted }, place.path());
    words_are_in_use(&daemon.url, place.path());
    daemon.terminate();
}

/// Asserts that the words are used for a job without a problem, because a search for obsolete words would find nothing.
fn words_are_in_use(url: &str, place: &Path) {
    sweep(url, ALL, place);
    let asked =
        VERBS.iter().filter_map(|(_, asked)| if let Asked(questions) = asked { Some(*questions) } else { None });
    let one = asked.flatten().filter(|words| !["jobs", "alerts", "export"].contains(&words[0]));
    let pages: String = one.map(|words| ask(url, &[words, &["--job", "well"][..]].concat(), place).page).collect();
    let words = NO_GROWTH.into_iter().chain(BLOCKS_WELL).chain(ALL_KNOWN);
    let unused: Vec<&str> = words.filter(|word| !pages.contains(word)).collect();
    assert!(unused.is_empty(), "no page says {unused:?}: {pages}");
}

#[test]
fn what_retention_took_is_said_and_not_made_up() {
    for (job, blocks) in [("part", true), ("gone", false)] {
        let (store, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let daemon = DaemonProcess::sqlite(store.path(), free_port());
        record(&daemon.url, session(job, 0), |agent| jobs::train_long(agent, 8, 20_000));
        let (daemon, _store) = match blocks {
            true => jobs::expired_to_a_keyframe(daemon, store.path(), job),
            false => (jobs::expired(daemon, store.path(), job, 0), store),
        };
        record(&daemon.url, session("well", 0), |agent| {
            jobs::train(agent, Training::default());
        });
        sweep(&daemon.url, JobKnowledge { job, blocks, steady: false, expired: true, ..ALL }, place.path());
        daemon.terminate();
    }
}

/// The count of failed requests outlives their events.
#[test]
fn a_failure_whose_events_retention_took_is_still_reported() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "j"]).arg(folder("oom_by_fragmentation")));
    let daemon = jobs::expired(daemon, store.path(), "j", 0);
    let said = ask(&daemon.url, &["query", "--job", "j"], store.path());
    assert!(said.page.starts_with("All 4 ranks ran out of memory (4 failed requests)"), "{}", said.page);
    let said = ask(&daemon.url, &["diagnose", "--job", "j"], store.path());
    assert!(said.page.contains("All 4 ranks ran out of memory"), "{}", said.page);
    daemon.terminate();
}

/// If only the whole job can be judged, a response about a part of it is inconclusive.
#[test]
fn one_epoch_of_a_job_that_leaks_is_inconclusive() {
    let (store, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "j"]).arg(folder("cnn_rank0_cache")));
    for verb in ["query", "leaks", "ranks", "diagnose"] {
        let asked = [verb, "--job", "j", "--epoch", "0"];
        let said = ask(&daemon.url, &asked, place.path());
        assert_eq!(said.code, Some(0), "{verb}");
        let mut lines = said.page.lines();
        assert!(lines.next().is_some_and(|range| range.starts_with("Only epoch 0: ")), "{}", said.page);
        let first = lines.next().unwrap_or_default();
        assert!(
            first.starts_with("Inconclusive: ") && first.contains("needs 30 steps or 3 epoch ends, found"),
            "{}",
            said.page
        );
        let json = ask(&daemon.url, &[&asked[..], &["-o", "json"]].concat(), place.path()).page;
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let gaps = json["not_judged"].as_array().expect("not_judged");
        assert!(gaps.iter().any(|not| not["decides"] == true && not["kind"] == "leak"), "{verb}: {json:#}");
    }
    let said = ask(&daemon.url, &["query", "--job", "j", "--epoch", "0", "--fail-on", "info"], place.path());
    assert_eq!(said.code, Some(1));
    assert!(said.beside.contains("inconclusive: needs 30 steps or 3 epoch ends, found"), "{}", said.beside);
    for condition in ["no-leak", "stable", "growth<1MiB/epoch", "growth<1MiB/step", "growth<1MiB/minute"] {
        let said = ask(&daemon.url, &["assert", "--job", "j", "--epoch", "0", condition], place.path());
        assert_eq!(said.code, Some(1), "{condition}: {}", said.page);
        assert!(said.beside.contains("inconclusive"), "{condition}: {}", said.beside);
    }
    // The whole job can be judged, so the same words would be wrong.
    assert!(!ask(&daemon.url, &["query", "--job", "j"], place.path()).page.contains("Inconclusive"));
    daemon.terminate();
}
