//! Faults of the network, the disk, the database, memory, the clock and single processes, one per test, in the middle
//! of a stream.
//!
//! Guarantees checked in each: the fault happened (it is counted where it happens), the stream continues by itself
//! afterwards, and every produced event is stored exactly once. Deaths are in `kill_any.rs` and `kill_daemon.rs`,
//! hostile clients in `hostile.rs` and `wire.rs`, full and read-only disks in the daemon's `store_sqlite.rs` and in
//! `bad_place.rs`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memctl_proto::item::Packed;
use memctl_proto::v1::ItemKind;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::get;
use memctl_tests::machine::{Fault, Machine};
use memctl_tests::proxy::{Network, Proxy};
use memctl_tests::streaming::{Streaming, until};
use memctl_tests::{memctl, postgres, raw, stderr, stdout};
use tonic::transport::Endpoint;

/// Error numbers of Linux.
const EIO: i64 = 5;
const ENOSPC: i64 = 28;

/// Runs a daemon behind a faulty network.
fn behind_a_proxy(fault: impl FnOnce(&Proxy, &Streaming)) {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    let proxy = Proxy::before(port);
    let stream = Streaming::start("far", &proxy.url);
    stream.goes_on();
    fault(&proxy, &stream);
    proxy.set(Network::Works);
    stream.goes_on();
    stream.end(&daemon.url);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn connections_that_are_cut() {
    behind_a_proxy(|proxy, stream| {
        for _ in 0..10 {
            proxy.cut();
            stream.goes_on();
        }
        assert!(proxy.cuts() >= 10, "{}", proxy.cuts());
    });
}

#[test]
fn connections_that_are_turned_away() {
    behind_a_proxy(|proxy, stream| {
        proxy.set(Network::Refuses);
        proxy.cut();
        until("a connection is turned away", || proxy.cuts() > 4);
        let stored = stream.stored();
        until("more are", || proxy.cuts() > 8);
        assert_eq!(stream.stored(), stored, "nothing gets through");
    });
}

#[test]
fn a_connection_that_is_half_open() {
    behind_a_proxy(|proxy, _| {
        proxy.set(Network::HalfOpen);
        until("bytes vanish", || proxy.lost_bytes() > 0);
    });
}

#[test]
fn acknowledgements_that_never_arrive() {
    behind_a_proxy(|proxy, stream| {
        proxy.set(Network::AnswersLost);
        until("answers vanish", || proxy.lost_bytes() > 0);
        let known = stream.stored();
        // The daemon may store more events than the agent knows, until the broken connection ends the stream.
        std::thread::park_timeout(Duration::from_millis(200));
        assert_eq!(stream.stored(), known, "no acknowledgement arrives");
        proxy.cut();
    });
}

#[test]
fn a_link_that_is_slow() {
    behind_a_proxy(|proxy, stream| {
        proxy.set(Network::Slow);
        stream.goes_on();
        until("pieces are held up", || proxy.delayed() > 20);
    });
}

/// Runs a daemon on a faulty machine.
fn on_a_machine(flags: &[&str], fault: impl FnOnce(&Machine, &Streaming, &DaemonProcess)) {
    let (folder, machine) = (tempfile::tempdir().unwrap(), Machine::new());
    let mut command = memctl();
    command.arg("daemon").arg("--data-dir").arg(folder.path()).args(flags).envs(machine.variables());
    let daemon = DaemonProcess::start(&mut command, free_port());
    let stream = Streaming::start("near", &daemon.url);
    stream.goes_on();
    fault(&machine, &stream, &daemon);
    stream.goes_on();
    stream.end(&daemon.url);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_disk_that_is_slow() {
    on_a_machine(&[], |machine, stream, _| {
        machine.order(Fault::SlowSync, 300);
        until("syncs are slow", || machine.happened(Fault::SlowSync) > 3);
        stream.goes_on();
        machine.order(Fault::SlowSync, 0);
    });
}

#[test]
fn a_disk_that_cannot_sync() {
    on_a_machine(&[], |machine, _, _| disturbed(machine, Fault::FailingSync, EIO));
}

#[test]
fn a_disk_that_cannot_write() {
    on_a_machine(&[], |machine, _, _| disturbed(machine, Fault::FailingWrite, EIO));
}

#[test]
fn a_disk_that_is_full_for_a_while() {
    let http = format!("127.0.0.1:{}", free_port());
    on_a_machine(&["--http-listen", &http], |machine, stream, daemon| {
        let ready = || get(&format!("http://{http}/readyz")).unwrap();
        let doctor = || memctl().args(["doctor", "--daemon", &daemon.url]).output().unwrap();
        assert_eq!(ready().0, 200);
        machine.order(Fault::FailingWrite, ENOSPC);
        until("the disk fails", || machine.happened(Fault::FailingWrite) > 3);
        until("the failed write is noted", || ready().0 == 503);
        assert_eq!(ready().1, "the store took no writes at the last attempt; the log says why\n");
        let output = doctor();
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stdout(&output).contains("the last write failed"), "{}", stdout(&output));
        machine.order(Fault::FailingWrite, 0);
        stream.goes_on();
        until("it is ready", || ready().0 == 200);
        let output = doctor();
        assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    });
}

fn disturbed(machine: &Machine, fault: Fault, errno: i64) {
    machine.order(fault, errno);
    until("the disk fails", || machine.happened(fault) > 3);
    machine.order(fault, 0);
}

#[test]
fn a_clock_that_jumps_ahead_and_back() {
    // The clock jumps by more than a year, so every job exceeds its maximum age.
    on_a_machine(&["--retain-age", "30d"], |machine, stream, _| {
        for offset in [400 * 86_400, 0, -3_600, 0] {
            machine.order(Fault::WrongClock, offset);
            let before = machine.happened(Fault::WrongClock);
            until("the clock was wrong", || offset == 0 || machine.happened(Fault::WrongClock) > before);
            stream.goes_on();
        }
    });
}

#[test]
fn a_daemon_that_is_frozen() {
    on_a_machine(&[], |_, stream, daemon| {
        signal(daemon.pid(), "-STOP");
        until("it is stopped", || state(daemon.pid()) == Some('T'));
        let known = stream.stored();
        std::thread::park_timeout(Duration::from_millis(500));
        assert_eq!(stream.stored(), known, "a frozen daemon acknowledges nothing");
        signal(daemon.pid(), "-CONT");
    });
}

/// A daemon that is out of memory dies; its acknowledged data is stored, and the next daemon continues.
#[test]
fn a_daemon_without_memory() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    let url = daemon.url.clone();
    let stream = Streaming::start("near", &url);
    stream.goes_on();
    // Limits the data segment, so that from now on the memory for an item is refused, but not the memory with which a
    // decompressor begins.
    let limit = format!("--data={}", data_bytes(daemon.pid()) + (16 << 20));
    let pid = daemon.pid().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
    let asking = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    asking.block_on(needs_much_memory(&url));
    until("it is out of memory", || matches!(state(daemon.pid()), None | Some('Z')));
    assert_eq!(daemon.died_of(), Some(6), "it aborts");
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    stream.goes_on();
    stream.end(&url);
    assert_eq!(daemon.terminate(), 0);
}

