//! The page over HTTP: its files and response headers, its data compared with the command line's, cookies, tenants, and
//! `memctl ui` with its printed address. (Over 400 lines: each test is a separate scenario over HTTP.)

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use memctl_daemon::access::Role;
use memctl_daemon::access::rights::{Need, RIGHTS, is_grpc};
use memctl_daemon::http::VIEWS;
use memctl_tests::certificates::Authority;
use memctl_tests::daemon::DaemonProcess;
use memctl_tests::https::{Answer, Port, address};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json, stderr};
use serde_json::Value;

const POLICY: &str = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
pub(super) const JOB: &str = "cnn_rank0_cache";

/// A request like that of a browser at the page's own address.
pub(super) fn ask(port: &Port, method: &str, path: &str, headers: &[&str]) -> Answer {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{lines}\r\n", port.address);
    port.send(request.as_bytes()).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

pub(super) fn get(port: &Port, path: &str) -> Answer {
    ask(port, "GET", path, &[])
}

pub(super) fn json(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}\n{}", answer.head, answer.body);
    assert!(has(answer, "content-type: application/json") && has(answer, "cache-control: no-store"), "{}", answer.head);
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

/// Whether an answer's head has a line.
fn has(answer: &Answer, line: &str) -> bool {
    answer.head.lines().any(|known| known.eq_ignore_ascii_case(line))
}

pub(super) fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

pub(super) fn served(dir: &Path, flags: &[&str]) -> (DaemonProcess, Port) {
    let mut command = memctl();
    command.args(["daemon", "--listen", "http://127.0.0.1:0", "--http-listen", "http://127.0.0.1:0", "--data-dir"]);
    let daemon = DaemonProcess::of(command.arg(dir).args(flags));
    let port = Port::plain(address(&daemon.http[0]));
    (daemon, port)
}

pub(super) fn import(name: &str, way: &[&str]) {
    run(memctl().args(["import", "-q", "--job", name]).args(way).arg(folder(name)));
}

pub(super) fn token(dir: &Path, name: &str, role: &str, tenant: &str) -> String {
    let words = ["token", "create", name, "--role", role, "--tenant", tenant, "-o", "json", "--data-dir"];
    run_json(memctl().args(words).arg(dir))["tokens"][0]["secret"].as_str().expect("a secret").to_owned()
}

#[test]
fn every_view_is_the_page_and_a_browser_is_told_to_load_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let page = get(&port, "/");
    assert_eq!(page.status, 200);
    assert!(has(&page, "content-type: text/html; charset=utf-8"), "{}", page.head);
    for deep in [
        "/jobs/gpt%2F2%20ft",
        "/jobs/none?rank=3&since=x",
        "/jobs/a/moment?from=epoch:2&at=epoch:7",
        "/jobs/a/blocks?event=5",
        "/alerts",
    ] {
        assert_eq!((get(&port, deep).status, get(&port, deep).body), (200, page.body.clone()), "{deep}");
    }
    for (file, kind) in [
        ("page.js", "text/javascript; charset=utf-8"),
        ("page.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ] {
        let path = format!("/assets/{file}");
        assert!(page.body.contains(&path), "the page names {path}");
        let answer = get(&port, &path);
        assert_eq!((answer.status, header(&answer, "content-type")), (200, Some(kind)));
        let tag = header(&answer, "etag").unwrap().to_owned();
        let again = ask(&port, "GET", &path, &[&format!("If-None-Match: {tag}")]);
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{file}");
        assert_eq!(ask(&port, "GET", &path, &["If-None-Match: \"other\""]).status, 200);
    }
    for path in [
        "/assets/nothing.js",
        "/assets/../page.js",
        "/assets/",
        "/jobs",
        "/jobs/",
        "/jobs/a/other",
        "/jobs/a/moment/b",
        "/index.html",
        "/api/v1",
        "/api/v1/nothing",
        "/api/v2/jobs",
        "/api/v1/jobs/a/nothing",
        "/%2e%2e/etc/passwd",
    ] {
        let answer = get(&port, path);
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
    }
    // Holds for every answer, also for refusals and unknown paths.
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/assets/page.js", 200),
        ("GET", "/nothing", 404),
        ("GET", "/api/v1/jobs", 200),
        ("GET", "/api/v1/jobs/none/query", 404),
        ("GET", "/api/v1/jobs?limit=x", 400),
        ("GET", "/metrics", 200),
        ("POST", "/", 405),
        ("POST", "/api/v1/jobs", 405),
        ("DELETE", "/api/v1/jobs/a/query", 405),
        ("POST", "/login", 403),
    ] {
        let answer = ask(&port, method, path, &[]);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        for line in [POLICY, "x-content-type-options: nosniff", "referrer-policy: no-referrer"] {
            assert!(has(&answer, line), "{method} {path} lacks {line}: {}", answer.head);
        }
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn the_page_is_told_what_the_command_line_prints() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    for name in [JOB, "oom_by_fragmentation"] {
        import(name, &["--daemon", &daemon.url]);
    }
    let printed = |words: &[&str]| run_json(memctl().args(words).args(["-o", "json", "-q", "--daemon", &daemon.url]));
    for job in [JOB, "oom_by_fragmentation"] {
        for (verb, asked, flags) in [
            ("query", "", &[][..]),
            ("query", "?rank=0,2", &["--rank", "0,2"]),
            ("timeline", "?points=240", &[]),
            ("timeline", "?points=240&rank=1", &["--rank", "1"]),
            ("sites", "?at=peak", &["--peak"]),
            ("sites", "?at=epoch:0&rank=0", &["--epoch-end", "0", "--rank", "0"]),
            ("ledger", "?rank=0", &["--rank", "0"]),
            ("ledger", "?at=end&blocks=true&rank=0", &["--end", "--blocks", "--rank", "0"]),
        ] {
            let path = format!("/api/v1/jobs/{job}/{verb}{asked}");
            assert_eq!(json(&get(&port, &path)), printed(&[&[verb, "--job", job], flags].concat()), "{path}");
        }
        let http = json(&get(&port, &format!("/api/v1/jobs/{job}/oom")));
        assert_eq!(http, printed(&["oom", "--job", job]), "{job}");
        // The commands in the response name the queried store, which has no name over HTTP.
        let without = |mut note: Value| {
            note["questions"]
                .as_array_mut()
                .unwrap()
                .iter_mut()
                .for_each(|question| question["commands"] = Value::Null);
            note
        };
        let note = json(&get(&port, &format!("/api/v1/jobs/{job}/diagnose")));
        assert_eq!(note["questions"].as_array().unwrap().len(), 6);
        assert_eq!(note["replay"]["device"]["exact"], if job == JOB { Value::Null } else { true.into() });
        assert_eq!(without(note), without(printed(&["diagnose", "--job", job])), "{job}");
    }
    assert_eq!(json(&get(&port, "/api/v1/jobs")), printed(&["jobs"]));
    assert_eq!(json(&get(&port, "/api/v1/caller"))["role"], "admin", "a machine of one user is open on loopback");
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn what_grew_is_the_widest_box_of_the_difference() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    let flame = |asked: &str| json(&get(&port, &format!("/api/v1/jobs/{JOB}/flame?rank=0&{asked}")));
    let report = json(&get(&port, &format!("/api/v1/jobs/{JOB}/query")));
    let last = report["ranks"][0]["epoch_ends"].as_array().unwrap().last().unwrap()["epoch"].as_u64().unwrap();
    let change = flame(&format!("from=epoch:0&at=epoch:{last}"));
    let calls = change["calls"].as_array().unwrap();
    let line = |call: &Value| format!("{}:{}", call["frames"][0]["function"], call["frames"][0]["line"]);
    let own: Vec<&Value> = calls.iter().filter(|call| call["own"] == true).collect();
    let deepest = own.iter().max_by_key(|call| (call["grown_bytes"].as_u64(), call["depth"].as_u64())).unwrap();
    let site = &report["findings"][0]["site"];
    assert_eq!(line(deepest), format!("{}:{}", site["function"], site["line"]), "{deepest}");
    assert_eq!(calls[0]["kind"], "all");
    // Every box follows its caller and is not wider.
    let mut path: Vec<u64> = Vec::new();
    for call in calls {
        let (depth, bytes) = (call["depth"].as_u64().unwrap() as usize, call["bytes"].as_u64().unwrap());
        assert!(depth <= path.len() && (depth == 0 || path[depth - 1] >= bytes), "{call}");
        path.truncate(depth);
        path.push(bytes);
    }
    let (moment, sites) = (flame("at=peak"), json(&get(&port, &format!("/api/v1/jobs/{JOB}/sites?rank=0&at=peak"))));
    let live: u64 =
        sites["ranks"][0]["sites"].as_array().unwrap().iter().map(|site| site["live_bytes"].as_u64().unwrap()).sum();
    assert_eq!(moment["calls"][0]["bytes"].as_u64(), Some(live));
    assert!(moment["calls"].as_array().unwrap().iter().any(|call| call["class"] == "parameters"));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn what_cannot_be_asked_is_named() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    for (path, status, why) in [
        ("query?rank=x", 400, "whole numbers"),
        ("query?rank=0&rank=1", 400, "twice"),
        ("query?at=peak", 400, "unknown parameter"),
        ("query?a=%zz", 400, "encoded"),
        ("query?tenant=a%20b", 403, "not a tenant's name"),
        ("sites?at=soon", 400, "peak, end or epoch:N"),
        ("sites?at=epoch:99999", 400, "it has 0 to 5"),
        ("ledger?at=2026-01-01T00:00:00Z", 400, "had not begun at that time"),
        ("ledger?blocks=maybe", 400, "true or false"),
        ("flame", 400, "rank=N"),
        ("flame?rank=77", 400, "it has ranks 0-3"),
        ("timeline?points=-1", 400, "whole numbers"),
        ("tiles?level=20&index=1", 400, "rank=N"),
        ("tiles?rank=0", 400, "level=N&index=N"),
        ("tiles?rank=0&level=51&index=0", 400, "levels 0 to 50"),
        ("tiles?rank=0&level=50&index=99999", 400, "beyond the year 2262"),
        ("tiles?rank=0&level=20&index=1&since=2026-01-01T00:00:00Z", 400, "not since="),
        ("tiles?rank=0&level=20&index=1&session=00", 400, "without session="),
    ] {
        let answer = get(&port, &format!("/api/v1/jobs/{JOB}/{path}"));
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.contains(why) && answer.body.ends_with('\n'), "{path}: {}", answer.body);
        assert!(has(&answer, "content-type: text/plain; charset=utf-8"), "{}", answer.head);
    }
    let none = get(&port, "/api/v1/jobs/%1b%5b2J/query");
    assert!(none.status == 404 && !none.body.contains('\u{1b}'), "{}", none.body);
    let many = format!("/api/v1/jobs/{JOB}/query?rank={}", "1,".repeat(3_000) + "1");
    assert!([200, 400, 404].contains(&get(&port, &many).status));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_name_that_points_here_reads_nothing_without_a_token() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let of = |path: &str, host: &str, more: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        port.send(request.as_bytes()).unwrap()
    };
    let by = |host: &str, more: &str| of("/api/v1/jobs", host, more);
    for path in ["/api/v1/jobs", "/metrics"] {
        for host in ["localhost:1", "127.0.0.1", "[::1]:9"] {
            assert_eq!(of(path, host, "").status, 200, "{path} {host}");
        }
        let refused = of(path, "rebound.example.org", "");
        assert!(refused.status == 403 && refused.body.contains("127.0.0.1"), "{path}: {}", refused.body);
    }
    // Paths that expose no data are open to all.
    assert_eq!(of("/readyz", "rebound.example.org", "").status, 200);
    // A request with a token is accepted under every host name.
    let words = ["token", "create", "t", "--role", "admin", "--tenant", "*", "-q", "--daemon", &daemon.url];
    let bearer = format!("Authorization: Bearer {}\r\n", run(memctl().args(words)).trim());
    assert_eq!((by("rebound.example.org", &bearer).status, by("rebound.example.org", "").status), (200, 401));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_cookie_is_the_token_that_was_signed_in_with_and_shows_its_tenant_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let [agent, operator, reader, foreign, root] =
        [("agent", "team-a"), ("operator", "team-a"), ("reader", "team-a"), ("reader", "team-b"), ("admin", "*")]
            .map(|(role, tenant)| token(dir, &format!("{role}-{tenant}").replace('*', "all"), role, tenant));
    let authority = Authority::new(dir, "ours");
    let server = authority.issue("daemon");
    let (cert, key) = (server.cert.to_str().unwrap().to_owned(), server.key.to_str().unwrap().to_owned());
    let flags = ["--http-listen", "https://127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key];
    let (daemon, near) = served(dir, &flags);
    let tls = Port::tls(address(&daemon.http[1]), &authority.file);
    let file = dir.join("operator-token");
    std::fs::write(&file, &operator).unwrap();
    import(JOB, &["--daemon", &daemon.url, "--token-file", file.to_str().unwrap()]);

    for (port, secure) in [(&near, false), (&tls, true)] {
        let bearer = |secret: &str| format!("Authorization: Bearer {secret}");
        let sign_in = |secret: &str| ask(port, "POST", "/login", &[&bearer(secret), "Sec-Fetch-Site: same-origin"]);
        let signed_in = sign_in(&reader);
        assert_eq!(signed_in.status, 204, "{}", signed_in.body);
        let secure = if secure { "; Secure" } else { "" };
        let cookie = format!("memctl-token={reader}; Path=/; HttpOnly; SameSite=Strict{secure}");
        assert_eq!(header(&signed_in, "set-cookie"), Some(cookie.as_str()));
        assert!(has(&signed_in, "cache-control: no-store") && !signed_in.head.contains("Domain"));
        // From another origin, or without one, no cookie is set.
        let origin = format!("Origin: https://{}", port.address);
        assert_eq!(ask(port, "POST", "/login", &[&bearer(&reader), &origin]).status, 204);
        for other in [
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
            "Origin: https://example.org",
            "Origin: null",
            "X: y",
        ] {
            for path in ["/login", "/logout"] {
                let answer = ask(port, "POST", path, &[&bearer(&reader), other]);
                assert_eq!((answer.status, header(&answer, "set-cookie")), (403, None), "{path} {other}");
            }
        }
        for (wrong, status) in [("memctl_0000000000000000_0", 401), ("", 401), (agent.as_str(), 403)] {
            let answer = sign_in(wrong);
            assert_eq!((answer.status, header(&answer, "set-cookie")), (status, None), "{}", answer.body);
        }
        assert_eq!(ask(port, "GET", "/login", &[&bearer(&reader)]).status, 405, "a link does not sign in");

        let shown =
            |secret: &str, path: &str| ask(port, "GET", path, &[&format!("Cookie: a=b; memctl-token={secret}")]);
        let known = json(&shown(&reader, "/api/v1/caller"));
        assert_eq!(
            (&known["role"], &known["tenant"], &known["signed_in"]),
            (&"reader".into(), &"team-a".into(), &true.into())
        );
        let jobs = |secret: &str, path: &str| json(&shown(secret, path))["jobs"].as_array().unwrap().len();
        assert_eq!((jobs(&reader, "/api/v1/jobs"), jobs(&foreign, "/api/v1/jobs")), (1, 0));
        assert_eq!((jobs(&root, "/api/v1/jobs?tenant=team-a"), jobs(&root, "/api/v1/jobs?tenant=team-b")), (1, 0));
        assert_eq!(shown(&foreign, "/api/v1/jobs?tenant=team-a").status, 403);
        // All data paths of the table of rights.
        let mut asked = 0;
        let rows =
            RIGHTS.iter().filter(|(path, need)| !is_grpc(path) && path.starts_with("/api/") && *need == Need::Read);
        let paths = rows.flat_map(|(path, need)| {
            let views = if path.contains("{view}") { &VIEWS[..] } else { &[""] };
            views.iter().map(move |view| (path.replace("{view}", view), need))
        });
        for (path, need) in paths {
            // This response does not end while a client listens.
            if path == "/api/v1/live" {
                continue;
            }
            let path = format!("{}?rank=0", path.replace("{job}", JOB));
            let path = if path.starts_with("/api/v1/jobs?") { "/api/v1/jobs".to_owned() } else { path };
            let path = path.replace("/tiles?", "/tiles?level=50&index=2&").replace("/fit?", "/fit?size=4&");
            let path = path.replace("/diff?", &format!("/diff?before={JOB}&"));
            assert_eq!(shown(&reader, &path).status, 200, "{path}: {}", shown(&reader, &path).body);
            assert_eq!(ask(port, "GET", &path, &[&bearer(&reader)]).status, 200, "a header does as well");
            let other = shown(&foreign, &path);
            let is_list = !path.starts_with("/api/v1/jobs/");
            assert_eq!(other.status, if is_list { 200 } else { 404 }, "{path}: {}", other.body);
            assert!(!other.body.contains("team-a") && !other.body.contains("remember_features"), "{}", other.body);
            assert_eq!(shown(&agent, &path).status, 403);
            assert!(!need.roles().contains(&Role::Agent));
            for refused in [shown("memctl_0000000000000000_0", &path), get(port, &path)] {
                assert_eq!(refused.status, 401, "{path}");
                assert_eq!(header(&refused, "www-authenticate"), Some("Bearer"));
            }
            asked += 1;
        }
        assert_eq!(asked, 21);
        let out = ask(port, "POST", "/logout", &["Sec-Fetch-Site: same-origin"]);
        let ended = format!("memctl-token=; Path=/; HttpOnly; SameSite=Strict{secure}; Max-Age=0");
        assert_eq!((out.status, header(&out, "set-cookie")), (204, Some(ended.as_str())));
        assert_eq!(get(port, "/enter?key=x").status, 404, "a daemon has no key");
    }
    assert_eq!(daemon.terminate(), 0);
}

