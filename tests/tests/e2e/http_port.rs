//! The HTTP port: every role × every tenant × every page, on loopback and off it over TLS; who is admitted without a
//! token, and where the port may listen.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memctl_agent::credentials::{Credentials, TokenSource};
use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_daemon::access::Role;
use memctl_daemon::access::rights::RIGHTS;
use memctl_model::{DeviceInfo, SessionInfo};
use memctl_tests::certificates::{Authority, Identity};
use memctl_tests::daemon::DaemonProcess;
use memctl_tests::https::{Answer, Pipe, Port, address, off_loopback};
use memctl_tests::jobs::{Training, session, train};
use memctl_tests::prometheus::Prometheus;
use memctl_tests::{memctl, run, run_json, stderr};

const TENANTS: [&str; 2] = ["team-a", "team-b"];
/// The job in both tenants.
const JOB: &str = "shared";

/// Text that only this tenant's job contains.
fn marker(tenant: &str) -> String {
    format!("host-of-{tenant}")
}

/// Every page of one segment that has a row in the table of rights, and the sufficient roles. `page.rs` tests the paths
/// that set and clear cookies.
fn pages() -> Vec<(&'static str, &'static [Role], bool)> {
    let of_cookies = ["/login", "/logout", "/enter"];
    let rows = RIGHTS.iter().filter(|(path, _)| path.matches('/').count() == 1 && !of_cookies.contains(path));
    let open = |path: &str| {
        let required = memctl_daemon::access::rights::need(path);
        required == Some(memctl_daemon::access::rights::Need::Nothing)
    };
    rows.map(|(path, need)| (*path, need.roles(), open(path))).collect()
}

fn token(dir: &Path, name: &str, role: &str, tenant: &str, more: &[&str]) -> String {
    let words = ["token", "create", name, "--role", role, "--tenant", tenant, "-o", "json", "--data-dir"];
    let made = run_json(memctl().args(words).arg(dir).args(more));
    made["tokens"][0]["secret"].as_str().expect("a secret").to_owned()
}

fn record(url: &str, tenant: &str, token: &str) {
    let device =
        DeviceInfo { uuid: Some(format!("GPU-of-{tenant}")), total_bytes: Some(80 << 30), ..Default::default() };
    let session = SessionInfo { host: Some(marker(tenant)), devices: vec![device], ..session(JOB, 0) };
    let credentials = Credentials { token: Some(TokenSource::Text(token.to_owned())), tenant: None };
    let config = AgentConfig::new(session, Daemon::Address(url.into()).showing(credentials));
    let agent = Agent::start(config).unwrap();
    train(&agent, Training { kept_a_step: 8 << 20, ..Training::default() });
    let outcome = agent.stop(None, Duration::from_secs(60));
    assert!(outcome.delivered, "{outcome:?}");
}

/// A daemon with one HTTP port on loopback and one off it, over TLS; gRPC is plain, on loopback.
struct Served {
    daemon: DaemonProcess,
    near: Port,
    far: Port,
}

