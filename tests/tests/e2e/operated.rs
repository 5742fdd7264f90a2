//! The daemon as an operator sees it: metrics that a real Prometheus scrapes, rules that reach a real Alertmanager,
//! health while a real Postgres is down, a reloaded configuration, and systemd's protocol.
//! (Over 400 lines: each test is a separate scenario with several servers.)

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_daemon::access::tokens::AGE_MAX;
use memctl_daemon::metrics::definitions;
use memctl_model::{DeviceIndex, DeviceInfo, Sample, SessionInfo};
use memctl_tests::alertmanager::Alertmanager;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::{Receiver, Reply, get, until};
use memctl_tests::jobs::{Training, record, session, train};
use memctl_tests::prometheus::{Prometheus, promtool};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, postgres, run, run_json, stderr};

const MIB: u64 = 1 << 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// A daemon with an HTTP port, and that port.
fn watched(store: &Path, flags: &[&str]) -> (DaemonProcess, String) {
    let http = format!("127.0.0.1:{}", free_port());
    let flags = [&["--http-listen", http.as_str()], flags].concat();
    (DaemonProcess::sqlite_with(store, free_port(), &flags), http)
}

fn rank(job: &str, rank: u32) -> SessionInfo {
    let device = DeviceInfo {
        uuid: Some(format!("GPU-{rank}")),
        index: DeviceIndex(0),
        total_bytes: Some(80 << 30),
        ..DeviceInfo::default()
    };
    SessionInfo { world_size: Some(4), devices: vec![device], ..session(job, rank) }
}

/// Four ranks that leak; one is killed, three continue until the returned agents are dropped.
fn leaking(url: &str) -> Vec<Agent> {
    let mut agents: Vec<Agent> = (0..4)
        .map(|at| Agent::start(AgentConfig::new(rank("leaky", at), Daemon::Address(url.into()))).unwrap())
        .collect();
    for agent in &agents {
        train(agent, Training { kept_a_step: 4 * MIB, ..Training::default() });
        agent.sample(Sample {
            time_ns: memctl_agent::now_ns(),
            device_used_bytes: Some(2 << 30),
            device_total_bytes: Some(80 << 30),
            alloc_retries: Some(1),
            ..Sample::default()
        });
    }
    let killed = agents.pop().unwrap();
    assert!(killed.stop(Some("killed by signal 9 (SIGKILL)".into()), Duration::from_secs(60)).delivered);
    agents
}

/// A rank whose ring is smaller than a burst of its events, so that it reports dropped events.
fn dropping(url: &str) {
    let config =
        AgentConfig { ring_events: 1_024, ..AgentConfig::new(session("droppy", 0), Daemon::Address(url.into())) };
    let agent = Agent::start(config).unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    recorder.segment_alloc(1 << 40, 1 << 30, 0);
    for round in 0..200_000_u64 {
        let address = (1 << 40) + (round % 64) * MIB;
        recorder.alloc(address, MIB, 0, memctl_model::StackId::NONE);
        recorder.free(address, MIB, 0);
    }
    drop(recorder);
    let outcome = agent.stop(None, Duration::from_secs(60));
    assert!(outcome.delivered && outcome.counts.dropped > 0, "it was to drop: {outcome:?}");
}

fn scrape(http: &str) -> String {
    let (status, text) = get(&format!("http://{http}/metrics")).expect("the daemon answers");
    assert_eq!(status, 200, "{text}");
    text
}

/// The metrics of a page: name, type and labels.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let labels = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (cells[0].replace('`', ""), (cells[1].to_owned(), labels))
    })
    .collect()
}

#[test]
fn every_metric_stands_on_its_page_and_no_other() {
    let there: BTreeMap<String, (String, BTreeSet<String>)> = definitions::ALL
        .iter()
        .map(|metric| {
            let labels = metric.labels.iter().map(|label| (*label).to_owned()).collect();
            (metric.name.to_owned(), (metric.kind.name().to_owned(), labels))
        })
        .collect();
    assert_eq!(documented(), there, "docs/metrics.md differs from the program");
}

/// The queries of a dashboard that are about jobs, with their legends.
fn of_jobs(board: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join(format!("deploy/grafana/{board}.json"))).unwrap();
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let words = targets.map(|target| ["expr", "legendFormat"].map(|key| target[key].as_str().unwrap().to_owned()));
    words.map(|[query, legend]| (query, legend)).filter(|(query, _)| query.contains("job=~")).collect()
}