/// `memctl ui`; ended when dropped.
struct Ui {
    child: Child,
    address: String,
}

impl Ui {
    fn of(words: &[&str]) -> Self {
        let mut child = memctl().args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim_end().to_owned() }
    }

    fn port(&self) -> (Port, String) {
        let rest = self.address.strip_prefix("http://").unwrap_or_else(|| panic!("{:?}", self.address));
        let (address, path) = rest.split_once('/').unwrap();
        (Port::plain(address.parse().unwrap()), format!("/{path}"))
    }

    fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_printed_address_opens_once_and_no_one_else_sees_anything() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().to_str().unwrap();
    import(JOB, &["--data-dir", dir]);
    let ui = Ui::of(&["ui", "--data-dir", dir]);
    let (port, path) = ui.port();
    assert!(port.address.ip().is_loopback() && path.starts_with("/enter?key=") && path.len() > 40, "{path}");
    for closed in ["/api/v1/jobs", "/api/v1/caller", "/metrics", &format!("/api/v1/jobs/{JOB}/query")] {
        let answer = ask(&port, "GET", closed, &["Authorization: Bearer x", "Cookie: memctl-token=x"]);
        assert_eq!(answer.status, 401, "{closed}");
        assert!(answer.body.contains("memctl ui") && header(&answer, "www-authenticate").is_none());
    }
    assert_eq!(get(&port, "/").status, 200, "the page itself exposes no data");
    assert_eq!(get(&port, "/enter").status, 403);
    let other = if path.ends_with('0') { "1" } else { "0" };
    assert_eq!(get(&port, &format!("{}{other}", &path[..path.len() - 1])).status, 403);

    // A program that only checks whether the address responds does not use up the key.
    assert_eq!(ask(&port, "HEAD", &path, &[]).status, 204);
    let entered = get(&port, &path);
    assert_eq!((entered.status, header(&entered, "location")), (303, Some("/")), "{}", entered.body);
    let set = header(&entered, "set-cookie").unwrap();
    assert!(
        set.ends_with("; Path=/; HttpOnly; SameSite=Strict") && !path.contains(set.split(['=', ';']).nth(1).unwrap())
    );
    let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
    let again = get(&port, &path);
    assert!(again.status == 403 && again.body.contains("start it again"), "{}", again.body);
    assert_eq!(ask(&port, "GET", &path, &[&cookie]).status, 303, "the same browser may load it again");
    let jobs = json(&ask(&port, "GET", "/api/v1/jobs", &[&cookie]));
    assert_eq!(jobs["jobs"][0]["id"], JOB);
    let flame = format!("/api/v1/jobs/{JOB}/flame?rank=0&from=epoch:0&at=epoch:2");
    assert_eq!(ask(&port, "GET", &flame, &[&cookie]).status, 200);
    assert_eq!(ask(&port, "POST", "/login", &[&cookie, "Sec-Fetch-Site: same-origin"]).status, 409);
    assert_eq!(get(&port, "/api/v1/jobs").status, 401);
    assert_eq!(ui.terminate(), Some(0));
    // The store is free again.
    assert!(run(memctl().args(["jobs", "--data-dir", dir])).contains(JOB));
}

