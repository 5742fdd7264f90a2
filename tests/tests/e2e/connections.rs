//! Clients that occupy connections, descriptors and memory: honest agents are served meanwhile, the daemon's memory
//! stays bounded, and it ends on request, with true messages.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memctl_daemon::listen::STALLED_MAX;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http2::Http2;
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, memctl_path, run, run_json};

/// A message as large as an item may be.
const MESSAGE: usize = 8 << 20;
const PUSH: &str = "/memctl.v1.Ingest/Push";

fn honest(url: &str, job: &str) {
    run(memctl().arg("import").arg(folder("cnn_rank0_cache")).args(["--job", job, "--daemon", url, "-q"]));
    let report = run_json(memctl().args(["query", "-o", "json", "--job", job, "--daemon", url]));
    assert_eq!(report["completeness"]["exact"], true, "{}", report["completeness"]);
}

#[test]
fn half_open_connections_and_half_messages_are_bounded_and_hold_up_no_one() {
    raise_limit();
    let home = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(home.path(), free_port());
    let address = daemon.url.trim_start_matches("http://").to_owned();
    let silent: Vec<TcpStream> = (0..1_000).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let peak_before = daemon.peak_bytes();
    let holders: Vec<_> = (0..20)
        .map(|_| {
            let address = address.clone();
            std::thread::spawn(move || {
                let mut connection = Http2::open(&address).unwrap();
                let mut taken = 0;
                for _ in 0..10 {
                    let Ok(id) = connection.call(PUSH) else { break };
                    match connection.all_but_the_last_byte(id, MESSAGE, Duration::from_secs(2)) {
                        Ok(sent) => taken += sent,
                        Err(_) => break,
                    }
                }
                (taken, connection)
            })
        })
        .collect();
    // Honest jobs work while the attackers connect …
    honest(&daemon.url, "meanwhile");
    let (taken, held): (Vec<usize>, Vec<Http2>) = holders.into_iter().map(|holder| holder.join().unwrap()).unzip();
    let taken: usize = taken.iter().sum();
    let budget = memctl_daemon::listen::RECEIVING_BYTES;
    assert!(taken > 5 * budget, "only {} MiB were sent", taken >> 20);
    // … and while they stay connected.
    honest(&daemon.url, "afterwards");
    let grown = daemon.peak_bytes() - peak_before;
    // The growth includes buffered data, memory that the allocator retains, and the need of honest jobs.
    assert!(grown < 4 * budget as u64, "{} MiB more", grown >> 20);
    println!("{} MiB were sent, the peak grew by {} MiB", taken >> 20, grown >> 20);
    drop((silent, held));
    assert_eq!(daemon.terminate(), 0);
}

/// Without this limit, unread responses would stay in the daemon's memory as long as their connection.
#[test]
fn a_connection_that_takes_nothing_of_its_answers_ends() {
    use prost::Message as _;
    let home = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(home.path(), free_port());
    honest(&daemon.url, "before");
    let (address, began) = (daemon.url.trim_start_matches("http://"), Instant::now());
    let mut connection = Http2::offering(address, 0).unwrap();
    let selection = memctl_proto::v1::Selection { job: "before".to_owned(), ..Default::default() };
    let asked = memctl_proto::v1::ReportRequest { selection: Some(selection) }.encode_to_vec();
    for _ in 0..8 {
        let id = connection.call("/memctl.v1.Query/GetReport").unwrap();
        connection.ask(id, &asked).unwrap();
    }
    // The client answers pings meanwhile, and is alive in every other way.
    while connection.hear().is_ok() {
        assert!(began.elapsed() < STALLED_MAX * 3, "it is still there: {:?}", connection.answered());
    }
    // One tenant has half of the eight response slots; the other four queries wait.
    assert_eq!(connection.answered(), (4, 0), "answers were ready and nothing of them was taken");
    assert!(began.elapsed() >= STALLED_MAX, "it had {:?}", began.elapsed());
    // A client that is slow but reads is not affected.
    let mut slow = Http2::offering(address, 1 << 20).unwrap();
    let id = slow.call("/memctl.v1.Query/GetReport").unwrap();
    slow.ask(id, &asked).unwrap();
    while !slow.is_over(id) {
        slow.hear().unwrap();
    }
    let (answers, taken) = slow.answered();
    assert!(answers == 1 && taken > 1_000, "{taken} bytes");
    honest(&daemon.url, "afterwards");
    assert_eq!(daemon.terminate(), 0);
}

