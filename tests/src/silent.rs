//! A TLS server that never responds on its first connections, and forwards later ones to a daemon.
//!
//! Guarantees: silent connections are counted, so that a test can assert that they happened.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::certificates::Identity;

/// See the module.
pub struct Silent {
    /// Where clients connect to.
    pub url: String,
    kept: Arc<AtomicUsize>,
}

impl Silent {
    /// A server with this identity that is silent on its first `connections` connections; later ones are forwarded to a
    /// port.
    ///
    /// # Panics
    /// When there is no port, or the files hold no identity.
    #[must_use]
    pub fn first(connections: usize, identity: &Identity, port: u16) -> Self {
        let chain = vec![CertificateDer::from_pem_file(&identity.cert).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions");
        let mut config = config.with_no_client_auth().with_single_cert(chain, key).expect("an identity");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let kept = Arc::new(AtomicUsize::new(0));
        let own = kept.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if own.load(Ordering::SeqCst) < connections {
                    own.fetch_add(1, Ordering::SeqCst);
                    let connection = ServerConnection::new(config.clone()).expect("a connection");
                    std::thread::spawn(move || hear(StreamOwned::new(connection, client)));
                } else if let Ok(daemon) = TcpStream::connect(("127.0.0.1", port)) {
                    hand_on(&client, &daemon);
                    hand_on(&daemon, &client);
                }
            }
        });
        Self { url, kept }
    }

    /// Connections that got no answer.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::SeqCst)
    }
}

/// Reads to the end, including the TLS handshake.
fn hear(mut stream: StreamOwned<ServerConnection, TcpStream>) {
    while stream.read(&mut [0; 4_096]).is_ok_and(|count| count > 0) {}
}

fn hand_on(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().expect("a stream"), to.try_clone().expect("a stream"));
    std::thread::spawn(move || {
        // When one side ends, so does the other.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}
