//! `memctl mcp --listen`: who is answered over HTTP, and who is not.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use memctl_tests::daemon::DaemonProcess;
use memctl_tests::https::{Answer, Port, address, off_loopback};
use memctl_tests::recordings::folder as folder_of;
use memctl_tests::{memctl, run, stderr};
use serde_json::{Value, json};

use super::Store;

/// `memctl mcp --listen`, ended when dropped.
struct Served {
    child: Child,
    port: Port,
    place: SocketAddr,
}

impl Served {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("memctl mcp starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("memctl mcp listens on ").unwrap_or_else(|| panic!("{line:?}"));
        assert!(url.ends_with("/mcp"), "{url}");
        let place = address(url.trim_end_matches("/mcp"));
        Self { child, port: Port::plain(place), place }
    }

    /// A call of a tool, with these header lines.
    fn call(&self, headers: &[&str], host: &str) -> Answer {
        let call = json!({"name": "jobs", "arguments": {}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).to_string();
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\nContent-Length: {}\r\n{lines}\r\n{body}",
            body.len()
        );
        self.port.send(request.as_bytes()).expect("an answer")
    }

    /// The address and port of the server, as the value of the header `Host`.
    fn host(&self) -> String {
        self.place.to_string()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn jobs(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let message: Value = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body));
    let jobs = message["result"]["structuredContent"]["answer"]["jobs"].as_array().unwrap().clone();
    jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

fn token(store: &Store, name: &str, role: &str, given: Option<&str>) -> String {
    let mut command = memctl();
    command.args(["token", "create", name, "--role", role, "-q", "--daemon", &store.daemon.url]);
    if let Some(given) = given {
        command.env("MEMCTL_TOKEN", given);
    }
    run(&mut command).trim().to_owned()
}

#[test]
fn pages_of_other_sites_get_nothing() {
    let store = Store::with(&["gpt_clean"]);
    let served = Served::start(memctl().args(["mcp", "--listen", "127.0.0.1:0", "--daemon", &store.daemon.url]));
    assert_eq!(jobs(&served.call(&[], &served.host())), ["gpt_clean"]);
    assert_eq!(jobs(&served.call(&[], &format!("localhost:{}", served.place.port()))), ["gpt_clean"]);
    let rebound = served.call(&[], &format!("evil.example:{}", served.place.port()));
    assert_eq!(rebound.status, 403, "a name that points here: {}", rebound.body);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let other = served.call(&[&format!("Origin: {origin}")], &served.host());
        assert_eq!(other.status, 403, "{origin}: {}", other.body);
    }
    let large = "x".repeat(70_000);
    assert!(served.call(&[&format!("X-Large: {large}")], &served.host()).status >= 400);
}

#[test]
fn a_token_has_the_rights_that_the_daemon_gives_it() {
    let store = Store::with(&["gpt_clean"]);
    let admin = token(&store, "root", "admin", None);
    let reader = token(&store, "assistant", "reader", Some(&admin));
    let agent = token(&store, "trainer", "agent", Some(&admin));
    let served = Served::start(memctl().args(["mcp", "--listen", "127.0.0.1:0", "--daemon", &store.daemon.url]));
    let with = |token: &str| served.call(&[&format!("Authorization: Bearer {token}")], &served.host());
    assert_eq!(jobs(&with(&reader)), ["gpt_clean"]);
    let wrong = with("wrong");
    assert_eq!(wrong.status, 401, "{}", wrong.body);
    assert!(wrong.head.to_lowercase().contains("www-authenticate: bearer"), "{}", wrong.head);
    assert_eq!(served.call(&["Authorization: Basic x"], &served.host()).status, 401);
    // An agent may not read: the answer says so.
    let refused = with(&agent);
    assert!(refused.body.contains("refuses"), "{}", refused.body);
    // Without a token, the daemon refuses the call, because a token exists.
    let nothing = served.call(&[], &served.host());
    let message: Value = serde_json::from_str(&nothing.body).unwrap();
    assert_eq!(message["result"]["isError"], true, "{message}");
    // The server's own token is not lent.
    let mut command = memctl();
    command.args(["mcp", "--listen", "127.0.0.1:0", "--daemon", &store.daemon.url]).env("MEMCTL_TOKEN", &reader);
    let lending = Served::start(&mut command);
    assert_eq!(lending.call(&[], &lending.host()).status, 401);
}

#[test]
fn the_port_requires_a_token_for_a_private_socket_once_tokens_exist() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("daemon.sock").display());
    let daemon = DaemonProcess::of(memctl().args(["daemon", "--listen", &socket, "--data-dir"]).arg(folder.path()));
    run(memctl().args(["import", "-q", "--job", "gpt_clean", "--daemon", &socket]).arg(folder_of("gpt_clean")));
    let served = Served::start(memctl().args(["mcp", "--listen", "127.0.0.1:0", "--daemon", &socket]));
    assert_eq!(jobs(&served.call(&[], &served.host())), ["gpt_clean"], "as at a daemon's port");
    let made = run(memctl().args(["token", "create", "a", "--role", "admin", "-q", "--daemon", &socket]));
    let nothing = served.call(&[], &served.host());
    assert_eq!(nothing.status, 401, "{}", nothing.body);
    let token = format!("Authorization: Bearer {}", made.trim());
    assert_eq!(jobs(&served.call(&[&token], &served.host())), ["gpt_clean"]);
    assert_eq!(served.call(&["Authorization: Bearer wrong"], &served.host()).status, 401);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn other_machines_need_a_token_and_encryption() {
    let store = Store::with(&["gpt_clean"]);
    let place = SocketAddr::new(off_loopback(), 0).to_string();
    let open = memctl().args(["mcp", "--listen", &place, "--daemon", &store.daemon.url]).output().unwrap();
    assert_eq!(open.status.code(), Some(2));
    assert!(stderr(&open).contains("--tls-cert") && stderr(&open).contains("--insecure"), "{}", stderr(&open));
    let admin = token(&store, "root", "admin", None);
    let reader = token(&store, "assistant", "reader", Some(&admin));
    let mut command = memctl();
    command.args(["mcp", "--listen", &place, "--insecure", "--daemon", &store.daemon.url]);
    // Its own token is not lent to callers.
    let served = Served::start(command.env("MEMCTL_TOKEN", &admin));
    let nothing = served.call(&[], &served.host());
    assert_eq!(nothing.status, 401, "{}", nothing.body);
    assert!(nothing.body.contains("memctl token create"), "{}", nothing.body);
    assert_eq!(jobs(&served.call(&[&format!("Authorization: Bearer {reader}")], &served.host())), ["gpt_clean"]);
    let folder = tempfile::tempdir().unwrap();
    run(memctl().args(["import", "-q", "--job", "a", "--data-dir"]).arg(folder.path()).arg(folder_of("gpt_clean")));
    let unchecked =
        memctl().args(["mcp", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path()).output().unwrap();
    assert!(stderr(&unchecked).contains("which checks callers"), "{}", stderr(&unchecked));
}
