//! Accepts connections at all addresses.
//!
//! Guarantees: one stream yields the connections of all addresses, so that one server serves them. A handshake blocks
//! no other connection and has a timeout. When file descriptors run out, the loop does not spin. It first closes
//! connections without an admitted caller, then it closes new connections at once, and it logs this once. Listening
//! ends when the stream and every [`Stopper`] are dropped.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use memctl_model::Backoff;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;

use super::connection::Pipe;
use super::connection_limits::{Connections, SILENCE_MAX};
use super::refusal::{Accepted, Refusals};
use super::tls::Certificates;
use super::unix::Socket;
use super::{Connection, Peer, Speaks, certificate};

/// The most accepted connections that wait for the server.
const WAITING: usize = 16;
/// Timeout of the TLS handshake.
const HANDSHAKE_MAX: Duration = SILENCE_MAX;
/// Pauses after failed accepts. They have no random part, because no other task waits for the same descriptors.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(1) };
/// Pause after a failed accept when a connection was closed to make room.
const MAKING_ROOM: Duration = Duration::from_millis(10);
/// While descriptors are short, this many connections are closed in a row before the next pause.
const TURNED_AWAY: usize = 64;

/// A bound address.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Option<Arc<Certificates>>),
}

/// The connections of all addresses.
pub struct Incoming {
    accepted: mpsc::Receiver<Connection>,
    listening: Stopper,
}

/// Ends listening on request, or when the last copy is dropped.
#[derive(Clone)]
pub struct Stopper(Arc<Mutex<Listening>>);

/// The accepting tasks and the files of their sockets.
type Listening = (JoinSet<()>, Vec<Socket>);

impl Stopper {
    /// Accepts no more connections and removes the sockets' files.
    pub fn stop(&self) {
        let listening = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(listening);
    }
}

impl Incoming {
    pub(super) fn start(
        listeners: Vec<Listener>,
        sockets: Vec<Socket>,
        speaks: Speaks,
        connections: &Arc<Connections>,
    ) -> Self {
        let (take, accepted) = mpsc::channel(WAITING);
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let (connections, take) = (connections.clone(), take.clone());
            let (short, refusals) = (Short::default(), Refusals::default());
            accepting.spawn(Accepting { listener, speaks, connections, take, short, refusals }.run());
        }
        Self { accepted, listening: Stopper(Arc::new(Mutex::new((accepting, sockets)))) }
    }

    /// A handle that ends listening while accepted connections are still served.
    pub fn stopper(&self) -> Stopper {
        self.listening.clone()
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.accepted.poll_recv(cx).map(|connection| connection.map(Ok))
    }
}

struct Accepting {
    listener: Listener,
    speaks: Speaks,
    connections: Arc<Connections>,
    take: mpsc::Sender<Connection>,
    short: Short,
    refusals: Refusals,
}

impl Accepting {
    async fn run(mut self) {
        let mut handshakes = JoinSet::new();
        loop {
            // Removes handshakes that have ended.
            while handshakes.try_join_next().is_some() {}
            match self.accept().await {
                Ok(accepted) => {
                    self.short.over();
                    self.admit(accepted, &mut handshakes).await;
                }
                Err(error) if is_short(&error) => self.relieve(&error).await,
                // This affects only one connection, which was closed before it was accepted.
                Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
            }
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match &self.listener {
            Listener::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
            Listener::Tcp(listener, _) => {
                listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address))
            }
        }
    }

    /// The acceptor for the next connection, if it uses TLS.
    fn acceptor(&self) -> Option<TlsAcceptor> {
        match &self.listener {
            Listener::Tcp(_, Some(certificates)) => Some(certificates.acceptor(self.speaks)),
            Listener::Tcp(_, None) | Listener::Unix(_) => None,
        }
    }

    async fn admit(&mut self, accepted: Accepted, handshakes: &mut JoinSet<()>) {
        let peer = match &accepted {
            Accepted::Unix(stream) => match stream.peer_cred() {
                Ok(known) => Peer::Unix { uid: known.uid(), gid: known.gid(), pid: known.pid() },
                Err(error) => return tracing::debug!(%error, "a connection without a user"),
            },
            Accepted::Tcp(_, address) => Peer::Tcp { address: *address, certificate: None },
        };
        let place = match self.connections.place(&peer) {
            Ok(place) => place,
            Err(reason) => {
                tracing::debug!(%peer, reason, "connection refused");
                return self.refusals.tell(accepted, self.acceptor(), reason);
            }
        };
        let connection = match accepted {
            Accepted::Unix(stream) => Connection::new(Pipe::Unix(stream), peer, place),
            Accepted::Tcp(stream, address) => {
                // Small responses must not wait. A socket that refuses this option is about to close anyway.
                let _ = stream.set_nodelay(true);
                if let Some(acceptor) = self.acceptor() {
                    let take = self.take.clone();
                    handshakes.spawn(async move {
                        let shaking = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await;
                        match shaking {
                            Ok(Ok(stream)) => {
                                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                                let certificate = shown.map(|shown| Arc::new(certificate::read(shown)));
                                let peer = Peer::Tcp { address, certificate };
                                // An error means that the daemon is shutting down.
                                let _ = take.send(Connection::new(Pipe::Tls(Box::new(stream)), peer, place)).await;
                            }
                            Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS was not agreed on"),
                            Err(_) => tracing::debug!(%peer, "TLS was not agreed on in time"),
                        }
                    });
                    return;
                }
                Connection::new(Pipe::Tcp(stream), peer, place)
            }
        };
        // An error means that the daemon, and this task with it, is shutting down.
        let _ = self.take.send(connection).await;
    }

    /// Handles a lack of descriptors or memory. It closes a connection without an admitted caller. If there is none, it
    /// closes waiting connections and pauses.
    async fn relieve(&mut self, error: &io::Error) {
        self.short.begin(error, self.connections.count());
        if self.connections.cut_unknown() {
            // Its descriptor is free after its task has run.
            return tokio::time::sleep(MAKING_ROOM).await;
        }
        self.short.reserve = None;
        for _ in 0..TURNED_AWAY {
            let accepting = tokio::time::timeout(Duration::ZERO, self.accept()).await;
            if !matches!(accepting, Ok(Ok(_))) {
                break;
            }
        }
        self.short.reserve = File::open("/dev/null").ok();
        tokio::time::sleep(BACKOFF.bound(self.short.pauses)).await;
        self.short.pauses += 1;
    }
}

/// A period in which no connection can be accepted.
struct Short {
    is: bool,
    pauses: u32,
    failed: u64,
    /// A spare descriptor. It is closed so that waiting connections can be accepted and closed.
    reserve: Option<File>,
}

impl Default for Short {
    fn default() -> Self {
        Self { is: false, pauses: 0, failed: 0, reserve: File::open("/dev/null").ok() }
    }
}

impl Short {
    fn begin(&mut self, error: &io::Error, connections: usize) {
        self.failed += 1;
        if !self.is {
            self.is = true;
            tracing::error!(
                %error,
                connections,
                "out of file descriptors: no connection can be accepted; raise LimitNOFILE of the service (ulimit -n)"
            );
        }
    }

    fn over(&mut self) {
        if self.is {
            tracing::info!(failed = self.failed, "connections are accepted again");
            *self = Self { reserve: self.reserve.take(), ..Self::default() };
        }
    }
}

/// Whether descriptors or memory are exhausted, so that the next accept fails too.
fn is_short(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
