//! Users of this machine over the Unix socket, and client certificates: each gets the role and the tenant of its
//! configuration entry, and no access once the entry is removed.
//!
//! Programs are really started as other users, so these tests need root; `./test` runs them if it is root.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memctl_agent::reach::{DaemonAddress, Tls};
use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_proto::v1::StatusRequest;
use memctl_proto::v1::query_client::QueryClient;
use memctl_tests::certificates::{Authority, Identity};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::silent::Silent;
use memctl_tests::streaming::{self, PATIENCE, compare, until};
use memctl_tests::{memctl, memctl_path, run, run_json, stderr, stdout};

fn reload(daemon: &DaemonProcess) {
    run(Command::new("kill").args(["-HUP", &daemon.pid().to_string()]));
}

/// Sessions that stream now, as the store's owner sees them.
fn streams(address: &DaemonAddress) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = address.connect(|endpoint| endpoint).await.unwrap();
        QueryClient::new(channel).get_status(StatusRequest {}).await.unwrap().into_inner().sessions_streaming
    })
}

// --- users of this machine ----------------------------------------------------------------------

const READER: u32 = 65_534;
const AGENT: u32 = 65_533;
const NOBODY: u32 = 65_532;

/// Not a test: a training process of another user. It does nothing unless the environment orders it.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn another_users_training() {
    let (Ok(url), Ok(job)) = (std::env::var("IDENTITIES_URL"), std::env::var("IDENTITIES_JOB")) else { return };
    let agent = Agent::start(streaming::config(&job, &url)).expect("the agent starts");
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        end.store(true, Ordering::Relaxed);
    });
    let pushed = streaming::stream(&agent, &job, &ended, |_| {});
    let outcome = agent.stop(None, PATIENCE);
    println!("\nended: {pushed} {} {:?}", outcome.delivered && outcome.counts.dropped == 0, outcome.refused);
}

