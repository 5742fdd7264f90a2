//! Alerts from finding to notification: the real Alertmanager, real HTTP receivers that fail in every way, restarts and
//! two daemons on one database, and the command line.
//! (Over 400 lines: each test is a story of its own.)

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memctl_answers::alerts::{Alerts, Phase};
use memctl_answers::wire::from_wire;
use memctl_daemon::alerts::{Alerting, JobFacts, Notifying, Pace, Rules};
use memctl_daemon::clock::now_ns;
use memctl_daemon::store::{PostgresStore, SqliteStore, Store};
use memctl_model::{Backoff, Finding, FindingKind, Frame, JobState, Severity};
use memctl_proto::v1;
use memctl_proto::v1::alerts_server::Alerts as _;
use memctl_tests::alertmanager::Alertmanager;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::{Receiver, Reply, until};
use memctl_tests::postgres::Database;
use memctl_tests::{memctl, run, run_json, stderr, stdout};

const SECOND_NS: u64 = 1_000_000_000;

fn leak(function: &str) -> Finding {
    Finding {
        all_ranks: true,
        site: Some(Frame { function: function.into(), file: "/home/me/train.py".into(), line: 57 }),
        title: format!("grows 3.0 MiB an epoch on all 4 ranks, allocated in {function} (train.py:57)"),
        explanation: "blocks born in each epoch are alive at the end of all later ones".into(),
        advice: "keep what you need of it with .item() or .detach().cpu()".into(),
        ..Finding::new(FindingKind::Leak, Severity::Warning, 0.97, vec![0, 1, 2, 3])
    }
}

fn job(name: &str, state: Option<JobState>, started_ns: u64) -> JobFacts {
    JobFacts {
        tenant: "default".into(),
        name: name.into(),
        run: 1,
        attempt: 0,
        labels: vec![("team".into(), "vision".into())],
        state,
        started_ns,
        ended_ns: None,
        epochs: Some(3),
        imported: false,
        not_judged: Vec::new(),
        grows: false,
    }
}

fn rules(text: &str) -> Rules {
    Rules::parse(text, "rules.toml").unwrap()
}

fn webhook(name: &str, url: &str) -> String {
    format!("[[receiver]]\nname = \"{name}\"\ntype = \"webhook\"\nurl = \"{url}/hook\"\ntimeout = \"5s\"\n")
}

/// Shorter intervals than in production, so that tests need not wait.
fn fast() -> Pace {
    Pace { attempts: 4, pauses: Backoff { first: Duration::from_millis(10), most: Duration::from_millis(40) } }
}

fn start(store: Arc<dyn Store>, text: &str) -> Alerting {
    Alerting::start(store, rules(text), fast(), Notifying::Always)
}

/// A request in its state after authentication.
fn asked<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.extensions_mut().insert(memctl_daemon::access::Caller::owner("a test", "here"));
    request
}

async fn listed(alerting: &Alerting) -> Alerts {
    let request = asked(v1::ListAlertsRequest::default());
    from_wire(alerting.alerts.list_alerts(request).await.unwrap().get_ref()).unwrap()
}

