//! This user's own daemon: the socket in the user's folder is found without a flag, and no other daemon is used.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memctl_tests::daemon::DaemonProcess;
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json, stderr};

/// A command of a user with a separate home.
fn at_home(home: &Path) -> Command {
    let mut command = memctl();
    command.env("XDG_RUNTIME_DIR", home).env("XDG_DATA_HOME", home.join("data")).env("HOME", home);
    command
}

fn import(home: &Path, job: &str) {
    run(at_home(home).arg("import").arg(folder("cnn_rank0_cache")).args(["--job", job]));
}

fn jobs(home: &Path) -> usize {
    run_json(at_home(home).args(["jobs", "-o", "json"]))["jobs"].as_array().unwrap().len()
}

#[test]
fn commands_without_flags_find_the_daemon_without_flags() {
    let home = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::of(at_home(home.path()).arg("daemon"));
    let socket = home.path().join("memctl/daemon.sock");
    assert_eq!(daemon.url, format!("unix:{}", socket.display()));
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(socket.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // The store belongs to the daemon: these commands can succeed only through it.
    import(home.path(), "found");
    assert_eq!(jobs(home.path()), 1);
    let doctor = run(at_home(home.path()).arg("doctor"));
    assert!(doctor.contains(&format!("the daemon at {} answers", daemon.url)), "{doctor}");
    // A second daemon cannot use the socket.
    let second = at_home(home.path()).args(["daemon", "--data-dir"]).arg(home.path().join("other")).output().unwrap();
    assert_eq!(second.status.code(), Some(3), "{}", stderr(&second));
    assert!(stderr(&second).contains("another program listens there"), "{}", stderr(&second));
    assert_eq!(daemon.terminate(), 0);
    assert!(!socket.exists(), "it takes its socket with it");
    assert_eq!(jobs(home.path()), 1, "the store answers where no daemon does");
}

#[test]
fn a_socket_that_a_killed_daemon_left_is_replaced() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("memctl/daemon.sock");
    DaemonProcess::of(at_home(home.path()).arg("daemon")).kill();
    assert!(socket.exists(), "it was not removed");
    import(home.path(), "embedded");
    let daemon = DaemonProcess::of(at_home(home.path()).arg("daemon"));
    assert_eq!(jobs(home.path()), 1);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn sockets_and_ports_are_served_side_by_side() {
    let home = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", home.path().join("named.sock").display());
    let daemon =
        DaemonProcess::of(at_home(home.path()).args(["daemon", "--listen", "127.0.0.1:0", "--listen", &socket]));
    run(at_home(home.path())
        .arg("import")
        .arg(folder("cnn_rank0_cache"))
        .args(["--job", "two-ways", "--daemon", &socket]));
    for place in [&daemon.url, &socket] {
        let found = run_json(at_home(home.path()).args(["jobs", "-o", "json", "--daemon", place]));
        assert_eq!(found["jobs"].as_array().unwrap().len(), 1, "{place}");
    }
    assert_eq!(daemon.terminate(), 0);
}

/// A listener on the former default port receives not one byte of a command.
#[test]
fn a_squatter_on_the_usual_port_hears_nothing() {
    // Another run of these tests may use the port for a while.
    let listener = loop {
        match std::net::TcpListener::bind("127.0.0.1:7717") {
            Ok(listener) => break listener,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}"),
        }
        std::thread::yield_now();
    };
    let visits = Arc::new(AtomicUsize::new(0));
    let squatter = std::thread::spawn({
        let visits = visits.clone();
        move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut word = [0; 4];
                let heard = std::io::Read::read(&mut stream, &mut word).unwrap_or(0);
                if &word[..heard] == b"stop" {
                    return;
                }
                // Relaxed: the thread is joined before it is read.
                visits.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let home = tempfile::tempdir().unwrap();
    import(home.path(), "mine");
    for arguments in [
        &["jobs"][..],
        &["query", "--job", "latest"],
        &["leaks", "--job", "mine"],
        &["doctor"],
        &["run", "--", "true"],
        &["delete", "--job", "mine", "--yes"],
    ] {
        run(at_home(home.path()).args(arguments));
    }
    std::io::Write::write_all(&mut std::net::TcpStream::connect("127.0.0.1:7717").unwrap(), b"stop").unwrap();
    squatter.join().unwrap();
    // Relaxed: see above.
    assert_eq!(visits.load(Ordering::Relaxed), 0, "a command connected");
}
