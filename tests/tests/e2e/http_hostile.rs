//! Attacks on the HTTP port: bytes that are not requests, heads that are too long or never end, silent connections.
//! Honest clients are answered meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use memctl_tests::certificates::Authority;
use memctl_tests::daemon::DaemonProcess;
use memctl_tests::http::get;
use memctl_tests::https::{Answer, Port, address};
use memctl_tests::memctl;

/// A daemon with an HTTP port on loopback, without TLS and with it.
fn served(home: &std::path::Path) -> (DaemonProcess, [Port; 2]) {
    let authority = Authority::new(home, "ours");
    let server = authority.issue("daemon");
    let mut command = memctl();
    command.args(["daemon", "--listen", "http://127.0.0.1:0", "--data-dir"]).arg(home.join("store"));
    command.args(["--http-listen", "http://127.0.0.1:0,https://127.0.0.1:0"]);
    command.arg("--tls-cert").arg(&server.cert).arg("--tls-key").arg(&server.key);
    let daemon = DaemonProcess::of(&mut command);
    let [plain, tls] = [0, 1].map(|at| address(&daemon.http[at]));
    (daemon, [Port::plain(plain), Port::tls(tls, &authority.file)])
}

#[test]
fn what_is_no_question_is_refused_and_costs_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, ports) = served(home.path());
    for port in &ports {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "NONSENSE"] {
            for path in ["/metrics", "/healthz", "/readyz", "/"] {
                let answer = port.ask(method, path, &["Content-Length: 0".into()]);
                assert_eq!(answer.status, 405, "{method} {path}: {}", answer.head);
            }
        }
        for path in [
            "/nothing",
            "/metrics/",
            "/METRICS",
            "/metrics/../healthz",
            "//metrics",
            "/metrics%00",
            "/memctl.v1.Query/ListJobs",
        ] {
            assert_eq!(port.page(path, None).status, 404, "{path}");
        }
        assert_eq!(port.page("/metrics?name[]=memctl_ready", None).status, 200, "a query changes nothing");
        // A client that still sends when the daemon closes may miss the answer.
        let many: String = (0..1_000).map(|at| format!("X-{at}: 1\r\n")).collect();
        for head in [
            format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(64 << 10)),
            format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
            format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(1 << 20)),
        ] {
            assert!(matches!(port.send(head.as_bytes()), Err(_) | Ok(Answer { status: 414 | 431, .. })));
        }
        // The daemon does not wait for an announced body.
        let announced = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\nx";
        let mut pipe = port.connect();
        pipe.write_all(announced.as_bytes()).unwrap();
        let mut head = [0; 12];
        pipe.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 405");
        for bytes in [
            &b"\x16\x03\x01\x02\x00\x01\x00"[..],
            b"\r\n\r\n\r\n",
            b"GET\r\n\r\n",
            &[0; 4096],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            // If the daemon waits for more data, the test closes the connection.
            if bytes.starts_with(b"\x16") || bytes.starts_with(b"PRI") {
                port.connect().write_all(bytes).unwrap();
            } else if let Ok(answer) = port.send(bytes) {
                assert_eq!(answer.status, 400, "{bytes:?}");
            }
        }
        assert_eq!(port.page("/readyz", None).status, 200);
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_thousand_silent_connections_hold_up_no_one() {
    let raised = Command::new("prlimit").args(["--nofile=4096:", "--pid", &std::process::id().to_string()]).status();
    assert!(raised.unwrap().success(), "1,000 connections need as many descriptors");
    let home = tempfile::tempdir().unwrap();
    let (daemon, ports) = served(home.path());
    for port in &ports {
        let before = daemon.peak_bytes();
        // The connection of a regular scraper is not closed.
        let mut kept = port.connect();
        let mut again = || {
            kept.write_all(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut bytes = [0; 4096];
            let length = kept.read(&mut bytes).unwrap();
            assert!(bytes[..length].starts_with(b"HTTP/1.1 200"));
        };
        again();
        let mut silent: Vec<TcpStream> = (0..1_000).map(|_| TcpStream::connect(port.address).unwrap()).collect();
        // Request heads that never end.
        for stream in silent.iter_mut().skip(900) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX-");
        }
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert_eq!(port.page(path, None).status, 200);
        }
        again();
        let scrape = port.page("/metrics", None).body;
        let open = scrape.lines().find_map(|line| line.strip_prefix("memctl_connections{port=\"http\"} "));
        assert!(open.unwrap().parse::<u32>().unwrap() <= 128, "{open:?} of one peer");
        assert!(daemon.peak_bytes() - before < 64 << 20, "{} KiB more", (daemon.peak_bytes() - before) >> 10);
    }
    // Connections of this port do not take the places of agents either.
    memctl_tests::run(memctl().args(["jobs", "--daemon", &daemon.url]));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_head_that_never_ends_ends_its_connection() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, [port, _]) = served(home.path());
    let mut slow = TcpStream::connect(port.address).unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
    slow.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    // After the daemon's time limit it responds or closes the connection.
    let mut said = Vec::new();
    slow.read_to_end(&mut said).expect("the connection ends by the daemon");
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&said));
    assert_eq!(get(&format!("http://{}/healthz", port.address)).map(|(status, _)| status), Some(200));
    assert_eq!(daemon.terminate(), 0);
}