async fn sqlite(folder: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(&folder.join("memctl.db"), "a test").await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_alertmanager_hears_of_an_alert_and_of_its_end() {
    let behind = Receiver::start(|_| Reply::Status(200));
    let alertmanager = Alertmanager::start(&behind.url);
    let text = format!(
        "job_labels = [\"team\"]\n[[receiver]]\nname = \"am\"\ntype = \"alertmanager\"\nurl = \"{}\"\nresend = \"1s\"\n",
        alertmanager.url
    );
    let alerting = start(Arc::new(SqliteStore::in_memory().await.unwrap()), &text);
    // Names may be hostile, and must arrive unchanged.
    let hostile = "keep\"\\\u{1b}[31m\u{202e}\n{{ }}é漢";
    let now = now_ns();
    alerting.alerts.observe(&job("vit", Some(JobState::Running), now), &[leak(hostile)], now);
    until("Alertmanager holds it", || alertmanager.active().len() == 1).await;
    let alert = alertmanager.active().remove(0);
    let labels = alert["labels"].as_object().unwrap();
    let names: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(names, ["alertname", "fingerprint", "job", "kind", "severity", "team", "tenant"]);
    let expected =
        [("alertname", "MemoryLeak"), ("job", "vit"), ("kind", "leak"), ("severity", "warning"), ("team", "vision")];
    for (name, value) in expected {
        assert_eq!(labels[name], value);
    }
    let annotations = &alert["annotations"];
    assert_eq!(annotations["summary"], leak(hostile).title);
    assert_eq!(
        (&annotations["description"], &annotations["advice"]),
        (&leak("").explanation.into(), &leak("").advice.into())
    );
    assert_eq!(annotations["ranks"], "all (0-3)");
    assert!(annotations["run"].as_str().unwrap().ends_with("#1"), "{annotations:#}");
    until("it was passed on", || {
        behind.notifications().contains(&("firing".into(), "MemoryLeak".into(), "vit".into()))
    })
    .await;
    // The alert is sent again before it would expire.
    let ends = |alert: &serde_json::Value| alert["endsAt"].as_str().unwrap().to_owned();
    let first = ends(&alert);
    until("it was sent again", || alertmanager.active().first().is_some_and(|alert| ends(alert) > first)).await;
    // The leak gets worse: there is one alert of the new severity and none of the old.
    let worse = Finding { severity: Severity::Critical, ..leak(hostile) };
    alerting.alerts.observe(&job("vit", Some(JobState::Running), now), &[worse], now_ns());
    until("it is critical and nothing else", || {
        let active = alertmanager.active();
        active.len() == 1 && active[0]["labels"]["severity"] == "critical"
    })
    .await;
    // The fixed script has run under the same name.
    alerting.alerts.observe(&job("vit", Some(JobState::Finished), now_ns()), &[], now_ns());
    until("Alertmanager holds nothing", || alertmanager.active().is_empty()).await;
    until("its end was passed on", || {
        behind.notifications().contains(&("resolved".into(), "MemoryLeak".into(), "vit".into()))
    })
    .await;
    assert_eq!(listed(&alerting).await.alerts[0].state, Phase::Resolved);
    alerting.finish().await;
}

/// The state that a restart must not change, on a store that is opened again.
async fn survives_a_restart<F: Future<Output = Arc<dyn Store>>>(open: impl Fn() -> F) {
    let receiver = Receiver::start(|_| Reply::Status(200));
    let text = webhook("hook", &receiver.url);
    let began = now_ns();
    let store = open().await;
    let alerting = start(store.clone(), &text);
    alerting.alerts.observe(&job("vit", Some(JobState::Finished), began), &[leak("keep")], now_ns());
    until("the first was notified", || receiver.notifications().len() == 1).await;
    let silence = v1::Silence { job: "quiet*".into(), ..Default::default() };
    let request = v1::AddSilenceRequest { silence: Some(silence), for_ns: 3_600 * SECOND_NS };
    alerting.alerts.add_silence(asked(request)).await.unwrap();
    let before = listed(&alerting).await;
    alerting.finish().await;
    store.close().await.unwrap();

    let store = open().await;
    let alerting = start(store.clone(), &text);
    let after = listed(&alerting).await;
    assert_eq!(after.alerts[0].fired_at, before.alerts[0].fired_at);
    assert_eq!(after.alerts[0].receivers[0].notified, Some(Phase::Firing));
    // The job is judged again, as at a daemon's start, and yields the same alert. Another alert is silenced.
    alerting.alerts.observe(&job("vit", Some(JobState::Finished), began), &[leak("keep")], now_ns());
    alerting.alerts.observe(&job("quiet-1", Some(JobState::Running), began), &[leak("keep")], now_ns());
    alerting.alerts.observe(&job("gpt", Some(JobState::Running), began), &[leak("keep")], now_ns());
    until("the other was notified", || receiver.notifications().len() >= 2).await;
    alerting.alerts.observe(&job("vit", Some(JobState::Finished), now_ns()), &[], now_ns());
    until("the end was notified", || receiver.notifications().len() >= 3).await;
    let pairs: Vec<(String, String)> =
        receiver.notifications().into_iter().map(|(status, _, job)| (status, job)).collect();
    let pair = |status: &str, job: &str| (status.to_owned(), job.to_owned());
    assert_eq!(pairs, [pair("firing", "vit"), pair("firing", "gpt"), pair("resolved", "vit")]);
    let quiet = listed(&alerting).await.alerts.into_iter().find(|alert| alert.job == "quiet-1").unwrap();
    assert!(quiet.state == Phase::Firing && quiet.silenced_by.is_some(), "{quiet:?}");
    // The silence is removed: now the alert is notified.
    let request = asked(v1::RemoveSilenceRequest { id: quiet.silenced_by.unwrap() });
    alerting.alerts.remove_silence(request).await.unwrap();
    until("the silenced alert is notified", || receiver.notifications().len() == 4).await;
    alerting.finish().await;
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn state_survives_a_restart_with_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    survives_a_restart(|| sqlite(folder.path())).await;
}

async fn postgres(url: &str) -> Arc<dyn Store> {
    Arc::new(PostgresStore::open(url).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn state_survives_a_restart_with_postgres() {
    let database = Database::create().await;
    survives_a_restart(|| postgres(&database.url)).await;
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_on_one_database_tell_once() {
    let database = Database::create().await;
    let receiver = Receiver::start(|_| Reply::Status(200));
    let text = webhook("hook", &receiver.url);
    let stores = [postgres(&database.url).await, postgres(&database.url).await];
    let alertings = stores.clone().map(|store| start(store, &text));
    let began = now_ns();
    let findings: Vec<Finding> = (0..20).map(|at| leak(&format!("keep_{at}"))).collect();
    for round in 0..20 {
        for alerting in &alertings {
            for name in ["a", "b", "c"] {
                alerting.alerts.observe(&job(name, Some(JobState::Running), began), &findings, began + round);
            }
        }
        tokio::task::yield_now().await;
    }
    until("all are notified", || receiver.notifications().len() >= 60).await;
    for alerting in &alertings {
        for name in ["a", "b", "c"] {
            alerting.alerts.observe(&job(name, Some(JobState::Finished), now_ns()), &[], now_ns());
        }
    }
    until("all ends are notified", || {
        receiver.notifications().iter().filter(|(status, ..)| status == "resolved").count() >= 60
    })
    .await;
    for alerting in alertings {
        alerting.finish().await;
    }
    let firing = receiver.notifications().iter().filter(|(status, ..)| status == "firing").count();
    assert_eq!((firing, receiver.notifications().len()), (60, 120), "each once");
    for store in stores {
        store.close().await.unwrap();
    }
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_tried_again_and_delays_no_other() {
    let shaky = Receiver::start(|number| Reply::Status(if number < 2 { 500 } else { 200 }));
    // A free port could soon be used by another test's server; no server listens on this one.
    let dead = "http://127.0.0.1:1".to_owned();
    let mute = Receiver::start(|_| Reply::Silence);
    let stubborn = Receiver::start(|_| Reply::Status(403));
    let good = Receiver::start(|_| Reply::Status(204));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("told.json");
    let text = [
        webhook("shaky", &shaky.url),
        webhook("dead", &dead),
        webhook("mute", &mute.url).replace("5s", "1s"),
        webhook("stubborn", &stubborn.url),
        webhook("good", &good.url) + "headers = { X-Token = \"t\" }\n",
        format!(
            "[[receiver]]\nname = \"script\"\ntype = \"command\"\ncommand = [\"sh\", \"-c\", \"cat > {}\"]\n",
            file.display()
        ),
    ];
    let alerting = start(Arc::new(SqliteStore::in_memory().await.unwrap()), &text.concat());
    for round in 0..1_000 {
        alerting.alerts.observe(&job("vit", Some(JobState::Running), 1), &[leak("keep")], now_ns() + round);
    }
    until("the good one was notified", || good.notifications().len() == 1).await;
    until("the shaky one was notified", || shaky.received().len() == 3).await;
    until("the script was notified", || std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('}'))).await;
    let deadline = Instant::now() + Duration::from_secs(120);
    let list = loop {
        let list = listed(&alerting).await;
        if list.given_up == 3 {
            break list;
        }
        assert!(Instant::now() < deadline, "{list:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let of = |name: &str| list.alerts[0].receivers.iter().find(|receiver| receiver.receiver == name).unwrap();
    let error = |name: &str| of(name).last_error.clone().unwrap();
    assert!(error("dead").contains("refused"), "{:?}", of("dead"));
    assert!(error("mute").contains("did not answer within 1 s"), "{:?}", of("mute"));
    assert!(error("stubborn").contains("HTTP 403") && error("stubborn").contains("what it says"));
    assert_eq!((of("good").notified, of("shaky").notified), (Some(Phase::Firing), Some(Phase::Firing)));
    // Temporary failures are attempted the full number of times, a permanent failure only once.
    assert_eq!((mute.received().len(), stubborn.received().len()), (4, 1));
    let request = good.received().remove(0);
    assert!(request.path == "/hook" && request.headers.to_lowercase().contains("x-token: t"), "{request:?}");
    let fields: Vec<String> = request.body.as_object().unwrap().keys().cloned().collect();
    let expected = [
        "alerts",
        "commonAnnotations",
        "commonLabels",
        "externalURL",
        "groupKey",
        "groupLabels",
        "receiver",
        "status",
        "truncatedAlerts",
        "version",
    ];
    assert_eq!(fields, expected);
    let fields: Vec<String> = request.body["alerts"][0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["annotations", "endsAt", "fingerprint", "generatorURL", "labels", "startsAt", "status"]);
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(
        (&written["version"], &written["receiver"], &written["groupLabels"]["job"]),
        (&"4".into(), &"script".into(), &"vit".into())
    );
    alerting.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_lists_tests_and_silences() {
    let folder = tempfile::tempdir().unwrap();
    let good = Receiver::start(|_| Reply::Status(200));
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, webhook("hook", &good.url)).unwrap();
    let store = sqlite(folder.path()).await;
    let alerting = start(store.clone(), &webhook("hook", &good.url));
    alerting.alerts.observe(&job("vit", Some(JobState::Running), 1), &[leak("keep\u{1b}[31m")], now_ns());
    until("it was notified", || good.notifications().len() == 1).await;
    alerting.finish().await;
    store.close().await.unwrap();

    let daemon = DaemonProcess::sqlite_with(folder.path(), free_port(), &["--alert-rules", file.to_str().unwrap()]);
    let ask = |words: &str| {
        let mut command = memctl();
        command.args(["alerts", "--daemon", &daemon.url, "-q"]).args(words.split_whitespace());
        command
    };
    let page = run(&mut ask("--firing"));
    assert!(
        page.contains("firing") && page.contains("MemoryLeak") && page.contains(r"keep\u{1b}[31m (train.py:57)"),
        "{page}"
    );
    assert!(page.contains("hook firing"), "deliveries are known after a restart: {page}");
    let json = run_json(&mut ask("-o json"));
    assert_eq!((&json["alerts"][0]["job"], &json["alerts"][0]["state"]), (&"vit".into(), &"firing".into()));
    let silence = run_json(&mut ask("silence --job v* --kind leak --rank 0-7 --for 90m --comment known -o json"));
    let id = silence["silences"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(run_json(&mut ask("-o json"))["alerts"][0]["silenced_by"], id.as_str());
    let page = run(&mut ask("silences"));
    assert!(page.contains("job=v* kind=leak ranks=0-7") && page.contains("known"), "{page}");
    assert!(page.contains("all tenants"), "{page}");
    run(&mut ask(&format!("unsilence {id}")));
    assert_eq!(run(&mut ask("silences")), "No silences.\n");
    let again = ask(&format!("unsilence {id}")).output().unwrap();
    assert_eq!((again.status.code(), stderr(&again).contains("there is no silence")), (Some(2), true));
    let nothing = ask("silence").output().unwrap();
    assert_eq!((nothing.status.code(), stderr(&nothing).contains("a silence needs a job")), (Some(2), true));
    let tested = run(&mut ask("test"));
    assert!(tested.contains("hook") && tested.contains("delivered") && tested.contains("HTTP 200"), "{tested}");
    until("the test came", || good.notifications().iter().any(|(_, name, _)| name == "MemctlTest")).await;
    assert!(run(&mut ask("rules")).contains("name = \"OutOfMemoryAhead\""));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_receiver_that_fails_its_test_is_exit_code_1_and_wrong_rules_are_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    let dead = "http://127.0.0.1:1".to_owned();
    std::fs::write(&file, webhook("gone", &dead)).unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let test = |receiver: &str| {
        let mut command = memctl();
        command
            .env("MEMCTL_ALERT_RULES", &file)
            .args(["alerts", "test", "--receiver", receiver, "--data-dir"])
            .arg(&data);
        command.output().unwrap()
    };
    let failed = test("gone");
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    assert!(stdout(&failed).contains("FAILED") && stdout(&failed).contains("refused"), "{}", stdout(&failed));
    assert_eq!(test("log").status.code(), Some(0));
    let unknown = test("nobody");
    assert_eq!(
        (unknown.status.code(), stderr(&unknown).contains("there are log, gone")),
        (Some(2), true),
        "{}",
        stderr(&unknown)
    );

    let check = || {
        memctl().args(["daemon", "--check", "--alert-rules"]).arg(&file).arg("--data-dir").arg(&data).output().unwrap()
    };
    let good = check();
    assert!(
        stdout(&good).contains("alert rules   8 (") && stdout(&good).contains("receivers: log, gone"),
        "{}",
        stdout(&good)
    );
    std::fs::write(&file, "[[rule]]\nname = \"Mine\"\nkinds = [\"leek\"]\n").unwrap();
    let wrong = check();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("rules.toml, line 3: rule \"Mine\", key `kinds`: there is no kind \"leek\""),
        "{}",
        stderr(&wrong)
    );
}
