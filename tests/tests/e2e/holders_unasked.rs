//! Holder searches that the daemon starts by itself for a site that grows. Unless something forbids it, it searches
//! once, and once more after further growth; more often only if a search ended without a result. The result is kept
//! with the job and shown with the finding. Real daemon, real agent; the test supplies the training process and its
//! answers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memctl_agent::internals::region::holders::HolderSearchRequest;
use memctl_agent::{AgentConfig, Daemon};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::streaming::until;
use memctl_tests::trainer::Trainer;
use memctl_tests::{jobs, memctl, run, run_json};
use serde_json::Value;

/// A live session of a job whose agent permits such searches and whose process has run long enough.
fn config(url: &str, job: &str, rank: u32) -> AgentConfig {
    let mut session = jobs::session(job, rank);
    session.started_ns -= 3_600_000_000_000;
    let config = AgentConfig::new(session, Daemon::Address(url.into()));
    AgentConfig { linger: Some(Duration::from_millis(5)), holders_unasked: true, ..config }
}

fn of(url: &str, verb: &str, job: &str, more: &[&str]) -> Command {
    let mut command = memctl();
    command.args([verb, "--job", job, "--daemon", url]).args(more);
    command
}

/// Answers like the Python package: a list holds all kept blocks.
fn honest(trainer: &mut Trainer, asked: &HolderSearchRequest) {
    let (blocks, tensors) = (asked.blocks.len(), trainer.kept().len());
    let bytes: u64 = asked.blocks.iter().map(|block| block.1).sum();
    let answer = serde_json::json!({
        "version": 2, "has_epochs": true, "slices": 40, "longest_ms": 2.5, "asked_blocks": blocks, "found_blocks": blocks,
        "objects": 1_200_345, "took_ms": 81.25,
        "complete": true, "not_looked_at": ["Objects of C extensions that do not tell what they refer to."],
        "holders": [{
            "kind": "list", "sentence": format!("list `KEPT` of module `__main__`, {tensors} tensors"),
            "subject": "list `KEPT` of module `__main__`", "identity": ["module `__main__`", "global `KEPT`", "list", "Tensor"],
            "chain": ["module `__main__`", "global `KEPT`", format!("list, {tensors} items"), "Tensor"],
            "blocks": blocks, "bytes": bytes, "tensors": tensors, "holder": "container", "type": "list", "name": "KEPT",
            "owner": "__main__", "length": tensors, "is_bounded": false, "limit": null, "thread": null, "threads": 0,
            "collector": null, "pattern": null, "numbers": (0..blocks).collect::<Vec<_>>()
        }]
    });
    trainer.answer(asked.ask, &answer.to_string());
}

/// The reported leak of a job, as soon as it is confirmed and `done` accepts it; the training goes on meanwhile.
fn leak(
    trainer: &mut Trainer,
    url: &str,
    job: &str,
    mut answer: impl FnMut(&mut Trainer, &HolderSearchRequest),
    done: impl Fn(&Value) -> bool,
) -> Value {
    let mut found = Value::Null;
    until("the leak is reported", || {
        let output = trainer.meanwhile(&mut of(url, "leaks", job, &["-o", "json"]), &mut answer);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        found = report["findings"][0].clone();
        // The severity depends on the time to out of memory, and so on the machine's speed.
        ["warning", "critical"].map(Value::from).contains(&found["severity"]) && done(&found)
    });
    found
}

fn not_again(_: &mut Trainer, asked: &HolderSearchRequest) {
    panic!("the trainer is asked (again): {asked:?}");
}

fn has_holders(finding: &Value) -> bool {
    finding["holders"].is_object()
}

