//! The data of the page's own views: notifications of listeners, blocks by event, ranks by epochs, alerts and their
//! silences.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use memctl_tests::https::{Answer, Port};
use memctl_tests::{memctl, run_json};
use serde_json::Value;

use super::page::{JOB, ask, get, import, json, served, token};

/// A listening browser; its connection ends when this value is dropped.
struct Listener(BufReader<TcpStream>);

impl Listener {
    /// The connection, and the status of its response.
    fn of(port: &Port, headers: &[&str]) -> (Self, u16) {
        let mut stream = TcpStream::connect(port.address).unwrap();
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        write!(stream, "GET /api/v1/live HTTP/1.1\r\nHost: {}\r\n{lines}\r\n", port.address).unwrap();
        let mut listener = Self(BufReader::new(stream));
        let status = listener.line().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        (listener, status)
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.0.read_line(&mut line).unwrap_or(0) > 0).then(|| line.trim_end().to_owned())
    }

    /// The jobs of the next event, by tenant and name.
    fn heard(&mut self) -> Vec<(String, String)> {
        loop {
            let line = self.line().expect("an event");
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let message: Value = serde_json::from_str(data).unwrap();
            let text = |job: &Value, name: &str| job[name].as_str().unwrap().to_owned();
            let jobs = message["jobs"].as_array().unwrap();
            return jobs.iter().map(|job| (text(job, "tenant"), text(job, "job"))).collect();
        }
    }
}

#[test]
fn a_listener_is_notified_only_of_its_tenants_jobs() {
    let home = tempfile::tempdir().unwrap();
    let [a, b, both] = [("reader", "team-a"), ("reader", "team-b"), ("admin", "*")]
        .map(|(role, tenant)| token(home.path(), &tenant.replace('*', "all"), role, tenant));
    let agents = ["team-a", "team-b"].map(|tenant| {
        let file = home.path().join(tenant);
        std::fs::write(&file, token(home.path(), &format!("agent-{tenant}"), "operator", tenant)).unwrap();
        file.to_str().unwrap().to_owned()
    });
    let (daemon, port) = served(home.path(), &[]);
    let listen = |secret: &str| {
        let (listener, status) = Listener::of(&port, &[&format!("Authorization: Bearer {secret}")]);
        assert_eq!(status, 200);
        listener
    };
    let (mut of_a, mut of_b, mut of_all) = (listen(&a), listen(&b), listen(&both));
    import("cnn_rank0_cache", &["--daemon", &daemon.url, "--token-file", &agents[0]]);
    let theirs = |tenant: &str, job: &str| vec![(tenant.to_owned(), job.to_owned())];
    assert_eq!(of_a.heard(), theirs("team-a", "cnn_rank0_cache"));
    assert_eq!(of_all.heard(), theirs("team-a", "cnn_rank0_cache"));
    import("oom_by_fragmentation", &["--daemon", &daemon.url, "--token-file", &agents[1]]);
    // The first notification is about the tenant's own job.
    assert_eq!(of_b.heard(), theirs("team-b", "oom_by_fragmentation"));
    assert_eq!(Listener::of(&port, &[]).1, 401);
    // A listener does not delay the daemon's end; its connection ends with the daemon.
    assert_eq!(daemon.terminate(), 0);
    while of_a.line().is_some() {}
}

#[test]
fn listeners_are_bounded_and_leave_their_places() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let all: Vec<Listener> = (0..32)
        .map(|_| {
            let (listener, status) = Listener::of(&port, &[]);
            assert_eq!(status, 200);
            listener
        })
        .collect();
    let refused = get(&port, "/api/v1/live");
    assert!(refused.status == 503 && refused.body.contains("is 32)"), "{}", refused.body);
    assert_eq!(get(&port, "/api/v1/jobs").status, 200, "who asks is answered");
    drop(all);
    let (_back, status) = Listener::of(&port, &[]);
    assert_eq!(status, 200, "their places are free again");
    assert_eq!(get(&port, "/api/v1/live?rank=0&x=1").status, 400);
    assert_eq!(daemon.terminate(), 0);
}