#[test]
fn dashboards_keep_the_runs_of_different_tenants_apart() {
    const RUN: &str = "by (tenant, job, run, attempt";
    for (board, variables) in [("cluster", vec!["tenant", "job"]), ("job", vec!["tenant", "job", "run"])] {
        let queries = of_jobs(board);
        assert!(queries.len() > 10, "{board}: {queries:?}");
        for (query, legend) in queries {
            // Two daemons on one Postgres may both have series of a run: the run is counted once.
            assert!(query.contains(RUN), "{board}: {query} adds up different runs");
            let selectors = query.matches('{').count();
            for variable in &variables {
                let set = query.matches(&format!("{variable}=~\"${variable}\"")).count();
                assert_eq!(set, selectors, "{board}: {query} does not select by {variable}");
            }
            let all_runs = ["sum(", "sum by (state)", "sum by (severity)", "count by (state)"];
            let named = legend.contains("{{tenant}}") && legend.contains("{{run}}");
            assert!(named || all_runs.iter().any(|sum| query.starts_with(sum)), "{board}: {query}: {legend}");
        }
    }
}

#[test]
fn a_dashboard_counts_an_alert_of_two_daemons_on_one_store_once() {
    let queries = queries(&root().join("deploy/grafana/daemon.json"));
    let alerts: Vec<&String> = queries.iter().filter(|query| query.contains("memctl_alerts{")).collect();
    assert_eq!(alerts, ["max by (state) (memctl_alerts{instance=~\".*\"})"]);
}

/// The queries of a dashboard, with its variables set to everything.
fn queries(dashboard: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dashboard).unwrap();
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    let variables = board["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["name"] == "datasource"), "{}", dashboard.display());
    assert!(!board["__requires"].as_array().unwrap().is_empty());
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let set = |query: &str| {
        let query = ["tenant", "job", "run", "rank", "instance"]
            .iter()
            .fold(query.to_owned(), |query, name| query.replace(&format!("${name}"), ".*"));
        query.replace("$__rate_interval", "1m")
    };
    targets.map(|target| set(target["expr"].as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_scrapes_every_query_gives_data_and_a_rule_reaches_alertmanager() {
    let store = tempfile::tempdir().unwrap();
    let behind = Receiver::start(|_| Reply::Status(200));
    let alertmanager = Alertmanager::start(&behind.url);
    // The daemon's own alerts are sent there as well, so that its metrics count deliveries.
    let receivers = store.path().join("alerts.toml");
    let text = format!("[[receiver]]\nname = \"am\"\ntype = \"alertmanager\"\nurl = \"{}\"\n", alertmanager.url);
    std::fs::write(&receivers, text).unwrap();
    let (daemon, http) = watched(store.path(), &["--alert-rules", receivers.to_str().unwrap()]);
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "vit"]).arg(folder("gpt_val_graph_leak")));
    let url = daemon.url.clone();
    let agents = tokio::task::spawn_blocking(move || {
        dropping(&url);
        leaking(&url)
    })
    .await
    .unwrap();
    let (rules, host) = (root().join("deploy/prometheus"), alertmanager.url.replace("http://", ""));
    let prometheus = Prometheus::start(&http, &rules, &host);

    until("an alert of a lost rank is active", || {
        alertmanager
            .active()
            .iter()
            .any(|alert| alert["labels"]["alertname"] == "MemctlRanksLost" && alert["labels"]["job"] == "leaky")
    })
    .await;
    let mut asked: Vec<String> = Vec::new();
    for board in ["cluster", "job", "daemon"] {
        let own = queries(&root().join("deploy/grafana").join(format!("{board}.json")));
        assert!(own.len() > 10, "{board}: {own:?}");
        asked.extend(own);
    }
    let evaluated = || prometheus.rules().iter().all(|rule| rule["health"] != "unknown");
    until("every rule was evaluated", evaluated).await;
    for rule in prometheus.rules() {
        assert_eq!(rule["health"], "ok", "{rule}");
        let query = rule["query"].as_str().unwrap();
        // A series that exists only in case of a problem: the query is for its value, without the threshold.
        let figure =
            [" > ", " < ", " == "].iter().fold(query, |query, compare| query.split(compare).next().unwrap_or(query));
        // No job here ran out of memory: the unit test of the rules has one.
        let figure = figure.replace("{kind=\"oom\",severity=\"critical\"}", "");
        asked.push(match figure.strip_prefix("absent(") {
            Some(inner) => inner.trim_end_matches(')').to_owned(),
            None => figure,
        });
    }
    assert!(asked.len() > 80, "{}", asked.len());
    for query in &asked {
        // Rates need two scrapes.
        until(&format!("{query} gives data"), || !prometheus.query(query).is_empty()).await;
    }
    // Labels match those of dcgm-exporter, so that series can be joined.
    let joined = prometheus
        .query("memctl_device_used_bytes{job=\"leaky\", UUID=\"GPU-1\", rank=\"1\", gpu=\"0\", host=\"here\"}");
    assert_eq!((joined.len(), joined[0]["value"][1].as_str()), (1, Some("2147483648")));
    assert!(
        !prometheus
            .query("sum(increase(memctl_events_dropped_total[10m])) or memctl_job_events_dropped_total > 0")
            .is_empty()
    );

    let text = scrape(&http);
    let (content, said) = promtool(&["check", "metrics"], &root(), &text);
    assert!(content, "promtool check metrics: {said}");
    let reported: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let known: BTreeSet<&str> = definitions::ALL.iter().map(|metric| metric.name).collect();
    assert!(reported.is_subset(&known) && reported.len() > 55, "{:?}", known.difference(&reported).collect::<Vec<_>>());
    drop(agents);
}