#[test]
fn a_daemon_tells_where_its_page_is() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let printed = run(memctl().args(["ui", "--daemon", &daemon.url]));
    assert_eq!(printed, format!("http://{}/\n", port.address));
    let printed = run(memctl().args(["ui", "--tenant", "team-a", "--daemon", &daemon.url]));
    assert_eq!(printed, format!("http://{}/?tenant=team-a\n", port.address));
    assert_eq!(daemon.terminate(), 0);
    let mut command = memctl();
    let without =
        DaemonProcess::of(command.args(["daemon", "--listen", "http://127.0.0.1:0", "--data-dir"]).arg(home.path()));
    let output = memctl().args(["ui", "--daemon", &without.url]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("--http-listen 127.0.0.1:9717"), "{}", stderr(&output));
    let wrong = memctl().args(["ui", "-o", "json", "--daemon", &without.url]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    assert_eq!(without.terminate(), 0);
}

#[test]
fn the_demo_is_shown_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    // The folder for temporary files comes from the environment, which a test sets for its command.
    let mut child =
        memctl().args(["demo", "--ui", "-q"]).env("TMPDIR", folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let ui = Ui { child, address: address.trim_end().to_owned() };
    let (port, path) = ui.port();
    let entered = get(&port, &path);
    let cookie = format!("Cookie: {}", header(&entered, "set-cookie").unwrap().split(';').next().unwrap());
    let note = json(&ask(&port, "GET", "/api/v1/jobs/demo/diagnose", &[&cookie]));
    assert!(note["summary"].as_str().unwrap().contains("remember_features"), "{note}");
    assert_eq!(ui.terminate(), Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
