//! Targets for a daemon's ports: bytes that any program on the network may send, against the real binary.
//!
//! Guarantees: as [`super::targets`]. A port answers in its own protocol or closes, within [`ANSWER_MAX`] after the
//! last byte, and the next input finds the daemon alive. The daemon ends with the thread that started it.
//! Refuses to check the daemon's memory; the tests of hostile clients do.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use crate::daemon::DaemonProcess;
use crate::memctl_path;

/// A port that takes longer counts as hung.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The longest answer: `/metrics` of a daemon without jobs has a tenth of it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// How an HTTP/2 client begins: the preface and empty settings.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

struct Served {
    daemon: DaemonProcess,
    _home: tempfile::TempDir,
}

static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(memctl_path()).args(["daemon", "--listen", "127.0.0.1:0"]);
    command.args(["--http-listen", "http://127.0.0.1:0", "--data-dir"]).arg(home.path()).env("MEMCTL_LOG", "error");
    Served { daemon: DaemonProcess::of(&mut command), _home: home }
});

/// Sends all parts, and returns what the daemon sends until it closes the connection.
fn exchange(url: &str, parts: &[&[u8]]) -> Vec<u8> {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("the daemon is alive");
    stream.set_read_timeout(Some(ANSWER_MAX)).expect("a time limit");
    // A client that is refused midway cannot finish sending.
    let _ = parts.iter().try_for_each(|part| stream.write_all(part));
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        assert!(
            !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "the daemon neither answers nor closes"
        );
    }
    assert!((answer.len() as u64) < ANSWER_BYTES_MAX, "an answer without an end");
    answer
}

/// A request to the HTTP port.
pub fn http(bytes: &[u8]) -> String {
    let answer = exchange(&SERVED.daemon.http[0], &[bytes]);
    if answer.is_empty() {
        return "closed".into();
    }
    let text = String::from_utf8_lossy(&answer);
    // Outcomes are distinguished by their words, so each status has its own.
    let said =
        text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(1..)?.split_once("\r\n")).map(|(status, _)| status);
    let said = said.unwrap_or_else(|| panic!("no answer of HTTP/1: {:?}", text.chars().take(80).collect::<String>()));
    let more = if text.matches("HTTP/1.1 ").count() > 1 { "more follow" } else { "alone" };
    let page = if text.contains("\r\n\r\n# HELP") { "figures" } else { "none" };
    let kept = if text.contains("connection: close") { "closes" } else { "stays" };
    format!("{said}, {more}, {page}, {kept}")
}

/// Names of frame types and GOAWAY error codes, by number (RFC 9113, 6 and 7).
const KINDS: [&str; 10] =
    ["data", "headers", "priority", "reset", "settings", "promise", "ping", "goaway", "window", "continuation"];
const REASONS: [&str; 14] = [
    "none",
    "protocol",
    "internal",
    "flow control",
    "settings timeout",
    "stream closed",
    "frame size",
    "refused",
    "cancel",
    "compression",
    "connect",
    "calm",
    "security",
    "old http",
];

/// Bytes to the gRPC port, after a valid preface.
pub fn http2(bytes: &[u8]) -> String {
    let answer = exchange(&SERVED.daemon.url, &[HTTP2_BEGINS, bytes]);
    let mut rest = answer.as_slice();
    let mut kinds = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let kind = KINDS.get(usize::from(head[3])).unwrap_or_else(|| panic!("a frame of no kind: {head:?}"));
        // A connection that is reset may end within a frame.
        let Some((body, after)) = after.split_at_checked(length) else { break };
        let reason = match *kind {
            "goaway" => body.get(7),
            "reset" => body.get(3),
            _ => None,
        };
        let reason = reason.map_or("", |reason| REASONS.get(usize::from(*reason)).copied().unwrap_or("unknown"));
        if kinds.last() != Some(&(*kind, reason)) {
            kinds.push((*kind, reason));
        }
        rest = after;
    }
    assert!(kinds.first().is_none_or(|(kind, _)| *kind == "settings"), "settings come first: {kinds:?}");
    format!("{kinds:?}")
}