/// A folder that every user may enter, with programs that every user may start.
struct Place {
    home: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("memctl-users-").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let place = Self { home };
        for (from, name) in [(memctl_path(), "memctl"), (std::env::current_exe().unwrap(), "tests")] {
            std::fs::copy(from, place.path(name)).unwrap();
            std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn url(&self) -> String {
        format!("unix:{}", self.path("daemon.sock").display())
    }

    fn configure(&self, rows: &[(u32, &str)]) {
        let row = |(uid, grant): &(u32, &str)| format!("[access.uids.{uid}]\ntenant = \"default\"\n{grant}\n");
        let text: String = rows.iter().map(row).collect();
        std::fs::write(self.path("memctl.toml"), text).unwrap();
    }

    fn daemon(&self, mode: Option<&str>) -> DaemonProcess {
        let mut command = memctl();
        command.args(["daemon", "--listen", &self.url(), "--config"]).arg(self.path("memctl.toml"));
        command.arg("--data-dir").arg(self.path("data")).stderr(Stdio::piped());
        DaemonProcess::of(match mode {
            Some(mode) => command.args(["--socket-mode", mode]),
            None => &mut command,
        })
    }

    /// The output of a user's `memctl`.
    fn asks(&self, (uid, gid): (u32, u32), arguments: &[&str]) -> Output {
        let mut command = Command::new(self.path("memctl"));
        command.args(arguments).args(["--daemon", &self.url()]).env_clear().env("HOME", "/nonexistent");
        command.uid(uid).gid(gid).current_dir("/").output().unwrap()
    }

    fn trains(&self, uid: u32, job: &str) -> Child {
        let mut command = Command::new(self.path("tests"));
        command.args(["--ignored", "--exact", "--nocapture", "identities::another_users_training"]).env_clear();
        command.env("IDENTITIES_URL", self.url()).env("IDENTITIES_JOB", job).uid(uid).gid(uid).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }
}

/// Ends a training; returns its output.
fn ended(mut training: Child) -> String {
    drop(training.stdin.take());
    let output = training.wait_with_output().unwrap();
    let text = stdout(&output);
    text.lines().find_map(|line| line.strip_prefix("ended: ")).unwrap_or_else(|| panic!("{text}")).to_owned()
}

const READS: (u32, &str) = (READER, "role = \"reader\"");
const WRITES: (u32, &str) = (AGENT, "role = \"agent\"\njobs = \"train-*\"");

#[test]
#[ignore = "needs root: it starts programs of other users"]
fn users_of_this_machine_do_what_their_entry_says_and_nothing_without_one() {
    let place = Place::new();
    place.configure(&[READS, WRITES]);
    let daemon = place.daemon(Some("0666"));
    let own = DaemonAddress::from(place.url());
    let training = place.trains(AGENT, "train-1");
    until("the agent of another user streams", || streams(&own) == 1);
    // A job that its pattern does not name.
    let output = ended(place.trains(AGENT, "other"));
    assert!(output.contains("false") && output.contains("train-*"), "{output}");
    let listed = place.asks((READER, READER), &["jobs", "-o", "json"]);
    assert!(listed.status.success() && stdout(&listed).contains("train-1"), "{}", stderr(&listed));
    for (who, arguments, words) in [
        (READER, &["delete", "--job", "train-1", "-y"][..], "uid 65534 is reader; DeleteJob takes operator, admin"),
        (READER, &["token", "list"], "ListTokens takes admin"),
        (AGENT, &["query", "--job", "train-1"], "ask with another token"),
        (NOBODY, &["jobs"], "user 65532 has no role here"),
    ] {
        let refused = place.asks((who, who), arguments);
        assert_eq!(refused.status.code(), Some(6), "{who} {arguments:?}: {}", stdout(&refused));
        assert!(stderr(&refused).contains(words), "{who} {arguments:?}: {}", stderr(&refused));
    }
    // The entries are removed while the daemon runs: the stream ends, and queries are refused.
    place.configure(&[(NOBODY, "role = \"reader\"")]);
    reload(&daemon);
    until("the stream of an entry that is gone ends", || streams(&own) == 0);
    assert!(stderr(&place.asks((READER, READER), &["jobs"])).contains("user 65534 has no role here"));
    assert!(place.asks((NOBODY, NOBODY), &["jobs"]).status.success());
    // The entries are restored: the agent continues where it stopped.
    place.configure(&[READS, WRITES]);
    reload(&daemon);
    until("the agent goes on", || streams(&own) == 1);
    let output = ended(training);
    let pushed = output.split(' ').next().unwrap().parse().unwrap();
    assert!(output.contains(" true None"), "{output}");
    assert_eq!(daemon.terminate(), 0);
    let daemon = DaemonProcess::sqlite(&place.path("data"), free_port());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(compare(&daemon.url, "train-1", 0, Some(pushed)));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
#[ignore = "needs root: it starts programs of other users"]
fn users_of_this_machine_connect_as_the_mode_of_the_socket_says() {
    use std::io::Read as _;
    let place = Place::new();
    place.configure(&[READS]);
    let own_group = std::os::unix::fs::MetadataExt::gid(&place.home.path().metadata().unwrap());
    for (mode, group, everybody, words) in [
        (None, false, false, None),
        (Some("0600"), false, false, None),
        (Some("0660"), true, false, Some("the members of the socket's group can connect; what they may do is")),
        (Some("0666"), true, true, Some("all users of this machine can connect; what they may do is")),
    ] {
        let mut daemon = place.daemon(mode);
        let mut said = daemon.said().unwrap();
        for (gid, connects) in [(own_group, group), (READER, everybody)] {
            let output = place.asks((READER, gid), &["jobs"]);
            assert_eq!(output.status.success(), connects, "{mode:?} {gid}: {}", stderr(&output));
            assert!(connects || stderr(&output).contains("Permission denied"), "{}", stderr(&output));
        }
        assert_eq!(daemon.terminate(), 0);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text.contains("can connect"), words.is_some(), "{text}");
        assert!(words.is_none_or(|words| text.contains(words)), "{text}");
    }
}

// --- certificates -------------------------------------------------------------------------------

const ROLES: [&str; 4] = ["agent", "reader", "operator", "admin"];
const TENANTS: [&str; 2] = ["team-a", "team-b"];

fn row(name: &str, role: &str, tenant: &str) -> String {
    format!("[[access.certificate]]\nname = \"{name}\"\nrole = \"{role}\"\ntenant = \"{tenant}\"\njobs = \"train-*\"\n")
}

struct Certified {
    home: tempfile::TempDir,
    authority: Authority,
}

impl Certified {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let authority = Authority::new(home.path(), "ours");
        Self { home, authority }
    }

