//! Golden command lines: the output for people and scripts, in `cli/*.trycmd` and `cli/*.toml`.
//!
//! `TRYCMD=overwrite cargo test -p memctl-tests --test e2e golden::` regenerates them. `[..]` replaces text that
//! another codec or release may change.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, memctl_path, run};

#[test]
fn golden_command_lines() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    for name in ["gpt_val_graph_leak", "cnn_rank0_cache"] {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
    }
    let cases = trycmd::TestCases::new();
    cases
        .register_bin("memctl", memctl_path())
        .env("MEMCTL_DAEMON", &daemon.url)
        .env("MEMCTL_SERVICE", "off")
        .env("NO_COLOR", "1")
        .env("COLUMNS", "120")
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC")
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/cli/*.trycmd"))
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/cli/*.toml"));
    // Both must outlive the cases.
    cases.run();
    drop((daemon, store));
}

#[test]
fn the_demo_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let page =
        run(memctl().arg("demo").env("TMPDIR", folder.path()).env("HOME", folder.path()).env_remove("XDG_DATA_HOME"));
    assert!(page.contains("remember_features"), "{page}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