/// The sum of the sizes of blocks for which `picks` is true.
fn sum(answer: &Value, picks: impl Fn(&Value, usize) -> bool) -> u64 {
    let columns = &answer["blocks"];
    let bytes = columns["bytes"].as_array().unwrap();
    bytes.iter().enumerate().filter(|(at, _)| picks(columns, *at)).map(|(_, bytes)| bytes.as_u64().unwrap()).sum()
}

/// Whether something with these two bounds exists after an event.
fn is_there(from: &Value, to: &Value, event: u64) -> bool {
    from.as_u64().is_none_or(|from| from <= event) && to.as_u64().is_none_or(|to| event < to)
}

#[test]
fn blocks_and_segments_add_up_to_the_counters_at_every_event() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    for name in [JOB, "oom_by_fragmentation"] {
        import(name, &["--daemon", &daemon.url]);
        let answer = json(&get(&port, &format!("/api/v1/jobs/{name}/blocks?rank=0&at=end")));
        let course = |name: &str| -> Vec<u64> {
            answer["course"][name].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
        };
        let [events, allocated, reserved] = ["event", "allocated_bytes", "reserved_bytes"].map(course);
        assert!(events.len() > 500, "{name}: {}", events.len());
        for (at, &event) in events.iter().enumerate().step_by(7) {
            let live = sum(&answer, |columns, block| {
                is_there(&columns["from_event"][block], &columns["freed_event"][block], event)
            });
            assert_eq!(live, allocated[at], "{name}: after event {event}");
            let segments = answer["segments"].as_array().unwrap().iter();
            let held = segments.filter(|segment| is_there(&segment["from_event"], &segment["to_event"], event));
            let held: u64 = held.map(|segment| segment["bytes"].as_u64().unwrap()).sum();
            assert_eq!(held, reserved[at], "{name}: after event {event}");
        }
        // The page and the command line show the same moment as the peak.
        let answer = json(&get(&port, &format!("/api/v1/jobs/{name}/blocks?rank=0")));
        let at = answer["at_event"].as_u64().unwrap();
        let flags = ["ledger", "--job", name, "--rank", "0", "--blocks", "-o", "json", "-q", "--daemon", &daemon.url];
        let ledger = run_json(memctl().args(flags));
        let alive =
            |columns: &Value, block: usize| is_there(&columns["from_event"][block], &columns["freed_event"][block], at);
        assert_eq!(Some(sum(&answer, alive)), ledger["ranks"][0]["allocated_bytes"].as_u64(), "{name}");
        let classes = answer["classes"].as_array().unwrap();
        for class in ledger["ranks"][0]["classes"].as_array().unwrap() {
            let number = classes.iter().position(|name| *name == class["class"]).unwrap() as u64;
            let of_class = sum(&answer, |columns, block| {
                alive(columns, block) && columns["class"][block].as_u64() == Some(number)
            });
            assert_eq!(Some(of_class), class["live_bytes"].as_u64(), "{name}: {class}");
        }
        let middle = json(&get(&port, &format!("/api/v1/jobs/{name}/blocks?rank=0&event=100")));
        assert_eq!(middle["at_event"], 100);
    }
    for (asked, why) in [("", "process"), ("rank=0&event=1&at=end", "event=N"), ("rank=0&event=x", "whole numbers")] {
        let answer = get(&port, &format!("/api/v1/jobs/{JOB}/blocks?{asked}"));
        assert!(answer.status == 400 && answer.body.contains(why), "{asked}: {}", answer.body);
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn the_diverging_rank_is_on_top_of_the_heat_map_and_the_sparkline_is_the_timeline() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    let heat = json(&get(&port, &format!("/api/v1/jobs/{JOB}/heat")));
    let report = json(&get(&port, &format!("/api/v1/jobs/{JOB}/query")));
    let [first, second] = [0, 1].map(|at| &heat["ranks"][at]);
    assert_eq!((&first["rank"], second["diverges_at"].is_null()), (&report["findings"][0]["ranks"][0], true));
    assert!(first["diverges_at"].is_u64(), "{first}");
    let ends = report["ranks"][0]["epoch_ends"].as_array().unwrap();
    assert_eq!(heat["epochs"].as_array().unwrap().len(), ends.len());
    for (at, end) in ends.iter().enumerate() {
        assert_eq!(first["allocated_bytes"][at], end["allocated_bytes"]);
    }
    let line = json(&get(&port, &format!("/api/v1/jobs/{JOB}/sparkline")));
    let fine = json(&get(&port, &format!("/api/v1/jobs/{JOB}/timeline?rank=0&points=60")));
    let points = fine["ranks"][0]["points"].as_array().unwrap();
    assert_eq!((&line["rank"], line["reserved_bytes"].as_array().unwrap().len()), (&Value::from(0), points.len()));
    for (at, point) in points.iter().enumerate() {
        for name in ["peak_allocated_bytes", "min_allocated_bytes", "reserved_bytes"] {
            assert_eq!(line[name][at], point[name]);
        }
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn silencing_over_http_needs_an_operator_and_the_same_origin() {
    let home = tempfile::tempdir().unwrap();
    let [reader, operator, other] = [("reader", "team-a"), ("operator", "team-a"), ("operator", "team-b")]
        .map(|(role, tenant)| token(home.path(), &format!("{role}-{tenant}"), role, tenant));
    let (daemon, port) = served(home.path(), &[]);
    let by = |secret: &str, method: &str, path: &str, from: &str| -> Answer {
        ask(&port, method, path, &[&format!("Cookie: memctl-token={secret}"), from])
    };
    let (page, elsewhere) = ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site");
    let path = "/api/v1/silence?job=gpt%2A&kind=leak&minutes=90&comment=known";
    for (secret, from, method, status) in [
        (&reader, page, "POST", 403),
        (&operator, elsewhere, "POST", 403),
        (&operator, "X: y", "POST", 403),
        (&operator, page, "GET", 405),
    ] {
        assert_eq!(by(secret, method, path, from).status, status, "{from}");
    }
    for (wrong, why) in [("kind=leak", "minutes"), ("minutes=5", "a silence needs"), ("minutes=5&kind=x", "no kind")] {
        let answer = by(&operator, "POST", &format!("/api/v1/silence?{wrong}"), page);
        assert!(answer.status == 400 && answer.body.contains(why), "{wrong}: {}", answer.body);
    }
    let made = json(&by(&operator, "POST", path, page))["silences"][0].clone();
    assert_eq!((&made["job"], &made["tenant"], &made["comment"]), (&"gpt*".into(), &"team-a".into(), &"known".into()));
    assert!(made["author"].as_str().unwrap().contains("operator-team-a"), "{made}");
    let file = home.path().join("token");
    std::fs::write(&file, &operator).unwrap();
    let flags = ["-o", "json", "--daemon", &daemon.url, "--token-file", file.to_str().unwrap()];
    let listed = |secret: &str| json(&by(secret, "GET", "/api/v1/silences", page));
    assert_eq!(listed(&reader), run_json(memctl().args(["alerts", "silences"]).args(flags)));
    assert_eq!(listed(&other)["silences"], Value::Array(vec![]), "another tenant sees none");
    let mut printed = run_json(memctl().args(["alerts"]).args(flags));
    let mut shown = json(&by(&reader, "GET", "/api/v1/alerts", page));
    for answer in [&mut printed, &mut shown] {
        answer["jobs"]["not_judged"] = Value::Null;
    }
    assert_eq!(shown, printed);
    let end = format!("/api/v1/unsilence?id={}", made["id"].as_str().unwrap());
    assert_eq!(by(&reader, "POST", &end, page).status, 403);
    assert_eq!(by(&other, "POST", &end, page).status, 400, "what it does not see it does not end");
    assert_eq!(json(&by(&operator, "POST", &end, page))["silences"], Value::Array(vec![]));
    assert_eq!(daemon.terminate(), 0);
}
