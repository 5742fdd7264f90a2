//! `memctl holders` from the command line into a training process and back: real daemon, real agent, real launcher; the
//! test supplies the training process and its responses.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use memctl_agent::credentials::{Credentials, TokenSource};
use memctl_agent::host::{Host, HostConfig, Limits};
use memctl_agent::internals::region::holders::HolderSearchRequest;
use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_model::SessionInfo;
use memctl_proto::item::Packed;
use memctl_proto::v1;
use memctl_proto::v1::HolderSearch;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::holders_answer::Body;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::raw::{self, Stream};
use memctl_tests::streaming::until;
use memctl_tests::trainer::{KEPT, Trainer, list_holds};
use memctl_tests::{jobs, memctl, run, run_json, stderr, stdout};
use serde_json::Value;
use tonic::transport::Endpoint;

/// A live session of a job, and the settings of its agent.
fn config(url: &str, job: &str) -> AgentConfig {
    let config = AgentConfig::new(jobs::session(job, 0), Daemon::Address(url.into()));
    AgentConfig { linger: Some(Duration::from_millis(5)), ..config }
}

fn holders(url: &str, job: &str, more: &[&str]) -> Command {
    let mut command = memctl();
    command.args(["holders", "--job", job, "--daemon", url]).args(more);
    command
}

/// Answers like the Python package.
fn honest(trainer: &mut Trainer, asked: &HolderSearchRequest) {
    trainer.answer(asked.ask, &list_holds(asked));
}

fn no_answer(_: &mut Trainer, asked: &HolderSearchRequest) {
    panic!("the trainer is asked: {asked:?}");
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).expect("JSON")
}

/// Waits until the daemon has found the growth.
fn until_found(url: &str, job: &str) {
    until("the growth is found", || {
        let mut leaks = memctl();
        let found = leaks.args(["leaks", "--job", job, "--daemon", url, "-o", "json"]).output().expect("it starts");
        found.status.success() && json(&found)["findings"].as_array().is_some_and(|found| !found.is_empty())
    });
}