fn words(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn growth_is_asked_about_and_once_more_when_it_has_gone_on() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    let url = daemon.url.clone();
    let mut trainer = Trainer::start(config(&url, "held", 0));
    trainer.keeps();
    let mut asks = 0;
    let mut answers = |trainer: &mut Trainer, asked: &HolderSearchRequest| {
        assert!((20..=100).contains(&asked.budget_ms), "{asked:?}");
        asks += 1;
        honest(trainer, asked);
    };
    let found = leak(&mut trainer, &url, "held", &mut answers, has_holders);
    let holders = &found["holders"];
    assert_eq!((&holders["unasked"], &holders["rank"], &holders["failure"]), (&true.into(), &0.into(), &Value::Null));
    let holder = &holders["holders"][0];
    assert_eq!(holder["chain"][1], "global `KEPT`");
    assert_eq!(
        (&holder["holder"], &holder["bound"], &holder["limit"]),
        (&"container".into(), &"unbounded".into(), &Value::Null)
    );
    assert_eq!((&holders["took_seconds"], &holders["slices"]), (&0.081_25.into(), &40.into()));
    let sentence = holders["sentence"].as_str().unwrap();
    assert!(sentence.contains(" by list `KEPT` of module `__main__`, "), "{sentence}");

    // After a quarter more growth, a second search shows whether the list has grown.
    let found =
        leak(&mut trainer, &url, "held", &mut answers, |finding| finding["holders"]["holders"][0]["pace"].is_object());
    assert_eq!(asks, 2);
    let holders = &found["holders"];
    let pace = &holders["holders"][0]["pace"];
    assert_eq!(pace["grew_with_bytes"], true, "{pace}");
    assert!(pace["length_now"].as_u64() > pace["length_before"].as_u64(), "{pace}");
    let epoch = holders["epoch"].as_u64().unwrap();
    let sentence = holders["sentence"].as_str().unwrap();
    assert!(sentence.starts_with(&format!("Held in epoch {epoch} by list ")), "{sentence}");

    // Every page and the alert have the holders; the training continues and is not searched again.
    let pages: [(&str, &[&str]); 4] = [("diagnose", &[]), ("leaks", &[]), ("query", &[]), ("report", &["--markdown"])];
    for (verb, more) in pages {
        let page = words(&trainer.meanwhile(&mut of(&url, verb, "held", more), not_again));
        // (Markdown escapes the names.)
        assert!(page.contains(" by list ") && page.contains("KEPT"), "{verb}: {page}");
    }
    let page = words(&trainer.meanwhile(&mut of(&url, "diagnose", "held", &[]), not_again));
    assert!(page.contains("module `__main__` → global `KEPT` → list, ") && !page.contains("memctl holders"), "{page}");
    until("the alert has it", || {
        let mut alerts = memctl();
        let output = trainer.meanwhile(alerts.args(["alerts", "-o", "json", "--daemon", &url]), not_again);
        String::from_utf8_lossy(&output.stdout).contains(" by list `KEPT`")
    });

    // A user requests another search: the list was counted in two epochs.
    let mut by_hand = 0;
    trainer.meanwhile(&mut of(&url, "holders", "held", &[]), |trainer, asked| {
        by_hand += 1;
        honest(trainer, asked);
    });
    assert_eq!(by_hand, 1);
    let found = leak(&mut trainer, &url, "held", not_again, |finding| finding["holders"]["unasked"] == false);
    let holder = &found["holders"]["holders"][0];
    let since = holder["since_epoch"].as_u64().unwrap();
    assert!(
        since < found["holders"]["epoch"].as_u64().unwrap()
            && holder["tensors_before"].as_u64().is_some_and(|before| Some(before) < holder["tensors"].as_u64()),
        "{holder}"
    );
    let sentence = found["holders"]["sentence"].as_str().unwrap();
    assert!(sentence.contains(&format!(" in epoch {since})")), "{sentence}");

    // A restarted daemon keeps the result and does not search again.
    assert_eq!(daemon.terminate(), 0);
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    for _ in 0..8 {
        leak(&mut trainer, &url, "held", not_again, has_holders);
    }
    trainer.end();
    let ended = run_json(&mut of(&url, "diagnose", "held", &["-o", "json"]));
    assert_eq!(ended["findings"][0]["holders"]["sentence"], sentence);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_process_that_did_not_permit_searches_is_not_searched() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let url = daemon.url.as_str();
    let mut trainer = Trainer::start(AgentConfig { holders_unasked: false, ..config(url, "plain", 0) });
    trainer.keeps();
    for _ in 0..8 {
        let found = leak(&mut trainer, url, "plain", not_again, |_| true);
        assert_eq!(found["holders"], Value::Null);
    }
    // The page names the command for a search.
    let page = words(&trainer.meanwhile(&mut of(url, "diagnose", "plain", &[]), not_again));
    assert!(page.contains("memctl holders --job plain"), "{page}");
    trainer.end();
    let page = words(&of(url, "diagnose", "plain", &[]).output().unwrap());
    assert!(!page.contains("memctl holders"), "{page}");

    // A daemon that forbids searches does not search either, even if the process permits it.
    let forbidding = tempfile::tempdir().unwrap();
    let strict = forbids(forbidding.path());
    let mut trainer = Trainer::start(config(&strict.url, "allowed", 0));
    trainer.keeps();
    for _ in 0..8 {
        leak(&mut trainer, &strict.url, "allowed", not_again, |_| true);
    }
    trainer.end();
    assert_eq!((daemon.terminate(), strict.terminate()), (0, 0));
}