fn served(dir: &Path, authority: &Authority, server: &Identity, flags: &[&str]) -> Served {
    let far = SocketAddr::new(off_loopback(), 0);
    let mut command = memctl();
    command.args(["daemon", "--data-dir"]).arg(dir).arg("--tls-cert").arg(&server.cert).arg("--tls-key");
    command.arg(&server.key).args(["--http-listen", "http://127.0.0.1:0", "--http-listen", &far.to_string()]);
    command.args(["--listen", "http://127.0.0.1:0"]).args(flags);
    let daemon = DaemonProcess::of(&mut command);
    let [near, far] = [0, 1].map(|at| address(&daemon.http[at]));
    Served { daemon, near: Port::plain(near), far: Port::tls(far, &authority.file) }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// The whole response, to search it for text that must not occur.
fn all(answer: &Answer) -> String {
    format!("{}\n{}", answer.head, answer.body)
}

#[test]
fn every_role_of_every_tenant_gets_the_pages_of_its_row_and_nothing_of_others() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let tokens: Vec<(Role, &str, String)> = [TENANTS[0], TENANTS[1], "*"]
        .into_iter()
        .flat_map(|tenant| Role::ALL.map(|role| (role, tenant)))
        .filter(|(role, tenant)| *tenant != "*" || *role != Role::Agent)
        .map(|(role, tenant)| (role, tenant, token(dir, role.name(), role.name(), tenant, &[])))
        .collect();
    let of = |role: Role, tenant: &str| {
        tokens.iter().find(|(other, of, _)| (*other, *of) == (role, tenant)).unwrap().2.as_str()
    };
    let revoked = token(dir, "revoked", "reader", TENANTS[0], &[]);
    let expiring = token(dir, "expiring", "reader", TENANTS[0], &["--expires", "1s"]);
    let authority = Authority::new(dir, "ours");
    let Served { daemon, near, far } = served(dir, &authority, &authority.issue("daemon"), &[]);
    for tenant in TENANTS {
        record(&daemon.url, tenant, of(Role::Agent, tenant));
    }
    let root = dir.join("root");
    std::fs::write(&root, of(Role::Admin, "*")).unwrap();
    let revoke = ["token", "revoke", "revoked", "-q", "--tenant", TENANTS[0], "--daemon", &daemon.url, "--token-file"];
    run(memctl().args(revoke).arg(&root));

    for port in [&near, &far] {
        for tenant in TENANTS {
            until("the job has series", || {
                port.page("/metrics", Some(of(Role::Reader, tenant))).body.contains(&marker(tenant))
            });
        }
        let mut seen = 0;
        for (path, roles, is_open) in pages() {
            for (role, tenant, token) in &tokens {
                let may = roles.contains(role);
                for method in ["GET", "HEAD"] {
                    let answer = port.ask(method, path, &[format!("Authorization: Bearer {token}")]);
                    let said = all(&answer);
                    assert_eq!(answer.status, if may { 200 } else { 403 }, "{method} {path} {role:?} {tenant}: {said}");
                    assert!(method == "GET" || answer.body.is_empty(), "{said}");
                    for other in TENANTS.into_iter().filter(|other| *tenant != "*" && other != tenant) {
                        assert!(!said.contains(other), "{role:?} of {tenant} reads of {other} in {path}: {said}");
                    }
                    seen += usize::from(said.contains(&marker(tenant)));
                }
            }
            // No token, and invalid ones.
            for token in [None, Some("memctl_0000000000000000_0"), Some(""), Some(revoked.as_str())] {
                let answer = port.page(path, token);
                let expected = if is_open { 200 } else { 401 };
                assert_eq!(answer.status, expected, "{path} {token:?}: {}", all(&answer));
                assert!(TENANTS.iter().all(|tenant| !all(&answer).contains(tenant)), "{}", all(&answer));
                assert_eq!(answer.status == 401, answer.head.to_ascii_lowercase().contains("www-authenticate: bearer"));
            }
            let basic = port.ask("GET", path, &["Authorization: Basic YTpi".into()]);
            assert_eq!(basic.status, if is_open { 200 } else { 401 });
        }
        assert_eq!(seen, 2 * 3, "readers, operators and admins of both see their own");
        // A request names one tenant: with a token of all tenants, of that one, and of another one.
        let named = |role, tenant, wanted: &str| {
            let headers = [format!("Authorization: Bearer {}", of(role, tenant)), format!("memctl-tenant: {wanted}")];
            port.ask("GET", "/metrics", &headers)
        };
        for tenant in TENANTS {
            let (one, own) = (named(Role::Reader, "*", tenant), named(Role::Reader, tenant, tenant));
            for answer in [one, own] {
                assert_eq!(answer.status, 200);
                assert!(TENANTS.iter().all(|it| answer.body.contains(&marker(it)) == (*it == tenant)));
            }
            for other in TENANTS.into_iter().filter(|other| *other != tenant).chain(["*"]) {
                assert_eq!(named(Role::Admin, tenant, other).status, 403);
            }
        }
        let whole = port.page("/metrics", Some(of(Role::Reader, "*")));
        assert!(TENANTS.iter().all(|tenant| whole.body.contains(&marker(tenant))));
        assert!(whole.body.contains("memctl_connections{port=\"http\"}"), "{}", whole.body);
        // Sums over all tenants would reveal the load of other tenants.
        let part = port.page("/metrics", Some(of(Role::Admin, TENANTS[0]))).body;
        for name in ["memctl_store_jobs", "memctl_ingest_events_total", "memctl_alerts", "memctl_connections"] {
            assert!(whole.body.contains(&format!("# TYPE {name} ")), "{name} is there for those who see all");
            assert!(!part.contains(&format!("# TYPE {name} ")), "{name} is not a tenant's: {part}");
        }
        until("the token expires", || port.page("/metrics", Some(&expiring)).status == 401);
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_machine_of_one_user_is_open_on_loopback_and_closed_to_others() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new(home.path(), "ours");
    let Served { daemon, near, far } = served(home.path(), &authority, &authority.issue("daemon"), &[]);
    assert_eq!(near.page("/metrics", None).status, 200);
    let answer = far.page("/metrics", None);
    assert_eq!(answer.status, 401, "{}", all(&answer));
    for (path, _, is_open) in pages() {
        assert_eq!(far.page(path, None).status, if is_open { 200 } else { 401 }, "{path}");
    }
    // A plain client is refused by the TLS port, and a TLS client by the plain port.
    assert!(Port::plain(far.address).send(b"GET /healthz HTTP/1.0\r\n\r\n").is_err());
    assert!(Port::tls(near.address, &authority.file).send(b"GET /healthz HTTP/1.0\r\n\r\n").is_err());
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_certificate_is_a_caller_over_http_as_well() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let (ours, other) = (Authority::new(dir, "ours"), Authority::new(dir, "other"));
    let config = dir.join("memctl.toml");
    let text = "[[access.certificate]]\nname = \"scraper.example.org\"\nrole = \"reader\"\ntenant = \"team-a\"\n\
         [[access.certificate]]\nname = \"node.example.org\"\nrole = \"agent\"\ntenant = \"team-a\"\n";
    std::fs::write(&config, text).unwrap();
    let ca = ours.file.to_str().unwrap();
    for (mode, without) in [("optional", true), ("required", false)] {
        let flags = ["--config", config.to_str().unwrap(), "--tls-client-ca", ca, "--tls-client-auth", mode];
        let Served { daemon, far, .. } = served(dir, &ours, &ours.issue("daemon"), &flags);
        let shown = |identity: Identity| Port { identity: Some(identity), ..far.clone() };
        assert_eq!(shown(ours.issue("scraper")).page("/metrics", None).status, 200);
        assert_eq!(shown(ours.issue("node")).page("/metrics", None).status, 403, "an agent writes and does not ask");
        assert_eq!(shown(ours.issue("somebody")).page("/metrics", None).status, 401);
        let healthz = b"GET /healthz HTTP/1.0\r\n\r\n";
        assert!(shown(other.issue("scraper")).send(healthz).is_err(), "another authority's");
        assert_eq!(far.send(healthz).is_ok(), without, "a probe has no certificate");
        assert_eq!(daemon.terminate(), 0);
    }
}

#[test]
fn the_port_is_off_loopback_with_tls_alone() {
    let home = tempfile::tempdir().unwrap();
    let server = Authority::new(home.path(), "ours").issue("daemon");
    let checked = |flags: &[&str]| {
        let mut command = memctl();
        command.args(["daemon", "--check", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path().join("store"));
        command.args(flags).output().unwrap()
    };
    let tls = ["--tls-cert", server.cert.to_str().unwrap(), "--tls-key", server.key.to_str().unwrap()];
    for exposed in ["0.0.0.0:9717", "[::]:9717", "http://0.0.0.0:9717", "127.0.0.1:9717,0.0.0.0:9718"] {
        let output = checked(&["--http-listen", exposed]);
        assert_eq!(output.status.code(), Some(2), "{exposed}: {}", stderr(&output));
        assert!(stderr(&output).contains("has no TLS") && stderr(&output).contains("--insecure"), "{output:?}");
        assert_eq!(checked(&["--insecure", "--http-listen", exposed]).status.code(), Some(0), "{exposed}");
    }
    let plain = checked(&[&tls[..], &["--http-listen", "http://0.0.0.0:9717"]].concat());
    assert_eq!(plain.status.code(), Some(2), "it has a certificate and does not use it: {}", stderr(&plain));
    let enciphered = checked(&[&tls[..], &["--http-listen", "0.0.0.0:9717"]].concat());
    assert_eq!(enciphered.status.code(), Some(0), "{}", stderr(&enciphered));
    let off =
        memctl().args(["daemon", "--check", "--data-dir"]).arg(home.path()).env("MEMCTL_HTTP_LISTEN", "").output();
    assert!(memctl_tests::stdout(&off.unwrap()).contains("http          off"));
}

/// The first line of a response without a body; the connection stays open.
fn asked(kept: &mut dyn Pipe, path: &str) -> String {
    kept.write_all(format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        kept.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_hangup_exchanges_the_certificate_of_the_http_port() {
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(home.path(), "old"), Authority::new(home.path(), "new"));
    let server = old.issue("daemon");
    let Served { daemon, far, .. } = served(home.path(), &old, &server, &[]);
    let believed = |authority: &Authority| {
        let port = Port { ca: Some(PathBuf::from(&authority.file)), ..far.clone() };
        port.send(b"GET /healthz HTTP/1.0\r\n\r\n").is_ok()
    };
    assert!(believed(&old) && !believed(&new));
    // An earlier connection continues.
    let mut kept = far.connect();
    assert_eq!(asked(&mut *kept, "/healthz"), "HTTP/1.1 200 OK");
    new.issue("renewed").replaces(&server);
    assert!(Command::new("kill").args(["-HUP", &daemon.pid().to_string()]).status().unwrap().success());
    until("the new certificate is shown", || believed(&new));
    assert!(!believed(&old));
    assert_eq!(asked(&mut *kept, "/readyz"), "HTTP/1.1 200 OK");
    assert_eq!(daemon.terminate(), 0);
}

/// The configuration of an operator: an authority, and tokens in files, one per tenant and one for all tenants.
#[test]
fn a_real_prometheus_scrapes_over_tls_with_a_token() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let authority = Authority::new(dir, "ours");
    let agents = TENANTS.map(|tenant| token(dir, "agent", "agent", tenant, &[]));
    let mut scrapes = String::new();
    for (tenant, name) in [(TENANTS[0], "part"), ("*", "whole"), ("none", "unknown")] {
        let file = dir.join(name);
        let secret = match tenant {
            "none" => "memctl_0000000000000000_0".to_owned(),
            tenant => token(dir, name, "reader", tenant, &[]),
        };
        std::fs::write(&file, secret).unwrap();
        scrapes += &format!(
            "- {{ job_name: {name}, scheme: https, tls_config: {{ ca_file: {:?}, server_name: localhost }}, \
             authorization: {{ credentials_file: {file:?} }}, static_configs: [{{ targets: [\"TARGET\"] }}] }}\n",
            authority.file
        );
    }
    let Served { daemon, far, .. } = served(dir, &authority, &authority.issue("daemon"), &[]);
    for (tenant, token) in TENANTS.iter().zip(&agents) {
        record(&daemon.url, tenant, token);
    }
    let prometheus =
        Prometheus::scraping(&format!("scrape_configs:\n{}", scrapes.replace("TARGET", &far.address.to_string())));
    let series = |query: &str| prometheus.query(query).len();
    until("both scrapes give jobs", || {
        series("memctl_job_info{job=\"whole\"}") == 2 && series("memctl_job_info{job=\"part\"}") == 1
    });
    assert_eq!(series("memctl_job_info{job=\"part\", tenant=\"team-a\"}"), 1);
    // The daemon counts stored data at intervals, so the first scrape may lack it.
    until("what is stored is counted", || series("memctl_store_jobs{job=\"whole\"}") == 1);
    assert_eq!(series("memctl_store_jobs{job=\"part\"}"), 0);
    until("the third is refused", || series("up{job=\"unknown\"} == 0") == 1);
    assert_eq!(series("memctl_build_info{job=\"unknown\"}"), 0);
    assert_eq!(daemon.terminate(), 0);
}
