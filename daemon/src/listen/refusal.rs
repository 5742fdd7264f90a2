//! Sends the exceeded limit to a refused connection before closing it.
//!
//! Guarantees: the text uses the peer's protocol (GOAWAY in HTTP/2, a response in HTTP/1.1), so that the client's
//! library reports it. Few refused connections get this text at a time, each for a short time, and they take no places.
//! All others are closed without a text.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use memctl_proto::goaway::MARK;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// The most refused connections that get the text at the same time. Each holds a descriptor.
const TOLD_MAX: usize = 32;
/// Time limit for sending the text.
const TELLING_MAX: Duration = Duration::from_secs(3);
/// The part of this time for which a request is awaited.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// The first bytes of an HTTP/2 connection.
const HTTP2: [u8; 3] = *b"PRI";
/// Length of HTTP/2's preface.
const PREFACE_BYTES: usize = 24;
/// The daemon's empty settings, which must be sent first (RFC 9113, 3.4).
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A connection of which only the origin is known.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

/// The refused connections that are getting the text.
#[derive(Default)]
pub(super) struct Refusals {
    telling: JoinSet<()>,
}

impl Refusals {
    /// Sends the text to a connection, unless there are too many. It never waits.
    pub(super) fn tell(&mut self, accepted: Accepted, acceptor: Option<TlsAcceptor>, words: String) {
        while self.telling.try_join_next().is_some() {}
        if self.telling.len() < TOLD_MAX {
            self.telling.spawn(async move {
                // A peer that does not read in time gets no text.
                let _ = tokio::time::timeout(TELLING_MAX, send_text(accepted, acceptor, &words)).await;
            });
        }
    }
}

async fn send_text(accepted: Accepted, acceptor: Option<TlsAcceptor>, words: &str) -> io::Result<()> {
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
        // Libraries report the text to requests that wait for a response, so a request must arrive first.
        let _ = tokio::time::timeout(REQUEST_MAX, request(&mut stream)).await;
        goaway(words)
    } else {
        http1(words)
    };
    stream.write_all(&farewell).await?;
    stream.flush().await?;
    stream.shutdown().await?;
    // Unread bytes would cause a reset, which could overtake the text.
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Reads up to the first request, a HEADERS frame, and no further (RFC 9113, 4.1 and 6.2).
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

/// GOAWAY (RFC 9113, 6.8): no stream was processed.
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
