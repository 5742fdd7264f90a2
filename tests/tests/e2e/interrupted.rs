//! Imports that are ended from outside: Ctrl-C leaves nothing, kill -9 leaves a job that is marked as incomplete, and
//! `--replace` replaces it.
//!
//! A named pipe as the last rank's file stops an import at a known point without a clock: an import that has the pipe
//! open for reading has stored every earlier rank.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memctl_answers::jobs::Jobs;
use memctl_answers::wire::from_wire;
use memctl_model::JobState;
use memctl_proto::v1::ListJobsRequest;
use memctl_proto::v1::query_client::QueryClient;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;
use tonic::transport::Endpoint;

/// Nothing here takes seconds; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The destination of an import: `--daemon URL` or `--data-dir DIR`.
type Flags<'a> = [&'a OsStr; 2];

fn ask(flags: Flags<'_>, line: &[&str]) -> Value {
    run_json(memctl().args(line).args(["-o", "json"]).args(flags))
}

/// An import that is reading the last of four ranks, and its other end of the pipe.
fn import_in_the_middle(flags: Flags<'_>, scratch: &Path) -> (Child, File) {
    let pipe = scratch.join("rank3.pickle");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let ranks = (0..3).map(|rank| folder("cnn_rank0_cache").join(format!("rank{rank}.pickle.zst")));
    let mut command = memctl();
    command.args(["import", "-q", "--job", "broken"]).args(flags).args(ranks).arg(&pipe);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    loop {
        // O_NONBLOCK: without a reader, opening fails instead of waiting.
        match OpenOptions::new().write(true).custom_flags(0o4000).open(&pipe) {
            Ok(writer) => {
                std::fs::remove_file(&pipe).unwrap();
                return (child, writer);
            }
            Err(_) => assert!(child.try_wait().unwrap().is_none(), "the import ended before it read the last rank"),
        }
        assert!(began.elapsed() < PATIENCE, "the import never came to the last rank");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

fn assert_interrupted(flags: Flags<'_>, name: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let (child, pipe) = import_in_the_middle(flags, scratch.path());
    signal(&child, name);
    // The pipe stays open: an interrupted import does not wait for a file that never ends.
    let output = child.wait_with_output().unwrap();
    drop(pipe);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("interrupted; nothing was stored"), "{said}");
    assert_eq!(ask(flags, &["jobs"])["jobs"].as_array().unwrap().len(), 0, "{name}");
}

#[test]
fn an_import_that_is_told_to_stop_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(&folder.path().join("daemon"), free_port());
    let embedded = folder.path().join("embedded");
    for name in ["-INT", "-TERM"] {
        assert_interrupted([OsStr::new("--daemon"), OsStr::new(&daemon.url)], name);
        assert_interrupted([OsStr::new("--data-dir"), embedded.as_os_str()], name);
    }
}

fn assert_replaceable(url: &str) {
    let flags = [OsStr::new("--daemon"), OsStr::new(url)];
    let whole = folder("cnn_rank0_cache");
    run(memctl().args(["import", "-q", "--replace", "--job", "broken"]).args(flags).arg(&whole));
    let report = ask(flags, &["query", "--job", "broken"]);
    assert_eq!(report["job"]["state"], "finished");
    assert_eq!(report["completeness"]["exact"], true);
    assert_eq!(report["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(ask(flags, &["jobs"])["jobs"].as_array().unwrap().len(), 1);
}

#[test]
fn an_import_that_is_killed_between_ranks_shows_what_is_missing() {
    let (folder, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let flags = [OsStr::new("--daemon"), OsStr::new(&daemon.url)];
    let (mut child, _pipe) = import_in_the_middle(flags, scratch.path());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let job = ask(flags, &["jobs"])["jobs"][0].clone();
    assert_eq!((&job["id"], &job["ranks"], &job["world_size"]), (&"broken".into(), &3.into(), &4.into()), "{job}");
    let page = run(memctl().args(["jobs"]).args(flags));
    assert!(page.contains("3 of 4"), "{page}");
    assert_replaceable(&daemon.url);
}

/// Returns when a session of the job streams, and asserts that its importer still runs.
async fn until_it_streams(url: &str, child: &mut Child) {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
    let mut client = QueryClient::new(channel);
    let began = Instant::now();
    loop {
        let jobs = client.list_jobs(ListJobsRequest { limit: 1, ..Default::default() }).await.unwrap();
        let jobs = from_wire::<Jobs>(jobs.get_ref()).unwrap().jobs;
        if jobs.first().is_some_and(|job| job.state == JobState::Running && job.events > 0) {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "the import ended before it was seen");
        assert!(began.elapsed() < PATIENCE, "the import never streamed");
    }
}

#[tokio::test]
async fn an_import_that_is_killed_in_a_stream_is_not_finished() {
    let scratch = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(scratch.path(), free_port());
    let flags = [OsStr::new("--daemon"), OsStr::new(&daemon.url)];
    let files: Vec<PathBuf> = (0..4).map(|rank| folder("gpt_clean").join(format!("rank{rank}.pickle.zst"))).collect();
    let mut command = memctl();
    let mut child = command.args(["import", "-q", "--job", "broken"]).args(flags).args(files).spawn().unwrap();
    until_it_streams(&daemon.url, &mut child).await;
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let report = ask(flags, &["query", "--job", "broken"]);
    let state = report["job"]["state"].as_str().unwrap();
    let ranks = report["ranks"].as_array().unwrap().len();
    // The job is running until it has been silent long enough to count as lost. It is finished if the kill hit the gap
    // between two ranks.
    assert!(state != "finished" || ranks < 4, "it was killed in the middle: {}", report["job"]);
    assert_ne!(state, "failed", "no process reported a failure");
    assert_replaceable(&daemon.url);
}
