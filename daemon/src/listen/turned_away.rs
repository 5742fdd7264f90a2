//! Telling whoever comes beyond a bound which one it is, before the connection is closed.
//!
//! Guarantees: the words are in the peer's own protocol (the end of a connection of HTTP/2, or an answer of HTTP/1.1), so that
//! its library hands them on; few are told at a time, each for a moment, and none of them takes a place.
//! Refuses: to tell more of them: the others find a closed connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use memctl_proto::goaway::MARK;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Told at the same time. Each holds a descriptor.
const TOLD_MAX: usize = 32;
/// And no longer than this.
const TELLING_MAX: Duration = Duration::from_secs(3);
/// How long of that for a request to come, where one can be waited for.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// How a connection of HTTP/2 begins.
const HTTP2: [u8; 3] = *b"PRI";
/// All of that beginning.
const PREFACE_BYTES: usize = 24;
/// The daemon's settings, empty: they come before anything else (RFC 9113, 3.4).
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A connection of which nothing is known but where it comes from.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

/// Those who are being told.
#[derive(Default)]
pub(super) struct TurnedAway {
    telling: JoinSet<()>,
}

impl TurnedAway {
    /// Tells one, if there are not too many; never waits.
    pub(super) fn tell(&mut self, accepted: Accepted, acceptor: Option<TlsAcceptor>, words: String) {
        while self.telling.try_join_next().is_some() {}
        if self.telling.len() < TOLD_MAX {
            self.telling.spawn(async move {
                // Whoever does not listen is not told.
                let _ = tokio::time::timeout(TELLING_MAX, told(accepted, acceptor, &words)).await;
            });
        }
    }
}

async fn told(accepted: Accepted, acceptor: Option<TlsAcceptor>, words: &str) -> io::Result<()> {
    match (accepted, acceptor) {
        (Accepted::Unix(stream), _) => say(stream, words).await,
        (Accepted::Tcp(stream, _), None) => say(stream, words).await,
        (Accepted::Tcp(stream, _), Some(acceptor)) => say(acceptor.accept(stream).await?, words).await,
    }
}

async fn say(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: &str) -> io::Result<()> {
    let mut beginning = HTTP2;
    stream.read_exact(&mut beginning).await?;
    let farewell = if beginning == HTTP2 {
        stream.write_all(&SETTINGS).await?;
        stream.flush().await?;
        // Libraries hand the words to the requests that wait for an answer: before there is one, nobody hears them.
        let _ = tokio::time::timeout(REQUEST_MAX, request(&mut stream)).await;
        goaway(words)
    } else {
        http1(words)
    };
    stream.write_all(&farewell).await?;
    stream.flush().await?;
    stream.shutdown().await?;
    // What is not read here would be answered with a reset, which overtakes the words.
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Reads up to the first request, which is a frame of headers, and no further (RFC 9113, 4.1 and 6.2).
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    const HEADERS: u8 = 1;
    stream.read_exact(&mut [0; PREFACE_BYTES - HTTP2.len()]).await?;
    loop {
        let mut frame = [0; 9];
        stream.read_exact(&mut frame).await?;
        if frame[3] == HEADERS {
            return Ok(());
        }
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
        tokio::io::copy(&mut (&mut *stream).take(length.into()), &mut tokio::io::sink()).await?;
    }
}

/// The end of the connection (RFC 9113, 6.8): no stream was looked at.
fn goaway(words: &str) -> Vec<u8> {
    const GOAWAY: u8 = 7;
    const ENHANCE_YOUR_CALM: u32 = 11;
    let text = format!("{MARK}{words}");
    let length = (8 + text.len() as u32).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], GOAWAY, 0, 0, 0, 0, 0];
    bytes.extend(0_u32.to_be_bytes());
    bytes.extend(ENHANCE_YOUR_CALM.to_be_bytes());
    bytes.extend(text.bytes());
    bytes
}

fn http1(words: &str) -> Vec<u8> {
    let body = format!("{words}\n");
    let head = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Type: text/plain";
    format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer(request: &[u8]) -> Vec<u8> {
        let (mut ours, theirs) = tokio::io::duplex(4_096);
        let telling = tokio::spawn(async move { say(theirs, "there are too many").await });
        ours.write_all(request).await.unwrap();
        ours.shutdown().await.unwrap();
        let mut said = Vec::new();
        ours.read_to_end(&mut said).await.unwrap();
        telling.await.unwrap().unwrap();
        said
    }

    #[tokio::test]
    async fn the_words_wait_for_the_request_that_hears_them() {
        let (mut ours, theirs) = tokio::io::duplex(4_096);
        tokio::spawn(async move { say(theirs, "there are too many").await });
        ours.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        ours.write_all(&SETTINGS).await.unwrap();
        ours.read_exact(&mut [0; 9]).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), ours.read_u8()).await;
        assert!(early.is_err(), "nothing but the settings: no request has come");
        ours.write_all(&[0, 0, 0, 1, 5, 0, 0, 0, 1]).await.unwrap();
        let mut frame = [0; 9];
        ours.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[3], 7);
    }

    #[tokio::test]
    async fn each_is_told_in_its_own_protocol() {
        let said = answer(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert_eq!(said[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(said[9..18], [0, 0, 8 + 8 + 18, 7, 0, 0, 0, 0, 0]);
        assert_eq!(said[18..26], [0, 0, 0, 0, 0, 0, 0, 11]);
        assert_eq!(&said[26..], b"memctl: there are too many");
        let said = String::from_utf8(answer(b"GET /metrics HTTP/1.1\r\n\r\n").await).unwrap();
        assert!(said.starts_with("HTTP/1.1 503 ") && said.ends_with("\r\n\r\nthere are too many\n"), "{said}");
        assert!(said.contains("Content-Length: 19\r\n"), "{said}");
    }
}
