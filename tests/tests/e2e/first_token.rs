//! The first token of a daemon, made over TCP as the documentation says: its user reaches every tenant.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::{memctl, run, run_json, stderr};

#[test]
fn the_first_admin_is_one_of_all_tenants_and_later_ones_are_of_one() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let words = |words: &[&str], token: &str| {
        let mut command = memctl();
        command.args(words).args(["--daemon", &daemon.url]);
        if !token.is_empty() {
            command.env("MEMCTL_TOKEN", token);
        }
        command
    };
    let create = |name: &str, more: &[&str], token: &str| {
        let of = ["token", "create", name, "--role", "admin", "-o", "json"];
        let made = run_json(&mut words(&[&of, more].concat(), token))["tokens"][0].clone();
        (made["tenant"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned())
    };
    let (tenant, first) = create("first", &[], "");
    assert_eq!(tenant, "*");
    run(&mut words(&["jobs", "--tenant", "red"], &first));
    run(&mut words(&["jobs", "--tenant", "*"], &first));
    let (tenant, own) = create("second", &[], &first);
    assert_eq!(tenant, "default");
    assert_eq!(create("third", &["--tenant", "red"], &first).0, "red");
    let refused = words(&["jobs", "--tenant", "red"], &own).output().unwrap();
    assert_eq!(refused.status.code(), Some(6));
    assert!(stderr(&refused).contains("belongs to tenant default; leave out --tenant"), "{}", stderr(&refused));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_first_token_that_names_its_tenant_is_of_that_tenant() {
    let store = tempfile::tempdir().unwrap();
    let make = |name: &str, more: &[&str]| {
        let of = ["token", "create", name, "-o", "json", "--data-dir"];
        run_json(memctl().args(of).arg(store.path()).args(more))["tokens"][0]["tenant"].clone()
    };
    assert_eq!(make("one", &["--role", "admin", "--tenant", "red"]), "red");
    let other = tempfile::tempdir().unwrap();
    let page = run(memctl().args(["token", "create", "me", "--role", "admin", "--data-dir"]).arg(other.path()));
    assert!(page.contains("This token is for all tenants."), "{page}");
}
