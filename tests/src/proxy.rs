//! A misbehaving network between an agent and its daemon.
//!
//! Guarantees: every fault to a connection is counted, so that a test can assert that it happened.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Network {
    /// They arrive.
    Works = 0,
    /// Bytes in either direction vanish, without an error. A connection that lost bytes never works again.
    HalfOpen = 1,
    /// The daemon's answers vanish; a connection that lost bytes never works again.
    AnswersLost = 2,
    /// They arrive a few at a time.
    Slow = 3,
    /// New connections are closed at once.
    Refuses = 4,
}

#[derive(Default)]
struct Shared {
    network: AtomicU8,
    /// Connections that were cut or refused.
    cut: AtomicU64,
    /// Bytes that vanished.
    lost: AtomicU64,
    /// Pieces that were delayed.
    delayed: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

/// A proxy in front of a port.
pub struct Proxy {
    /// Where agents connect to.
    pub url: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts one.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                own.connect(client, port);
            }
        });
        Self { url, shared }
    }

    /// Sets the behaviour from now on.
    pub fn set(&self, network: Network) {
        self.shared.network.store(network as u8, Ordering::SeqCst);
    }

    /// Cuts all connections.
    ///
    /// # Panics
    /// When one of its threads has panicked.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().expect("connections").drain(..) {
            if stream.shutdown(Shutdown::Both).is_ok() {
                self.shared.cut.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Connections cut or refused.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.shared.cut.load(Ordering::SeqCst)
    }

    /// Bytes that vanished.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Pieces that were delayed.
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.shared.delayed.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn is(&self, network: Network) -> bool {
        self.network.load(Ordering::SeqCst) == network as u8
    }

    fn connect(self: &Arc<Self>, client: TcpStream, port: u16) {
        if self.is(Network::Refuses) {
            self.cut.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let Ok(daemon) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let copies = (client.try_clone(), daemon.try_clone(), client.try_clone());
        let (Ok(client_out), Ok(daemon_out), Ok(kept)) = copies else { return };
        self.open.lock().expect("connections").push(kept);
        let (there, back) = (self.clone(), self.clone());
        std::thread::spawn(move || there.carry(client, daemon_out, false));
        std::thread::spawn(move || back.carry(daemon, client_out, true));
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, is_answer: bool) {
        let (mut bytes, mut deaf) = (vec![0; 64 << 10], false);
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            deaf |= self.is(Network::HalfOpen) || (is_answer && self.is(Network::AnswersLost));
            if deaf {
                self.lost.fetch_add(count as u64, Ordering::SeqCst);
                continue;
            }
            let piece = if self.is(Network::Slow) { 2 << 10 } else { bytes.len() };
            for part in bytes[..count].chunks(piece) {
                if self.is(Network::Slow) {
                    self.delayed.fetch_add(1, Ordering::SeqCst);
                    std::thread::park_timeout(Duration::from_millis(5));
                }
                if to.write_all(part).is_err() {
                    return;
                }
            }
        }
        // The end of the connection is passed on, unless bytes vanish.
        if !deaf {
            let _ = to.shutdown(Shutdown::Both);
        }
    }
}