#[test]
fn a_running_process_says_what_holds_its_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let mut trainer = Trainer::start(config(&daemon.url, "held"));
    trainer.leak();
    until_found(&daemon.url, "held");

    let mut asked_about = Vec::new();
    let answer = json(&trainer.meanwhile(&mut holders(&daemon.url, "held", &["-o", "json"]), |trainer, asked| {
        assert_eq!(asked.budget_ms, 100);
        asked_about.clone_from(&asked.blocks);
        honest(trainer, asked);
    }));
    assert!(asked_about.len() >= 64, "{asked_about:?}");
    assert_eq!(asked_about, trainer.kept()[..asked_about.len()], "the blocks that are kept, oldest first");
    let asked = asked_about.len() as u64;
    assert_eq!((&answer["schema"], &answer["rank"], &answer["process"]), (&2.into(), &0.into(), &"rank 0".into()));
    assert_eq!((&answer["site"]["function"], &answer["site"]["line"]), (&"keep".into(), &17.into()));
    assert!(answer["finding"].as_str().is_some_and(|id| id.len() == 16), "{answer}");
    let live = answer["live_blocks"].as_u64().unwrap();
    assert!(live >= asked && answer["live_bytes"] == live * KEPT, "{answer}");
    assert_eq!((&answer["asked_blocks"], &answer["found_blocks"]), (&asked.into(), &asked.into()));
    assert_eq!((&answer["took_seconds"], &answer["budget_seconds"]), (&0.081_25.into(), &0.1.into()));
    assert_eq!(answer["holders"][0]["chain"][1], "global `KEPT`");

    // Another budget, and a site named in every form. A site that frees its blocks has no holder.
    for site in ["keep", "train.py:17", "/home/me/train.py:17", "keep (train.py:17)"] {
        let mut command =
            holders(&daemon.url, "held", &["--rank", "0", "--site", site, "--budget", "2s", "-o", "json"]);
        let answer = json(&trainer.meanwhile(&mut command, |trainer, asked| {
            assert!(asked.budget_ms == 2_000 && asked.blocks.len() >= 64, "{site}");
            honest(trainer, asked);
        }));
        assert_eq!((&answer["finding"], &answer["site"]["line"]), (&Value::Null, &17.into()), "{site}");
    }
    let mut asked = 0;
    let page = trainer.meanwhile(&mut holders(&daemon.url, "held", &[]), |trainer, question| {
        asked = question.blocks.len();
        honest(trainer, question);
    });
    let page = stdout(&page);
    for words in [
        "rank 0, keep (train.py:17)",
        &format!("list: list `KEPT` of module `__main__`, {asked} tensors"),
        &format!("module `__main__` → global `KEPT` → list, {asked} items → Tensor"),
        &format!("{asked} of {asked} blocks, "),
        &format!("A holder was found for {asked} of {asked} blocks ("),
        "1,200,345 objects were looked at; the process stood still for 81.2 ms, of 100 ms",
        "Objects of C extensions",
    ] {
        assert!(page.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{words:?} is not in\n{page}");
    }
    let csv = stdout(&trainer.meanwhile(&mut holders(&daemon.url, "held", &["-o", "csv"]), honest));
    assert!(csv.starts_with("rank,kind,sentence,chain,blocks,bytes,tensors,process\n0,list,"), "{csv}");

    // The audit log has the requests above and their callers.
    let audit = run_json(memctl().args(["audit", "-o", "json", "--daemon", &daemon.url]));
    let entries = audit["entries"].as_array().expect("entries");
    let asked: Vec<_> = entries.iter().filter(|entry| entry["action"] == "FindHolders").collect();
    assert_eq!(asked.len(), 7, "{entries:?}");
    assert!(asked.iter().all(|entry| entry["outcome"] == "rank 0 stood still for 81 ms"), "{asked:?}");
    trainer.end();
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn what_stands_in_the_way_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let url = daemon.url.as_str();
    let refused = |trainer: &mut Trainer, job: &str, more: &[&str], words: &str| {
        let output = trainer.meanwhile(&mut holders(url, job, more), no_answer);
        assert!(!output.status.success() && stderr(&output).contains(words), "{words:?}: {}", stderr(&output));
    };
    let mut trainer = Trainer::start(config(url, "well"));
    for _ in 0..16 {
        trainer.step(false);
    }
    until("the first epoch is stored", || {
        memctl().args(["query", "--job", "well", "--daemon", url]).output().expect("it starts").status.success()
    });
    refused(&mut trainer, "well", &[], "nothing was found to grow there so far: name a site with --site");
    refused(
        &mut trainer,
        "well",
        &["--site", "nowhere"],
        "allocated nothing at \"nowhere\"; `memctl sites --job well`",
    );
    refused(&mut trainer, "well", &["--rank", "3"], "job well has no rank 3");
    refused(&mut trainer, "none", &[], "no job \"none\" here");
    let freed = trainer.meanwhile(&mut holders(url, "well", &["--site", "forward"]), honest);
    assert!(stderr(&freed).contains("has been freed") || freed.status.success(), "{freed:?}");

    // Processes that forbid searches, in both ways.
    for (job, mut forbids) in [
        ("forbids", Trainer::forbidding(config(url, "forbids"))),
        ("not-allowed", Trainer::start(AgentConfig { holders: false, ..config(url, "not-allowed") })),
    ] {
        forbids.leak();
        until_found(url, job);
        refused(&mut forbids, job, &[], "which forbid it");
        forbids.end();
    }

    // A process without Python, while it runs and when it has ended.
    let agent = Agent::start(config(url, "rust")).unwrap();
    jobs::train(&agent, jobs::Training { kept_a_step: KEPT, ..jobs::Training::default() });
    until_found(url, "rust");
    refused(&mut trainer, "rust", &[], "it is not a Python process");
    assert!(agent.stop(None, Duration::from_secs(60)).delivered);
    refused(&mut trainer, "rust", &[], "does not run any more");
    trainer.end();

    // A store that the command opens itself, to which no session streams.
    assert_eq!(daemon.terminate(), 0);
    let mut alone = memctl();
    let output = alone.args(["holders", "--job", "well", "--data-dir"]).arg(folder.path()).output().unwrap();
    assert!(stderr(&output).contains("does not run any more"), "{}", stderr(&output));
}

