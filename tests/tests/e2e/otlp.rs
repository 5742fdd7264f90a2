//! Metrics by OTLP: messages over HTTP and over gRPC, read by the published protos; receivers that are down, slow or
//! accept a part; and that nothing is sent without a configured endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use memctl_daemon::metrics::definitions;
use memctl_daemon::metrics::family::Kind;
use memctl_tests::certificates::Authority;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::{get, until};
use memctl_tests::jobs::{Training, record, session, train};
use memctl_tests::otlp::{Answer, Collector, Received, attributes};
use memctl_tests::{memctl, stderr, stdout};

const SECRET: &str = "s3cret-of-the-receiver";

/// A daemon that exports, and its HTTP port; its log goes into a file.
fn exporting(store: &Path, log: &Path, variables: &[(&str, &str)]) -> (DaemonProcess, String) {
    let mut command = memctl();
    command.args(["daemon", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir"]).arg(store);
    command.env("OTEL_METRIC_EXPORT_INTERVAL", "100").env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={SECRET}"));
    command.envs(variables.iter().copied()).stderr(Stdio::from(std::fs::File::create(log).unwrap()));
    let daemon = DaemonProcess::of(&mut command);
    let http = daemon.http[0].trim_start_matches("http://").to_owned();
    (daemon, http)
}

/// A figure of `/metrics`.
fn figure(http: &str, series: &str) -> Option<u64> {
    let (_, text) = get(&format!("http://{http}/metrics"))?;
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn exports(http: &str, outcome: &str) -> u64 {
    figure(http, &format!("memctl_otlp_exports_total{{outcome=\"{outcome}\"}}")).unwrap_or(0)
}

fn points(metric: &serde_json::Value) -> Vec<serde_json::Value> {
    let data = ["gauge", "sum", "histogram"].into_iter().find(|kind| !metric[kind].is_null()).expect("data");
    metric[data]["data_points"].as_array().cloned().unwrap_or_default()
}

/// Asserts that metrics have the same kind and labels as in `/metrics`, and a time.
fn check(received: &Received) {
    for (name, metric) in received.metrics() {
        let definition = definitions::ALL.iter().find(|known| known.name == name).expect("a metric of /metrics");
        assert_eq!(metric["description"], definition.help);
        let (data, monotonic) = match definition.kind {
            Kind::Gauge => ("gauge", false),
            Kind::Counter => ("sum", true),
            Kind::Histogram => ("histogram", false),
        };
        assert!(!metric[data].is_null(), "{name}: {metric}");
        if data != "gauge" {
            assert_eq!(metric[data]["aggregation_temporality"], "AGGREGATION_TEMPORALITY_CUMULATIVE", "{name}");
        }
        assert_eq!(metric[data]["is_monotonic"] == true, monotonic, "{name}");
        for point in points(&metric) {
            assert!(point["time_unix_nano"].as_u64().unwrap() > 1_700_000_000_000_000_000, "{name}");
            let labels: BTreeSet<String> = attributes(&point).into_keys().collect();
            assert_eq!(labels, definition.labels.iter().map(|label| (*label).to_owned()).collect(), "{name}");
            if definition.kind == Kind::Histogram {
                let numbers = |key: &str| point[key].as_array().cloned().unwrap_or_default();
                let counts: u64 = numbers("bucket_counts").iter().map(|count| count.as_u64().unwrap()).sum();
                assert_eq!(numbers("bucket_counts").len(), numbers("explicit_bounds").len() + 1, "{name}");
                // A count of 0 is not encoded.
                assert_eq!(point["count"].as_u64().unwrap_or(0), counts, "{point}");
                assert_eq!(counts > 0, point["sum"].as_f64() > Some(0.0), "{point}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_scraped_is_sent_over_http_and_over_grpc() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new(home.path(), "ours");
    let ca = authority.file.to_str().unwrap().to_owned();
    let method = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    for (at, (protocol, is_encrypted, path)) in
        [("http/protobuf", false, "/v1/metrics"), ("grpc", false, method), ("grpc", true, method)]
            .into_iter()
            .enumerate()
    {
        let collector = Collector::new(Answer::All);
        let endpoint = match (protocol, is_encrypted) {
            ("grpc", false) => format!("http://{}", collector.grpc(None)),
            ("grpc", true) => {
                let address = collector.grpc(Some(&authority.issue("collector")));
                format!("https://localhost:{}", address.port())
            }
            _ => format!("http://{}", collector.http("127.0.0.1:0".parse().unwrap())),
        };
        let (store, log) = (home.path().join(format!("store{at}")), home.path().join(format!("log{at}")));
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca),
            ("OTEL_SERVICE_NAME", "gpu memory"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team=vision%2Cspeech,service.name=other"),
        ];
        let (daemon, http) = exporting(&store, &log, &variables);
        // Stored bytes of jobs are added up once a minute, first at the first request, so the job must exist before.
        let url = daemon.url.clone();
        tokio::task::spawn_blocking(move || {
            let training = Training { kept_a_step: 4 << 20, ..Training::default() };
            record(&url, session("sent", 0), |agent| train(agent, training));
        })
        .await
        .unwrap();
        let is_reported = |received: &Received| {
            let metrics = received.metrics();
            metrics.get("memctl_findings").is_some_and(|metric| !points(metric).is_empty())
        };
        until("the job is reported", || collector.received().iter().any(is_reported)).await;
        let received = collector.received();
        received.iter().for_each(check);
        let last = received.iter().rfind(|received| is_reported(received)).unwrap();
        assert_eq!(last.path, path);
        assert_eq!(last.headers["x-key"], SECRET);
        let content = if protocol == "grpc" { "application/grpc" } else { "application/x-protobuf" };
        assert_eq!(last.headers["content-type"], content);
        let resource = last.resource();
        let of = |key: &str| resource.get(key).map(String::as_str);
        assert_eq!((of("service.name"), of("team")), (Some("gpu memory"), Some("vision,speech")));
        assert!(of("service.version").is_some() && of("service.instance.id").is_some_and(|id| id.len() == 32));
        // The same as a scrape, except for series that come and go.
        let (_, text) = get(&format!("http://{http}/metrics")).unwrap();
        let scraped: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .map(str::to_owned)
            .collect();
        let sent: BTreeSet<String> = last.metrics().into_keys().collect();
        let differ: Vec<&String> = scraped.symmetric_difference(&sent).collect();
        assert!(sent.len() > 50 && differ.len() <= 2, "{differ:?}");
        assert!(points(&last.metrics()["memctl_commit_duration_seconds"])[0]["count"].as_u64() > Some(0));
        let job = &points(&last.metrics()["memctl_job_events_total"])[0];
        assert_eq!(attributes(job)["job"], "sent");
        let scraped =
            figure(&http, "memctl_job_events_total{job=\"sent\",tenant=\"default\",run=\"1\",attempt=\"0\"}").unwrap();
        assert_eq!(job["as_double"].as_f64(), Some(scraped as f64));
        assert_eq!(last.metrics()["memctl_ingest_bytes_total"]["unit"], "By");
        assert!(exports(&http, "delivered") > 0 && exports(&http, "failed") == 0);
        assert_eq!(daemon.terminate(), 0);
        assert!(!std::fs::read_to_string(&log).unwrap().contains(SECRET), "headers are secrets");
    }
}

/// How often the log has these words.
fn said(log: &Path, words: &str) -> usize {
    std::fs::read_to_string(log).unwrap().matches(words).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_away_or_silent_is_reported_once_and_holds_up_no_one() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let address = SocketAddr::new("127.0.0.1".parse().unwrap(), free_port());
    let endpoint = format!("http://{address}/own");
    // The variable for metrics only: its address is used unchanged.
    let variables = [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint.as_str()), ("OTEL_EXPORTER_OTLP_TIMEOUT", "200")];
    let (daemon, http) = exporting(&home.path().join("store"), &log, &variables);
    let failed = |more: u64| {
        let (before, http) = (exports(&http, "failed"), &http);
        move || exports(http, "failed") >= before + more
    };
    until("no receiver, three times", failed(3)).await;
    assert_eq!(said(&log, "metrics cannot be delivered by OTLP"), 1);
    let collector = Collector::new(Answer::Silence);
    assert_eq!(collector.http(address), address);
    until("a silent receiver, three times", failed(3)).await;
    assert!(!collector.received().is_empty());
    collector.answers(Answer::Unavailable);
    until("an overloaded receiver, three times", failed(3)).await;
    assert_eq!(said(&log, "metrics cannot be delivered by OTLP"), 1);
    collector.answers(Answer::All);
    until("it is delivered", || exports(&http, "delivered") >= 2).await;
    assert_eq!(said(&log, "metrics are delivered by OTLP again"), 1);
    collector.answers(Answer::Part);
    let before = exports(&http, "delivered");
    until("a part is taken, three times", || exports(&http, "delivered") >= before + 4).await;
    assert_eq!(said(&log, "the receiver of OTLP does not take all metrics"), 1);
    assert_eq!(said(&log, "3 points refused: too many points"), 1);
    assert!(collector.received().iter().all(|received| received.path == "/own"));
    assert_eq!(get(&format!("http://{http}/healthz")).map(|(status, _)| status), Some(200));
    assert_eq!(daemon.terminate(), 0);
    assert_eq!(said(&log, SECRET), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_speak_grpc_is_told_as_that() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let collector = Collector::new(Answer::Unavailable);
    let refusing = format!("http://{}", collector.grpc(None));
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", refusing.as_str()), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    let (daemon, http) = exporting(&home.path().join("store"), &log, &variables);
    until("it fails", || exports(&http, "failed") >= 2).await;
    assert_eq!(daemon.terminate(), 0);
    assert_eq!(said(&log, "gRPC status 14: come back later"), 1, "{}", std::fs::read_to_string(&log).unwrap());
}

#[test]
fn nothing_is_sent_without_an_address_and_what_cannot_be_is_named() {
    let home = tempfile::tempdir().unwrap();
    let checked = |variables: &[(&str, &str)]| {
        let mut command = memctl();
        command.args(["daemon", "--check", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path());
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    for off in [
        &[("OTEL_SERVICE_NAME", "x")][..],
        &[endpoint, ("OTEL_SDK_DISABLED", "true")],
        &[endpoint, ("OTEL_METRICS_EXPORTER", "none")],
    ] {
        assert!(stdout(&checked(off)).contains("otlp          off\n"), "{off:?}");
    }
    assert!(stdout(&checked(&[endpoint])).contains("otlp          http://127.0.0.1:4318/v1/metrics\n"));
    let wrong: BTreeMap<&str, &str> = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_HEADERS", SECRET),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "127.0.0.1:4318"),
    ]
    .into();
    for (variable, value) in wrong {
        let output = checked(&[endpoint, (variable, value)]);
        assert_eq!(output.status.code(), Some(2), "{variable}: {}", stderr(&output));
        assert!(stderr(&output).contains(variable) && !stderr(&output).contains(SECRET), "{}", stderr(&output));
    }
    let store = home.path().join("store");
    let (daemon, http) = exporting(&store, &home.path().join("log"), &[]);
    let (_, text) = get(&format!("http://{http}/metrics")).unwrap();
    assert!(!text.contains("memctl_otlp_exports_total"), "{text}");
    assert_eq!(daemon.terminate(), 0);
}