    fn configure(&self, rows: &[String]) {
        std::fs::write(self.home.path().join("memctl.toml"), rows.concat()).unwrap();
    }

    fn daemon(&self) -> DaemonProcess {
        let server = self.authority.issue("daemon");
        let mut command = memctl();
        command.args(["daemon", "--listen", "127.0.0.1:0", "--config"]).arg(self.home.path().join("memctl.toml"));
        command.arg("--data-dir").arg(self.home.path().join("data")).arg("--tls-cert").arg(&server.cert);
        command.arg("--tls-key").arg(&server.key).arg("--tls-client-ca").arg(&self.authority.file);
        DaemonProcess::of(&mut command)
    }

    fn ask(&self, daemon: &DaemonProcess, identity: &Identity, arguments: &[&str]) -> Output {
        self.command(daemon, identity, arguments).output().unwrap()
    }

    fn command(&self, daemon: &DaemonProcess, identity: &Identity, arguments: &[&str]) -> Command {
        let mut command = memctl();
        command.args(arguments).args(["--daemon", &daemon.url, "--tls-ca"]).arg(&self.authority.file);
        command.arg("--tls-cert").arg(&identity.cert).arg("--tls-key").arg(&identity.key);
        command
    }

    fn address(&self, daemon: &DaemonProcess, identity: &Identity) -> DaemonAddress {
        let (cert, key) = (Some(identity.cert.clone()), Some(identity.key.clone()));
        DaemonAddress {
            url: daemon.url.clone(),
            tls: Tls { ca: Some(self.authority.file.clone()), cert, key },
            service: None,
        }
    }
}

/// A recording as a job, in this caller's tenant.
fn import(mut command: Command) {
    run(command.arg(folder("cnn_rank0_cache")).args(["--job", "train-1", "-q"]));
}