#[test]
fn a_daemon_that_forbids_it_asks_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = memctl();
    command.env("MEMCTL_HOLDERS", "off").arg("daemon").arg("--data-dir").arg(folder.path());
    let daemon = DaemonProcess::start(&mut command, free_port());
    let mut trainer = Trainer::start(config(&daemon.url, "held"));
    trainer.leak();
    until_found(&daemon.url, "held");
    let output = trainer.meanwhile(&mut holders(&daemon.url, "held", &[]), no_answer);
    assert!(stderr(&output).contains("this daemon's configuration forbids"), "{}", stderr(&output));
    trainer.end();
    // The variable is in the environment of the command and of all its children.
    let data = tempfile::tempdir().unwrap();
    let mut launched = memctl();
    launched.args(["run", "-q", "--no-holders", "--data-dir"]).arg(data.path());
    assert_eq!(run(launched.args(["--", "sh", "-c", "echo $MEMCTL_HOLDERS"])), "off\n");
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_trainer_behind_a_launcher_is_asked_unless_that_forbids_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    for (job, allowed) in [("allowed", true), ("forbidden", false)] {
        let socket = folder.path().join(job);
        let settings =
            HostConfig { holders: allowed, ..HostConfig::new(Daemon::Address(daemon.url.as_str().into()), None) };
        let host = Host::start(UnixListener::bind(&socket).unwrap(), settings).unwrap();
        let session = SessionInfo { pid: Some(std::process::id()), ..jobs::session(job, 0) };
        let mut trainer = Trainer::launched(&socket, &session);
        trainer.leak();
        until_found(&daemon.url, job);
        if allowed {
            let answer = json(&trainer.meanwhile(&mut holders(&daemon.url, job, &["-o", "json"]), honest));
            assert!(answer["found_blocks"].as_u64() >= Some(64), "{answer}");
        } else {
            let output = trainer.meanwhile(&mut holders(&daemon.url, job, &[]), no_answer);
            assert!(stderr(&output).contains("which forbid it"), "{}", stderr(&output));
        }
        trainer.end();
        let patience = Duration::from_secs(60);
        let limits = Limits { grace: patience, patience, silence: patience };
        let summary = host.finish(limits, &AtomicBool::new(false), &|_| {});
        assert!(summary.ended.iter().all(|ended| ended.delivered && ended.failure.is_none()), "{summary:?}");
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_trainer_that_answers_badly_harms_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let mut trainer = Trainer::start(config(&daemon.url, "odd"));
    trainer.leak();
    until_found(&daemon.url, "odd");
    let ask = |trainer: &mut Trainer, answer: &dyn Fn(&mut Trainer, &HolderSearchRequest)| {
        trainer.meanwhile(&mut holders(&daemon.url, "odd", &["-o", "json"]), |trainer, asked| answer(trainer, asked))
    };
    let long = "x".repeat(70_000);
    for (what, said, words) in [
        ("not JSON", "<html>", "cannot be read"),
        ("not an answer", "[]", "cannot be read"),
        ("too large", long.as_str(), "longer than 64 KiB"),
        ("a fault", r#"{"fault": "MemoryError: no \u001b[31mroom"}"#, "the search failed in the trainer: MemoryError"),
    ] {
        let output = ask(&mut trainer, &|trainer, asked| trainer.answer(asked.ask, said));
        assert!(stderr(&output).contains(words), "{what}: {}", stderr(&output));
        assert!(!stderr(&output).contains('\u{1b}'), "{what}");
    }
    let more = |asked: &HolderSearchRequest| {
        let mut answer: Value = serde_json::from_str(&list_holds(asked)).unwrap();
        answer["found_blocks"] = (asked.blocks.len() + 1).into();
        answer.to_string()
    };
    let output = ask(&mut trainer, &|trainer, asked| trainer.answer(asked.ask, &more(asked)));
    assert!(stderr(&output).contains("refused: blocks found: "), "{}", stderr(&output));
    // Responses to other requests, and duplicates: only the first response to the request counts.
    for _ in 0..2 {
        let output = ask(&mut trainer, &|trainer, asked| {
            trainer.answer(asked.ask.wrapping_add(1), "<html>");
            honest(trainer, asked);
            trainer.answer(asked.ask, "<html>");
        });
        assert!(json(&output)["found_blocks"].as_u64() >= Some(64));
    }
    // All its events are stored; the responses did not displace them.
    trainer.end();
    let report = run_json(memctl().args(["query", "--job", "odd", "-o", "json", "--daemon", &daemon.url]));
    assert_eq!(report["completeness"]["exact"], true, "{}", report["completeness"]);
    assert_eq!(daemon.terminate(), 0);
}

/// Responses of a foreign agent.
async fn raw_agent(url: &str, job: u8, search: HolderSearch, answer: impl Fn(u64) -> Vec<v1::HoldersAnswer>) -> Output {
    let session = SessionInfo { job: format!("raw-{job}"), ..raw::session(job) };
    let hello = v1::Hello { holders: search as i32, ..raw::hello(&session) };
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
    let (mut stream, heard) = Stream::open(channel, hello).await;
    assert!(matches!(heard, Heard::Welcome(_)), "{heard:?}");
    let stacks = v1::StackBatch {
        strings: vec!["keep".into(), "train.py".into()],
        first_stack: 1,
        frame_functions: vec![0],
        frame_files: vec![1],
        frame_lines: vec![17],
        stack_shared: vec![0],
        stack_new: vec![1],
        stack_frames: vec![0],
        ..v1::StackBatch::default()
    };
    stream.send(Packed::stacks(&stacks).numbered(1)).await;
    stream.until_durable(1).await;
    let mut command = holders(url, &session.job, &["--site", "keep", "-o", "json"]);
    let asking = tokio::task::spawn_blocking(move || command.output().unwrap());
    if search == HolderSearch::Ready {
        let Some(Heard::Holders(ask)) = stream.hear().await else { panic!("it is asked") };
        assert_eq!((ask.stacks.as_slice(), ask.budget_ms), (&[1][..], 100));
        assert!(ask.wait_ms >= 20_000);
        for answer in answer(ask.id) {
            stream.answer(answer).await;
        }
    }
    asking.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_answers_badly_harms_no_other_and_an_old_one_is_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let url = daemon.url.as_str();
    let found = |blocks: u32| v1::HoldersFound { asked_blocks: blocks, ..v1::HoldersFound::default() };
    let of = |id: u64, found: v1::HoldersFound| v1::HoldersAnswer { id, body: Some(Body::Found(found)) };
    let old = raw_agent(url, 1, HolderSearch::Unspecified, |_| Vec::new()).await;
    assert!(stderr(&old).contains("too old for this request"), "{}", stderr(&old));
    let good =
        raw_agent(url, 2, HolderSearch::Ready, |id| vec![of(id + 1, found(9)), of(id, found(2)), of(id, found(3))]);
    assert_eq!(json(&good.await)["asked_blocks"], 2, "not another ask's, and not the second");
    let much = raw_agent(url, 3, HolderSearch::Ready, |id| vec![of(id, found(257))]).await;
    assert!(stderr(&much).contains("its agent's answer is refused: blocks asked about"), "{}", stderr(&much));
    let nothing = raw_agent(url, 4, HolderSearch::Ready, |id| vec![v1::HoldersAnswer { id, body: None }]).await;
    assert!(stderr(&nothing).contains("answered nothing"), "{}", stderr(&nothing));
    // A message that would decode to a hundred megabytes ends the stream before it is decoded.
    let bomb = v1::HoldersFound { holders: vec![v1::TensorHolder::default(); 1 << 20], ..v1::HoldersFound::default() };
    let ended = raw_agent(url, 5, HolderSearch::Ready, |id| vec![of(id, bomb.clone())]).await;
    assert!(stderr(&ended).contains("its connection broke, before it answered"), "{}", stderr(&ended));
    assert_eq!(daemon.terminate(), 0);
}

fn token(data_dir: &Path, name: &str, role: &str, tenant: &str) -> String {
    let mut command = memctl();
    command.args(["token", "create", name, "--role", role, "--tenant", tenant, "-q", "--data-dir"]).arg(data_dir);
    run(&mut command).trim().to_owned()
}

#[test]
fn only_operators_of_its_own_tenant_may_ask_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, role: &str, tenant: &str| token(folder.path(), name, role, tenant);
    let agent = of("agent", "agent", "team-a");
    let (own, reader, other) =
        (of("own", "operator", "team-a"), of("reader", "reader", "team-a"), of("other", "operator", "team-b"));
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let shown = Credentials { token: Some(TokenSource::Text(agent.clone())), tenant: None };
    let to = Daemon::Address(daemon.url.as_str().into()).showing(shown);
    let mut trainer = Trainer::start(AgentConfig { daemon: to, ..config(&daemon.url, "held") });
    trainer.leak();
    let asking = |token: &str| {
        let mut command = holders(&daemon.url, "held", &["--site", "keep", "-o", "json"]);
        command.env("MEMCTL_TOKEN", token);
        command
    };
    until("its stacks are stored", || trainer.meanwhile(&mut asking(&own), honest).status.success());
    for (token, words) in [
        (&reader, "FindHolders takes operator, admin"),
        (&agent, "FindHolders takes operator, admin"),
        (&other, "no job \"held\" here"),
    ] {
        let output = trainer.meanwhile(&mut asking(token), no_answer);
        assert!(!output.status.success() && stderr(&output).contains(words), "{words}: {}", stderr(&output));
    }
    trainer.end();
    assert_eq!(daemon.terminate(), 0);
}