/// Raises this program's limit, because it needs a descriptor for each of its connections.
fn raise_limit() {
    let raised = Command::new("prlimit").args(["--nofile=4096:", "--pid", &std::process::id().to_string()]).status();
    assert!(raised.unwrap().success(), "1,000 connections need as many descriptors");
}

fn limited(home: &std::path::Path) -> DaemonProcess {
    let mut command = Command::new("prlimit");
    command.args(["--nofile=64", "--"]).arg(memctl_path()).args(["daemon", "--listen", "127.0.0.1:0", "--data-dir"]);
    DaemonProcess::of(command.arg(home).stderr(Stdio::piped()))
}

/// Waits for a line of the log.
fn until_said(said: &mut impl std::io::BufRead, words: &str) -> String {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the daemon ended and never said {words:?}");
    }
    line
}

/// Beyond a limit, clients do not just see a closed connection: commands and agents get the name of the limit.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_beyond_a_bound_hears_which_one_and_what_to_do() {
    use memctl_tests::certificates::Authority;
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new(home.path(), "ours");
    let identity = authority.issue("daemon");
    for (setting, encrypted, words) in [
        ("max_connections_per_peer", false, "one peer may have 3 (max_connections_per_peer): close some"),
        ("max_connections_per_peer", true, "one peer may have 3 (max_connections_per_peer): close some"),
        ("max_connections", false, "no more are taken (max_connections): try again later"),
    ] {
        let config = home.path().join("memctl.toml");
        std::fs::write(&config, format!("{setting} = 3\n")).unwrap();
        let mut command = memctl();
        command.args(["daemon", "--listen", "127.0.0.1:0", "--config"]).arg(&config);
        command.arg("--data-dir").arg(home.path().join("store"));
        if encrypted {
            command.arg("--tls-cert").arg(&identity.cert).arg("--tls-key").arg(&identity.key);
        }
        let daemon = DaemonProcess::of(&mut command);
        let address = memctl_agent::reach::DaemonAddress {
            url: daemon.url.clone(),
            tls: memctl_agent::reach::Tls { ca: encrypted.then(|| authority.file.clone()), ..Default::default() },
            service: None,
        };
        // All allowed connections are open and used by requests, so none of them makes room.
        let mut holding = Vec::new();
        for _ in 0..3 {
            let channel = address.connect(|endpoint| endpoint).await.unwrap();
            let mut client = memctl_proto::v1::query_client::QueryClient::new(channel);
            client.get_status(memctl_proto::v1::StatusRequest {}).await.unwrap();
            holding.push(client);
        }
        let ask = || {
            let mut command = memctl();
            command.args(["jobs", "--daemon", &daemon.url]);
            let command = if encrypted { command.arg("--tls-ca").arg(&authority.file) } else { &mut command };
            command.output().unwrap()
        };
        let refused = tokio::task::block_in_place(ask);
        let said = memctl_tests::stderr(&refused);
        assert_eq!(refused.status.code(), Some(3), "{said}");
        assert!(said.contains("does not take this connection") && said.contains(words), "{said}");
        if !encrypted {
            let mut plain = TcpStream::connect(daemon.url.trim_start_matches("http://")).unwrap();
            plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut said = String::new();
            plain.read_to_string(&mut said).unwrap();
            assert!(said.starts_with("HTTP/1.1 503 ") && said.contains(words), "{said}");
        }
        drop(holding);
        assert_eq!(daemon.terminate(), 0);
    }
}