#[test]
fn a_certificate_has_the_role_and_the_tenant_of_its_entry() {
    let place = Certified::new();
    let subject = |role: &str, tenant: &str| format!("{role}.{tenant}");
    // One tenant's certificates are named by the subject, the other's by an alternative name.
    let of = |role: &str, tenant: &str| match tenant == TENANTS[0] {
        true => subject(role, tenant),
        false => format!("{}.example.org", subject(role, tenant)),
    };
    let pairs: Vec<(&str, &str)> = TENANTS.iter().flat_map(|tenant| ROLES.map(|role| (role, *tenant))).collect();
    let rows: Vec<String> = pairs.iter().map(|(role, tenant)| row(&of(role, tenant), role, tenant)).collect();
    place.configure(&rows);
    let daemon = place.daemon();
    let issued: Vec<Identity> =
        pairs.iter().map(|(role, tenant)| place.authority.issue(&subject(role, tenant))).collect();
    let operator = &issued[2];
    import(place.command(&daemon, operator, &["import"]));
    for ((role, tenant), identity) in pairs.iter().zip(&issued) {
        // The table of rights has the roles for each call: queries, operation, administration.
        for (arguments, roles) in [
            (&["jobs", "-o", "json"][..], &ROLES[1..]),
            (&["alerts", "silence", "--job", "x", "--for", "1m", "-q"], &ROLES[2..]),
            (&["audit"], &ROLES[3..]),
        ] {
            let output = place.ask(&daemon, identity, arguments);
            assert_eq!(
                output.status.success(),
                roles.contains(role),
                "{role} {tenant} {arguments:?}: {}",
                stderr(&output)
            );
            let refused = format!("certificate {} is {role}", of(role, tenant));
            assert!(output.status.success() || stderr(&output).contains(&refused), "{}", stderr(&output));
            if output.status.success() && arguments[0] == "jobs" {
                assert_eq!(stdout(&output).contains("train-1"), *tenant == TENANTS[0], "{role} of {tenant}");
            }
        }
    }
    // Another tenant has no such job, and may have its own job of the same name.
    let other = &issued[6];
    assert_eq!(place.ask(&daemon, other, &["delete", "--job", "train-1", "-y"]).status.code(), Some(4));
    import(place.command(&daemon, other, &["import"]));
    run(&mut place.command(&daemon, other, &["delete", "--job", "train-1", "-y", "-q"]));
    let left = run_json(&mut place.command(&daemon, operator, &["query", "--job", "train-1", "-o", "json"]));
    assert_eq!(left["completeness"]["exact"], true, "{left}");
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn certificates_of_others_and_of_yesterday_are_refused() {
    let place = Certified::new();
    place.configure(&[row("node", "reader", "default")]);
    let daemon = place.daemon();
    let good = place.authority.issue("node");
    assert!(place.ask(&daemon, &good, &["jobs"]).status.success());
    let expired = place.authority.issue_until("node-expired", (2021, 1, 1));
    let foreign = Authority::new(place.home.path(), "foreign").issue("node-foreign");
    let unnamed = place.authority.issue("unnamed");
    for (who, identity, words) in [
        ("expired", &expired, "refuses the certificate"),
        ("of another authority", &foreign, "refuses the certificate"),
        (
            "without an entry",
            &unnamed,
            "no [[access.certificate]] has a name of the certificate that was shown (unnamed)",
        ),
    ] {
        let output = place.ask(&daemon, identity, &["jobs"]);
        assert_eq!(output.status.code(), Some(6), "{who}: {}", stdout(&output));
        assert!(stderr(&output).contains(words), "{who}: {}", stderr(&output));
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_connection_that_is_taken_and_never_answered_is_not_waited_for() {
    let place = Certified::new();
    place.configure(&[row("node", "reader", "default")]);
    let daemon = place.daemon();
    let (node, server) = (place.authority.issue("node"), place.authority.issue("silent"));
    let port = daemon.url.rsplit_once(':').unwrap().1.parse().unwrap();
    let silent = Silent::first(1, &server, port);
    let mut command = memctl();
    command.args(["jobs", "--daemon", &silent.url, "--tls-ca"]).arg(&place.authority.file);
    command.arg("--tls-cert").arg(&node.cert).arg("--tls-key").arg(&node.key);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(silent.kept(), 1, "the second connection answered");
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_certificate_is_revoked_by_taking_its_entry_away() {
    let place = Certified::new();
    let admin = row("admin", "admin", "*");
    let node = row("node-*", "agent", "default");
    place.configure(&[admin.clone(), node.clone()]);
    let daemon = place.daemon();
    let (root, identity) = (place.authority.issue("admin"), place.authority.issue("node-7"));
    let job = "train-revoked";
    let config = streaming::config(job, &daemon.url);
    let agent =
        Agent::start(AgentConfig { daemon: Daemon::Address(place.address(&daemon, &identity)), ..config }).unwrap();
    let (stop, breaker) = (Arc::new(AtomicBool::new(false)), agent.breaker());
    let stopped = stop.clone();
    let streaming = std::thread::spawn(move || {
        let pushed = streaming::stream(&agent, job, &stopped, |_| {});
        (agent.stop(None, PATIENCE), pushed)
    });
    let asking = place.address(&daemon, &root);
    until("the agent streams", || streams(&asking) == 1);
    place.configure(std::slice::from_ref(&admin));
    reload(&daemon);
    until("the stream of a certificate without an entry ends", || streams(&asking) == 0);
    let refused = place.ask(&daemon, &identity, &["jobs"]);
    assert!(stderr(&refused).contains("(node-7)"), "{}", stderr(&refused));
    place.configure(&[admin, node]);
    reload(&daemon);
    let before = breaker.stored_events();
    until("the agent goes on", || breaker.stored_events() > before && streams(&asking) == 1);
    stop.store(true, Ordering::Relaxed);
    let (outcome, pushed) = streaming.join().unwrap();
    assert!(outcome.delivered && outcome.counts.dropped == 0, "{outcome:?}");
    assert_eq!(daemon.terminate(), 0);
    let daemon = DaemonProcess::sqlite(&place.home.path().join("data"), free_port());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(compare(&daemon.url, job, 0, Some(pushed)));
    assert_eq!(daemon.terminate(), 0);
}
