//! Certificates and authorities, of the daemon and of its clients, replaced several times while agents stream.
//!
//! All connections are cut after each step, so that every generation is used. The daemon's log shows the certificate of
//! each agent, and the test reads the daemon's certificate. At the end every produced event is stored once.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use memctl_agent::reach::{DaemonAddress, Tls};
use memctl_agent::{Agent, AgentConfig, Breaker, Daemon, Outcome};
use memctl_tests::certificates::{Authority, Identity, put, served};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres::Database;
use memctl_tests::proxy::Proxy;
use memctl_tests::streaming::{self, PATIENCE, compare, until, until_ok};
use memctl_tests::{memctl, run};

const AGENTS: usize = 4;
/// The number of replacements; one of them without a signal, when the daemon checks by itself.
const GENERATIONS: usize = 4;
const BY_ITSELF: usize = 2;
/// An agent that has stored this many more events counts as continuing.
const MORE: u64 = 5_000;

fn job(agent: usize) -> String {
    format!("job-{agent}")
}

fn node(agent: usize, generation: usize) -> String {
    format!("node-{agent}-g{generation}")
}

struct Streaming {
    breaker: Breaker,
    thread: JoinHandle<(Outcome, u64)>,
}

/// An agent that reads its certificate and its authorities from these files.
fn start(agent: usize, url: &str, ca: &Path, identity: &Identity, stop: &Arc<AtomicBool>) -> Streaming {
    let tls = Tls { ca: Some(ca.to_owned()), cert: Some(identity.cert.clone()), key: Some(identity.key.clone()) };
    let daemon = Daemon::Address(DaemonAddress { url: url.to_owned(), tls, service: None });
    let config = streaming::config(&job(agent), url);
    let agent_started = Agent::start(AgentConfig { daemon, ..config }).expect("the agent starts");
    let (breaker, stop) = (agent_started.breaker(), stop.clone());
    let thread = std::thread::spawn(move || {
        let pushed = streaming::stream(&agent_started, &job(agent), &stop, |_| {});
        (agent_started.stop(None, PATIENCE), pushed)
    });
    Streaming { breaker, thread }
}

/// The daemon's output so far.
fn followed(said: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let kept = text.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            let mut text = kept.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
        }
    });
    text
}

/// Whether the daemon answers a client with this certificate; if not, why.
fn answers(url: &str, ca: &Path, identity: &Identity) -> Result<(), String> {
    let mut command = memctl();
    command.args(["jobs", "--daemon", url, "--tls-ca"]).arg(ca);
    command.arg("--tls-cert").arg(&identity.cert).arg("--tls-key").arg(&identity.key);
    let asked = command.output().unwrap();
    if asked.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&asked.stderr).into_owned()) }
}

struct Place {
    home: tempfile::TempDir,
    /// The authorities that clients trust, and those that the daemon trusts for clients.
    trust: PathBuf,
    clients: PathBuf,
    server: Identity,
    nodes: Vec<Identity>,
}

impl Place {
    fn new(authority: &mut Option<Authority>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let first = Authority::new(home.path(), "ca-0");
        let (trust, clients) = (home.path().join("trust.pem"), home.path().join("clients.pem"));
        for file in [&trust, &clients] {
            put(file, &[&first.file]);
        }
        let grants = |name: &str, role: &str| {
            format!("[[access.certificate]]\nname = \"{name}\"\nrole = \"{role}\"\ntenant = \"default\"\n")
        };
        std::fs::write(home.path().join("memctl.toml"), grants("node-*", "agent") + &grants("probe-*", "reader"))
            .unwrap();
        let (server, nodes) = (first.issue("daemon"), (0..AGENTS).map(|agent| first.issue(&node(agent, 0))).collect());
        *authority = Some(first);
        Self { home, trust, clients, server, nodes }
    }

    fn daemon(&self, store: &[&str]) -> DaemonProcess {
        let mut command = memctl();
        command.args(["daemon", "--listen", "127.0.0.1:0", "--config"]).arg(self.home.path().join("memctl.toml"));
        command.args(store).arg("--tls-cert").arg(&self.server.cert).arg("--tls-key").arg(&self.server.key);
        command.arg("--tls-client-ca").arg(&self.clients).env("MEMCTL_LOG", "info").stderr(Stdio::piped());
        DaemonProcess::of(&mut command)
    }
}