fn forbids(data: &Path) -> DaemonProcess {
    let mut command = memctl();
    command.env("MEMCTL_HOLDERS", "off").arg("daemon").arg("--data-dir").arg(data);
    DaemonProcess::start(&mut command, free_port())
}

#[test]
fn of_several_ranks_only_the_first_is_searched_and_incomplete_or_failed_searches_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let url = daemon.url.as_str();
    let mut ranks = [0, 1].map(|rank| Trainer::start(config(url, "both", rank)));
    let [first, second] = &mut ranks;
    // Memory grows at the site on both ranks before the first query.
    for _ in 0..64 {
        assert_eq!((first.step(true), second.step(true)), (None, None));
    }
    first.keeps();
    second.keeps();
    let mut asked_first = 0;
    let found_nothing = |trainer: &mut Trainer, asked: &HolderSearchRequest| {
        let answer = serde_json::json!({
            "version": 2, "has_epochs": true, "slices": 40, "longest_ms": 2.5, "asked_blocks": asked.blocks.len(), "found_blocks": 0,
            "objects": 9, "took_ms": 1.0,
            "complete": false, "not_looked_at": ["The budget ended the search."], "holders": []
        });
        trainer.answer(asked.ask, &answer.to_string());
    };
    let found = leak(
        first,
        url,
        "both",
        |trainer, asked| {
            asked_first += 1;
            found_nothing(trainer, asked);
        },
        |finding| {
            assert_ne!(finding["holders"]["rank"], 1);
            has_holders(finding)
        },
    );
    // The next analysis may request another search before this one is answered.
    assert!((1..=5).contains(&asked_first), "{asked_first}");
    // The budget ended the search: it is repeated four times, then no more.
    until("it was asked five times", || {
        first.meanwhile(&mut of(url, "leaks", "both", &[]), |trainer, asked| {
            asked_first += 1;
            found_nothing(trainer, asked);
        });
        asked_first == 5
    });
    for _ in 0..8 {
        leak(first, url, "both", not_again, has_holders);
    }
    let sentence = found["holders"]["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("No Python object was found that holds these blocks; rank 0 was asked in "),
        "{sentence}"
    );
    assert!(
        sentence.ends_with("The search is not complete. Not looked at: The budget ended the search."),
        "{sentence}"
    );
    for _ in 0..8 {
        leak(second, url, "both", |_, asked| panic!("rank 1 is asked: {asked:?}"), |_| true);
    }

    // A process whose search fails.
    let mut failing = Trainer::start(config(url, "fails", 0));
    failing.keeps();
    let fails = |trainer: &mut Trainer, asked: &HolderSearchRequest| {
        trainer.answer(asked.ask, r#"{"fault": "MemoryError: none"}"#)
    };
    let found = leak(&mut failing, url, "fails", fails, has_holders);
    let failure = "the search failed in the trainer: MemoryError: none";
    assert_eq!((&found["holders"]["failure"], &found["holders"]["complete"]), (&failure.into(), &Value::Null));
    let page = words(&failing.meanwhile(&mut of(url, "diagnose", "fails", &[]), |_, _| panic!("asked again")));
    assert!(page.contains(&format!("holds these blocks and did not say: {failure}.")), "{page}");
    failing.end();
    ranks.into_iter().for_each(Trainer::end);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn the_launcher_sets_memctl_holders_for_its_command() {
    let launched = |flags: &[&str], variable: &str| {
        let data = tempfile::tempdir().unwrap();
        let mut command = memctl();
        command.args(["run", "-q", "--data-dir"]).arg(data.path()).args(flags).env("MEMCTL_HOLDERS", variable);
        run(command.args(["--", "sh", "-c", "echo $MEMCTL_HOLDERS"]))
    };
    assert_eq!(launched(&["--holders"], "off"), "on\n");
    assert_eq!(launched(&[], "off"), "off\n");
    assert_eq!(launched(&["--no-holders"], "leaks"), "off\n");
    assert_eq!(launched(&[], "on"), "on\n");
    let both = memctl().args(["run", "--holders", "--no-holders", "--", "true"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}
