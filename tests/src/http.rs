//! HTTP for tests: a scripted receiver that remembers the requests it got, and a GET.
//!
//! Guarantees: the receiver answers each request on its own thread, so a delayed answer blocks no other request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How the receiver answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It responds with this status.
    Status(u16),
    /// It does not respond; the connection stays open.
    Silence,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// The path.
    pub path: String,
    /// The headers, one per line, names as received.
    pub headers: String,
    /// The body.
    pub body: Value,
}

/// A receiver.
pub struct Receiver {
    /// Its address.
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Starts one; `reply` gives the answer to the n-th request, from 0.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Arc::new(Mutex::new(Vec::new()));
        let (known, reply) = (received.clone(), Arc::new(reply));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (known, reply) = (known.clone(), reply.clone());
                std::thread::spawn(move || serve(stream, &known, &*reply));
            }
        });
        Self { url, received }
    }

    /// All requests received.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().expect("a lock").clone()
    }

    /// Every alert of all webhook messages received: (status of the alert, its name, its job).
    #[must_use]
    pub fn notifications(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let alerts = self
            .received()
            .into_iter()
            .flat_map(|request| request.body["alerts"].as_array().cloned().unwrap_or_default());
        alerts
            .map(|alert| (text(&alert["status"]), text(&alert["labels"]["alertname"]), text(&alert["labels"]["job"])))
            .collect()
    }
}

fn serve(stream: TcpStream, received: &Mutex<Vec<Received>>, reply: &dyn Fn(usize) -> Reply) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut headers, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        headers.push_str(&line);
    }
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let number = {
        let mut received = received.lock().expect("a lock");
        received.push(Received { path, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) });
        received.len() - 1
    };
    let mut stream = reader.into_inner();
    match reply(number) {
        Reply::Status(status) => {
            let text = "what it says";
            let answer =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
            // The client may have disconnected.
            let _ = stream.write_all(answer.as_bytes());
        }
        Reply::Silence => {
            // Ends when the other side closes.
            let _ = stream.read(&mut [0]);
        }
    }
}

/// Status and body of a GET; `None` without an answer.
#[must_use]
pub fn get(url: &str) -> Option<(u16, String)> {
    get_with(url, "").map(|(status, _, body)| (status, body))
}

/// Status, head and body of a GET with additional header lines; `None` without an answer.
#[must_use]
pub fn get_with(url: &str, lines: &str) -> Option<(u16, String, String)> {
    let (host, path) = url.strip_prefix("http://")?.split_once('/')?;
    let mut stream = TcpStream::connect(host).ok()?;
    // HTTP 1.0: the answer ends with the connection and comes in one piece.
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n{lines}\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, head.to_owned(), body.to_owned()))
}

/// Waits until the condition holds; the test fails after two minutes.
///
/// # Panics
/// After two minutes.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !so() {
        assert!(Instant::now() < deadline, "not within two minutes: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