fn rotated(store: &[&str]) {
    let mut authority = None;
    let place = Place::new(&mut authority);
    let mut authority = authority.unwrap();
    let mut daemon = place.daemon(store);
    let said = followed(daemon.said().unwrap());
    let proxy = Proxy::before(daemon.url.rsplit_once(':').unwrap().1.parse().unwrap());
    let url = proxy.url.replace("http:", "https:");
    let stop = Arc::new(AtomicBool::new(false));
    let agents: Vec<Streaming> =
        place.nodes.iter().enumerate().map(|(at, identity)| start(at, &url, &place.trust, identity, &stop)).collect();
    let go_on = |what: &str| {
        let before: Vec<u64> = agents.iter().map(|agent| agent.breaker.stored_events()).collect();
        proxy.cut();
        let more = |(agent, before): (&Streaming, &u64)| agent.breaker.stored_events() > before + MORE;
        until(what, || agents.iter().zip(&before).all(more));
    };
    go_on("the agents begin");
    let mut stale = authority.issue("probe-0");
    let mut shown = BTreeSet::from([served(&daemon.url, &place.trust).unwrap()]);
    for generation in 1..=GENERATIONS {
        let new = Authority::new(place.home.path(), &format!("ca-{generation}"));
        let tell = || {
            if generation != BY_ITSELF {
                run(Command::new("kill").args(["-HUP", &daemon.pid().to_string()]));
            }
        };
        // Both authorities are trusted, then every party gets a new certificate, then the old authority is removed.
        put(&place.trust, &[&authority.file, &new.file]);
        put(&place.clients, &[&authority.file, &new.file]);
        tell();
        let probe = new.issue(&format!("probe-{generation}"));
        until_ok("the new authority counts", || {
            answers(&daemon.url, &place.trust, &probe)
                .map_err(|why| format!("the daemon said:\n{}and the client: {why}", said.lock().unwrap()))
        });
        go_on("the agents go on while both authorities count");
        let server = new.issue(&format!("daemon-{generation}"));
        server.replaces(&place.server);
        for (agent, identity) in place.nodes.iter().enumerate() {
            new.issue(&node(agent, generation)).replaces(identity);
        }
        tell();
        until("the new certificate is shown", || served(&daemon.url, &new.file) == Some(server.der()));
        shown.insert(server.der());
        go_on("the agents go on with new certificates");
        put(&place.trust, &[&new.file]);
        put(&place.clients, &[&new.file]);
        tell();
        until("the old authority is rejected", || answers(&daemon.url, &place.trust, &stale).is_err());
        assert_eq!(answers(&daemon.url, &place.trust, &probe), Ok(()));
        go_on("the agents go on without the old authority");
        for agent in 0..AGENTS {
            let words = format!("certificate {}", node(agent, generation));
            until(&words, || said.lock().unwrap().contains(&words));
        }
        (authority, stale) = (new, probe);
    }
    assert_eq!(shown.len(), GENERATIONS + 1, "each generation had its certificate");
    assert!(proxy.cuts() >= (AGENTS * 3 * GENERATIONS) as u64, "{} connections were cut", proxy.cuts());
    stop.store(true, Ordering::Relaxed);
    let ended: Vec<(Outcome, u64)> = agents.into_iter().map(|agent| agent.thread.join().unwrap()).collect();
    assert_eq!(daemon.terminate(), 0);
    // Without TLS and roles, all stored events are compared one by one.
    let mut plain = memctl();
    let daemon = DaemonProcess::start(plain.arg("daemon").args(store), free_port());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (agent, (outcome, pushed)) in ended.into_iter().enumerate() {
        assert!(outcome.delivered && outcome.counts.dropped == 0, "{}: {outcome:?}", job(agent));
        assert_eq!((outcome.end.produced, outcome.counts.stored), (pushed, pushed), "{}", job(agent));
        runtime.block_on(compare(&daemon.url, &job(agent), 0, Some(pushed)));
        println!("{}: {pushed} events, each stored once", job(agent));
    }
    println!("{} connections were cut", proxy.cuts());
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn certificates_and_authorities_are_exchanged_under_load_and_no_event_is_lost() {
    let store = tempfile::tempdir().unwrap();
    rotated(&["--data-dir", store.path().to_str().unwrap()]);
}

#[test]
fn certificates_are_replaced_under_load_with_a_postgres_store() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(Database::create());
    rotated(&["--store", &database.url]);
    runtime.block_on(database.remove());
}