#[test]
fn rules_are_checked_and_their_unit_tests_pass() {
    let folder = root().join("deploy/prometheus");
    for words in [
        ["check", "rules", "recording.rules.yml"],
        ["check", "rules", "alerting.rules.yml"],
        ["test", "rules", "rules.test.yml"],
    ] {
        let (content, said) = promtool(&words, &folder, "");
        assert!(content, "promtool {}: {said}", words.join(" "));
    }
}

#[test]
fn health_is_told_over_http_and_other_pages_are_not_there() {
    let store = tempfile::tempdir().unwrap();
    let (_daemon, http) = watched(store.path(), &[]);
    for page in ["healthz", "readyz"] {
        assert_eq!(get(&format!("http://{http}/{page}")), Some((200, "ok\n".to_owned())));
    }
    assert_eq!(get(&format!("http://{http}/nothing")).map(|(status, _)| status), Some(404));
    record(&_daemon.url, session("small", 0), |agent| train(agent, Training::default()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !scrape(&http)
        .contains("memctl_job_info{job=\"small\",tenant=\"default\",run=\"1\",attempt=\"0\",state=\"finished\"} 1")
    {
        assert!(Instant::now() < deadline, "{}", scrape(&http));
        std::thread::yield_now();
    }
}

/// A Postgres cluster that ends when dropped, also while it is stopped by a signal.
struct Cluster {
    folder: tempfile::TempDir,
    url: String,
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("memctl-pg").tempdir_in("/tmp").unwrap();
        let url = postgres::start(folder.path());
        Self { folder, url }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        signal_cluster(self.folder.path(), "-CONT");
        postgres::stop(self.folder.path());
    }
}

/// Sends a signal to every process of the Postgres cluster in a folder.
fn signal_cluster(folder: &Path, signal: &str) {
    let Ok(file) = std::fs::read_to_string(folder.join("data/postmaster.pid")) else { return };
    let postmaster = file.lines().next().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap();
    for pid in children.split_whitespace().chain([postmaster]) {
        // A process that has just ended cannot be stopped.
        let _ = Command::new("kill").args([signal, pid]).status();
    }
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn is_ready(http: &str) -> Option<u16> {
    get(&format!("http://{http}/readyz")).map(|(status, _)| status)
}

/// Sends a query to the daemon; returns the failure in words, and the time that it took.
fn asked(url: &str) -> (String, Duration) {
    let began = Instant::now();
    let output = memctl().args(["jobs", "--daemon", url]).output().unwrap();
    assert!(!output.status.success(), "the store is away");
    (stderr(&output), began.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_hangs_or_is_gone_is_told_at_once_and_nothing_is_lost() {
    let cluster = Cluster::start();
    let folder = cluster.folder.path();
    let http = format!("127.0.0.1:{}", free_port());
    let daemon =
        DaemonProcess::start(memctl().args(["daemon", "--store", &cluster.url, "--http-listen", &http]), free_port());
    until("it is ready", || is_ready(&http) == Some(200)).await;
    let agent =
        Agent::start(AgentConfig::new(session("steady", 0), Daemon::Address(daemon.url.as_str().into()))).unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    recorder.segment_alloc(1 << 40, 1 << 30, 0);
    let mut step = 0;
    let mut work = |agent: &Agent| {
        for _ in 0..100 {
            agent.step_begin(step);
            recorder.alloc(1 << 40, MIB, 0, memctl_model::StackId::NONE);
            recorder.free(1 << 40, MIB, 0);
            agent.step_end(step);
            step += 1;
        }
    };
    work(&agent);

    // Postgres hangs: it does not respond, and no connection breaks. A process that started during the first signal
    // gets the next.
    let hangs = || {
        signal_cluster(folder, "-STOP");
        is_ready(&http) == Some(503)
    };
    until("it is not ready", hangs).await;
    let (_, reasons) = get(&format!("http://{http}/readyz")).unwrap();
    assert!(reasons.contains("the store does not answer"), "{reasons}");
    assert_eq!(get(&format!("http://{http}/healthz")).map(|(status, _)| status), Some(200), "its tasks run");
    let (words, _) = asked(&daemon.url);
    assert!(words.contains("the store does not answer"), "{words}");
    // The daemon's own figures are still reported.
    let text = scrape(&http);
    assert!(text.contains("memctl_store_up 0\n") && text.contains("memctl_streams "), "{text}");
    // Known callers are admitted all the time, even after cached results would have expired; unknown callers are
    // refused.
    let away = Instant::now();
    while away.elapsed() < AGE_MAX * 2 {
        assert!(scrape(&http).contains("memctl_store_up 0\n"));
    }
    let (words, _) = asked(&daemon.url);
    assert!(words.contains("the store does not answer"), "{words}");
    let stranger = format!("memctl_{}_{}", "0".repeat(16), "0".repeat(64));
    let (status, words) = scrape_as(&http, &stranger);
    assert!(status == 503 && words.contains("the store does not answer"), "{status}: {words}");
    work(&agent);
    signal_cluster(folder, "-CONT");
    until("it is ready again", || is_ready(&http) == Some(200)).await;

    // Postgres is down.
    postgres::stop(folder);
    until("it is not ready", || is_ready(&http) == Some(503)).await;
    let (words, _) = asked(&daemon.url);
    assert!(words.contains("the store does not answer"), "{words}");
    work(&agent);
    assert_eq!(postgres::start(folder), cluster.url);
    until("it is ready again", || is_ready(&http) == Some(200)).await;

    drop(recorder);
    let stopped = tokio::task::spawn_blocking(move || agent.stop(None, Duration::from_secs(120))).await.unwrap();
    assert!(stopped.delivered && stopped.counts.dropped == 0, "{stopped:?}");
    let report = run_json(memctl().args(["query", "-o", "json", "--daemon", &daemon.url, "--job", "steady"]));
    assert_eq!(report["completeness"]["exact"], true, "{}", report["completeness"]);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_hangup_reads_the_configuration_again_and_a_wrong_one_leaves_the_old_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let (config, rules) = (folder.path().join("memctl.toml"), folder.path().join("alerts.toml"));
    std::fs::write(&rules, "default_rules = false\n").unwrap();
    let http = format!("127.0.0.1:{}", free_port());
    let write = |more: &str| {
        std::fs::write(&config, format!("{more}\n[http]\nlisten = \"{http}\"\n[alerts]\nrules = {:?}\n", rules))
            .unwrap();
    };
    write("");
    let flags = ["--config", config.to_str().unwrap()];
    let daemon = DaemonProcess::sqlite_with(&folder.path().join("store"), free_port(), &flags);
    let reloads = |outcome: &str| {
        let line = format!("memctl_config_reloads_total{{outcome=\"{outcome}\"}} ");
        scrape(&http).lines().find_map(|text| text.strip_prefix(&line)?.parse::<u32>().ok()).unwrap()
    };
    let wait = |outcome: &str, count: u32| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while reloads(outcome) < count {
            assert!(Instant::now() < deadline, "{}", scrape(&http));
            std::thread::yield_now();
        }
    };
    let names = || {
        let rules = run_json(memctl().args(["alerts", "rules", "-o", "json", "--daemon", &daemon.url]));
        rules["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(names().is_empty());
    std::fs::write(&rules, "default_rules = false\n[[rule]]\nname = \"Mine\"\nkinds = [\"leak\"]\n").unwrap();
    write("retain_age = \"30d\"\nlog = \"warn\"");
    signal(daemon.pid(), "-HUP");
    wait("applied", 1);
    assert_eq!(names(), ["Mine"]);
    std::fs::write(&rules, "nonsense = 1\n").unwrap();
    signal(daemon.pid(), "-HUP");
    wait("refused", 1);
    assert!(scrape(&http).contains("memctl_config_last_reload_successful 0\n"));
    std::fs::write(&rules, "default_rules = false\n").unwrap();
    write("log = \"a=b=c\"");
    signal(daemon.pid(), "-HUP");
    wait("refused", 2);
    assert_eq!(names(), ["Mine"], "what was in force stays in force");
    write("");
    signal(daemon.pid(), "-HUP");
    wait("applied", 2);
    assert!(names().is_empty());
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn systemd_is_told_and_the_log_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notify");
    let socket = UnixDatagram::bind(&place).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let next = || {
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let log = folder.path().join("log");
    let address = format!("127.0.0.1:{}", free_port());
    let mut daemon = memctl()
        .args(["daemon", "--log-format", "json", "--listen", &address, "--data-dir"])
        .arg(folder.path().join("store"))
        .env("NOTIFY_SOCKET", &place)
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let wait = |wanted: &str| while !next().contains(wanted) {};
    wait("READY=1");
    wait("WATCHDOG=1");
    record(&format!("http://{address}"), session("seen", 0), |agent| train(agent, Training::default()));
    let pid = daemon.id();
    signal(pid, "-HUP");
    wait("RELOADING=1");
    wait("READY=1");
    signal(pid, "-TERM");
    wait("STOPPING=1");
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let streams = lines.iter().find(|line| line["message"] == "session streams").expect("the stream is logged");
    assert_eq!((&streams["job"], &streams["level"]), (&"seen".into(), &"INFO".into()));
    assert!(text.contains("\"client\":\"127.0.0.1:"), "{text}");
}

/// Status and text of `/metrics` with this token.
fn scrape_as(http: &str, token: &str) -> (u16, String) {
    let mut stream = std::net::TcpStream::connect(http).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_scrape_shows_the_jobs_of_the_callers_tenant_alone() {
    let store = tempfile::tempdir().unwrap();
    let token = |role: &str, tenant: &str| {
        let name = format!("{role}-{tenant}");
        let words = ["token", "create", &name, "--role", role, "--tenant", tenant, "-o", "json", "--data-dir"];
        run_json(memctl().args(words).arg(store.path()))["tokens"][0]["secret"].as_str().unwrap().to_owned()
    };
    let [writers, agents, readers] =
        ["operator", "agent", "reader"].map(|role| ["red", "blue"].map(|tenant| token(role, tenant)));
    let (daemon, http) = watched(store.path(), &[]);
    for (tenant, secret) in ["red", "blue"].iter().zip(&writers) {
        let job = format!("job-of-{tenant}");
        let mut import = memctl();
        import.args(["import", "-q", "--daemon", &daemon.url, "--job", &job]).arg(folder("gpt_val_graph_leak"));
        run(import.env("MEMCTL_TOKEN", secret));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    for (own, other, secret) in [("red", "blue", &readers[0]), ("blue", "red", &readers[1])] {
        loop {
            let (status, text) = scrape_as(&http, secret);
            assert_eq!(status, 200, "{text}");
            assert!(!text.contains(&format!("job-of-{other}")), "{text}");
            if text.contains(&format!("job=\"job-of-{own}\",tenant=\"{own}\"")) {
                break;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::yield_now();
        }
    }
    assert_eq!(scrape_as(&http, &agents[0]).0, 403, "an agent writes and does not ask");
    assert_eq!(scrape_as(&http, "memctl_0_0").0, 401);
    assert_eq!(get(&format!("http://{http}/metrics")).map(|(status, _)| status), Some(401));
    assert_eq!(is_ready(&http), Some(200), "health needs no token");
}