#[test]
fn few_descriptors_are_kept_for_the_store_and_for_who_asks_something() {
    let home = tempfile::tempdir().unwrap();
    let mut daemon = limited(home.path());
    let mut said = std::io::BufReader::new(daemon.said().unwrap());
    until_said(&mut said, "few file descriptors");
    let address = daemon.url.trim_start_matches("http://").to_owned();
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    honest(&daemon.url, "between");
    let cut = silent.iter().filter(|stream| is_closed(stream)).count();
    assert!(cut >= 100, "{cut} of the silent connections made room");
    drain(said);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn when_descriptors_run_out_it_waits_says_so_once_and_recovers() {
    let home = tempfile::tempdir().unwrap();
    let mut command = memctl();
    command.args(["daemon", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path());
    let mut daemon = DaemonProcess::of(command.stderr(Stdio::piped()));
    let mut said = std::io::BufReader::new(daemon.said().unwrap());
    let address = daemon.url.trim_start_matches("http://").to_owned();
    let limit = |count: &str| run(Command::new("prlimit").args([count, "--pid", &daemon.pid().to_string()]));
    let before = run(Command::new("prlimit")
        .args(["--nofile", "--raw", "--noheadings", "--output=SOFT", "--pid"])
        .arg(daemon.pid().to_string()));
    // The limit is lower than the number of open descriptors, so every accept fails.
    limit("--nofile=8:");
    let waiting: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    until_said(&mut said, "out of file descriptors");
    // Descriptors are still short, but nothing more is logged: the next line reports the end of the shortage.
    limit(&format!("--nofile={}:", before.trim()));
    // The store had no descriptor either. Queries are refused until the store is checked again, once a second.
    let begun = std::time::Instant::now();
    while !memctl().args(["jobs", "--daemon", &daemon.url]).output().unwrap().status.success() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it does not recover");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    honest(&daemon.url, "after");
    let over = until_said(&mut said, "connections are accepted again");
    let failed: u64 = over.split("failed=").nth(1).and_then(|rest| rest.trim().parse().ok()).unwrap();
    // There is a pause of at least 100 ms between two failures; a busy loop would fail thousands of times.
    assert!((1..200).contains(&failed), "{over}");
    drop(waiting);
    drain(said);
    assert_eq!(daemon.terminate(), 0);
}

fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return true,
            // The daemon's first bytes; only the rest of the stream matters.
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Reads the pipe to its end, because a full pipe would block the daemon.
fn drain(mut said: impl std::io::Read + Send + 'static) {
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
}

/// Ends a daemon by SIGTERM; returns all that it printed.
fn told_to_end(mut child: Child) -> (i32, String) {
    run(Command::new("kill").arg(child.id().to_string()));
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code().unwrap(), text)
}

#[test]
fn who_does_not_go_does_not_keep_the_daemon() {
    let home = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut command = memctl();
    command.args(["daemon", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(home.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut first).unwrap();
    assert!(first.contains("listens on"), "{first}");
    let (address, url) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}"));
    honest(&url, "stored");
    let silent = TcpStream::connect(&address).unwrap();
    let mut begun = TcpStream::connect(&address).unwrap();
    begun.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    // Half a message and nothing more, and a client that sends requests and never reads.
    let mut half = Http2::open(&address).unwrap();
    let id = half.call(PUSH).unwrap();
    assert_eq!(half.all_but_the_last_byte(id, 1 << 20, Duration::from_secs(30)).unwrap(), 5 + (1 << 20) - 1);
    let mut deaf = Http2::open(&address).unwrap();
    let id = deaf.call("/memctl.v1.Query/ListJobs").unwrap();
    deaf.all_but_the_last_byte(id, 2, Duration::from_secs(30)).unwrap();
    let (code, said) = told_to_end(child);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("connections that did not close were ended"), "{said}");
    assert!(said.contains("drained and closed"), "{said}");
    // Everything was stored, and the log reports no error.
    assert!(!said.contains("ERROR") && !said.contains("did not finish") && !said.contains("still writing"), "{said}");
    drop((silent, begun, half, deaf));
}