/// Sends an item that takes 60 MiB while it is checked.
async fn needs_much_memory(url: &str) {
    let payload = zstd::bulk::compress(&vec![0; 60 << 20], 3).unwrap();
    let item = Packed { kind: ItemKind::Samples, payload: payload.into(), unpacked_bytes: 60 << 20 };
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
    let (mut stream, _) = raw::Stream::welcome(channel, &raw::session(1)).await;
    stream.send(item.numbered(1)).await;
    assert!(stream.hear().await.is_none(), "the daemon is gone before it answers");
}

/// A Postgres that does not respond, and one that is down and comes back.
#[test]
fn a_database_that_is_frozen_and_then_away() {
    let folder = tempfile::Builder::new().prefix("memctl-faults").tempdir_in("/tmp").unwrap();
    let store = postgres::start(folder.path());
    let daemon = DaemonProcess::store(&store, free_port());
    let stream = Streaming::start("near", &daemon.url);
    stream.goes_on();
    let serving = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pid = serving.block_on(postgres::pid_of_a_connection(&store));
    signal(pid, "-STOP");
    until("it is stopped", || state(pid) == Some('T'));
    std::thread::park_timeout(Duration::from_millis(500));
    signal(pid, "-CONT");
    stream.goes_on();
    postgres::stop(folder.path());
    assert!(!Path::new(folder.path()).join("data/postmaster.pid").exists(), "it is away");
    let known = stream.stored();
    std::thread::park_timeout(Duration::from_millis(500));
    assert_eq!(stream.stored(), known, "nothing can be stored");
    assert_eq!(postgres::start(folder.path()), store);
    stream.goes_on();
    // The daemon refuses queries until it has checked its store again.
    until("questions are answered", || {
        memctl().args(["jobs", "--daemon", &daemon.url]).output().unwrap().status.success()
    });
    stream.end(&daemon.url);
    assert_eq!(daemon.terminate(), 0);
    postgres::stop(folder.path());
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success(), "kill {name} {pid}");
}

/// The state of a process, from its `stat` file.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn data_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmData:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
