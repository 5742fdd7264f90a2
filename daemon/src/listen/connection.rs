//! One accepted connection: its bytes, its peer, and its end if it is idle or stalled.
//!
//! Guarantees: gRPC and HTTP use one type for every transport. A connection closes itself if the peer sends nothing,
//! makes no request for a while, or does not read. [`super::Connections::cut_all`] closes it at once.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::Peer;
use super::connection_limits::{Admission, Owner, Place, SILENCE_MAX, State, Underway};

/// A connection counts as begun after this many bytes, which are most of HTTP/2's preface. An HTTP/1 request is hardly
/// shorter.
const BEGINNING: u64 = 16;
/// A peer that takes none of the waiting bytes for this long counts as gone.
pub const STALLED_MAX: Duration = Duration::from_secs(30);
/// How often a connection checks its limits; this is the shortest of them.
const LOOK_EVERY: Duration = SILENCE_MAX;

/// The transport of a connection.
pub(super) enum Pipe {
    Memory(DuplexStream),
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection.
pub struct Connection {
    pipe: Pipe,
    peer: Peer,
    state: Arc<State>,
    /// `None` for a connection within this process, which has no limits.
    place: Option<Place>,
    heard: u64,
    look: Pin<Box<Sleep>>,
    /// Since when the peer has taken none of the waiting bytes.
    stalled: Option<Instant>,
}

/// The part of a connection that its requests use.
#[derive(Clone)]
pub struct Caller {
    pub(super) peer: Peer,
    pub(super) state: Arc<State>,
}

impl Caller {
    /// Begins a request; the connection is not idle until the returned value is dropped.
    pub(crate) fn begin(&self) -> Underway {
        self.state.begin()
    }

    /// Lets the gate mark the connection as admitted.
    pub(crate) fn admission(&self) -> Admission {
        Admission(self.state.clone())
    }

    /// The other end.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Connection {
    pub(super) fn new(pipe: Pipe, peer: Peer, place: Place) -> Self {
        let state = place.state.clone();
        Self::of(pipe, peer, state, Some(place))
    }

    fn of(pipe: Pipe, peer: Peer, state: Arc<State>, place: Option<Place>) -> Self {
        let look = Box::pin(tokio::time::sleep(LOOK_EVERY));
        Self { pipe, peer, state, place, heard: 0, look, stalled: None }
    }

    /// A connection within this process.
    #[must_use]
    pub fn embedded(pipe: DuplexStream) -> Self {
        Self::of(Pipe::Memory(pipe), Peer::Embedded, State::new(Owner::Process), None)
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.pipe, Pipe::Tls(_))
    }

    /// Returns an error once the connection must end.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.place.is_none() {
            return Ok(());
        }
        if self.state.is_cut(cx.waker()) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        while self.look.as_mut().poll(cx).is_ready() {
            let stalled = self.stalled.is_some_and(|since| since.elapsed() >= STALLED_MAX);
            let overdue = self.state.overdue(self.heard >= BEGINNING);
            if let Some(reason) = overdue.or(stalled.then_some("it does not read")) {
                tracing::debug!(peer = %self.peer, reason, "connection closed");
                return Err(io::ErrorKind::TimedOut.into());
            }
            let next = Instant::now() + LOOK_EVERY;
            self.look.as_mut().reset(next);
        }
        Ok(())
    }

    fn wrote<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match outcome {
            Poll::Pending => _ = self.stalled.get_or_insert_with(Instant::now),
            Poll::Ready(_) => self.stalled = None,
        }
        outcome
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { peer: self.peer.clone(), state: self.state.clone() }
    }
}

/// Makes the same call on every transport.
macro_rules! on_pipe {
    ($pipe:expr, $inner:ident => $call:expr) => {
        match $pipe {
            Pipe::Memory($inner) => $call,
            Pipe::Unix($inner) => $call,
            Pipe::Tcp($inner) => $call,
            Pipe::Tls($inner) => $call,
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        let before = buffer.filled().len();
        let outcome = on_pipe!(&mut this.pipe, pipe => Pin::new(pipe).poll_read(cx, buffer));
        this.heard += (buffer.filled().len() - before) as u64;
        outcome
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        let outcome = on_pipe!(&mut this.pipe, pipe => Pin::new(pipe).poll_write(cx, bytes));
        this.wrote(outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        let outcome = on_pipe!(&mut this.pipe, pipe => Pin::new(pipe).poll_write_vectored(cx, slices));
        this.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        on_pipe!(&self.pipe, pipe => pipe.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        let outcome = on_pipe!(&mut this.pipe, pipe => Pin::new(pipe).poll_flush(cx));
        this.wrote(outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        let outcome = on_pipe!(&mut this.pipe, pipe => Pin::new(pipe).poll_shutdown(cx));
        this.wrote(outcome)
    }
}
