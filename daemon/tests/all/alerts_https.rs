//! Tests of HTTPS. A receiver with a certificate of its configured authority gets alerts. A receiver whose certificate
//! no authority signed does not. A receiver that requires a client certificate gets the daemon's.

use std::sync::Arc;
use std::time::Duration;

use memctl_daemon::alerts::{Alerting, Notifying, Pace, Rules};
use memctl_daemon::store::SqliteStore;
use memctl_model::Backoff;
use memctl_proto::v1;
use memctl_proto::v1::alerts_server::Alerts as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A server that answers everything with 200; returns its address and certificate. `clients` is the authority that must
/// have signed clients' certificates.
async fn server(clients: Option<&CertificateDer<'static>>) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).unwrap();
            let provider = Arc::new(ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            config.with_client_cert_verifier(verifier)
        }
    };
    let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust the server disconnects.
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut buffer = vec![0; 1 << 16];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
                let _ = stream.shutdown().await;
            });
        }
    });
    (url, made.cert.pem())
}

#[tokio::test]
async fn a_certificate_has_to_be_vouched_for() {
    let (url, certificate) = server(None).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, certificate).unwrap();
    let (other, _) = (rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem(), ());
    let foreign = folder.path().join("other.pem");
    std::fs::write(&foreign, other).unwrap();
    let receiver = |name: &str, ca: &std::path::Path| {
        format!(
            "[[receiver]]\nname = \"{name}\"\ntype = \"webhook\"\nurl = \"{url}/x\"\nca_file = \"{}\"\n",
            ca.display()
        )
    };
    let rules = Rules::parse(&(receiver("known", &file) + &receiver("unknown", &foreign)), "r.toml").unwrap();
    let pace = Pace { attempts: 1, pauses: Backoff { first: Duration::ZERO, most: Duration::ZERO } };
    let alerting = Alerting::start(Arc::new(SqliteStore::in_memory().await.unwrap()), rules, pace, Notifying::Always);
    let mut request = tonic::Request::new(v1::TestReceiversRequest { receiver: None });
    request.extensions_mut().insert(memctl_daemon::access::Caller::owner("a test", "here"));
    let answers = alerting.alerts.test_receivers(request).await.unwrap().into_inner();
    let answers = memctl_answers::wire::from_wire::<memctl_answers::alerts::Answers>(&answers).unwrap().receivers;
    let said: Vec<(&str, bool)> = answers.iter().map(|it| (it.receiver.as_str(), it.delivered)).collect();
    assert_eq!(said, [("log", true), ("known", true), ("unknown", false)], "{answers:?}");
    assert!(answers[2].answer.contains("certificate"), "{:?}", answers[2].answer);
    alerting.finish().await;
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_certificate_is_shown_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    // Creates an authority, and a certificate of the daemon that it signed.
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(params, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["memctl.example.org".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let cert = write("client.pem", params.signed_by(&key, &issuer).unwrap().pem());
    let key_file = write("client.key", key.serialize_pem());
    let (url, server_certificate) = server(Some(authority.der())).await;
    let ca = write("ca.pem", server_certificate);
    let receiver = |name: &str, rest: &str| {
        format!("[[receiver]]\nname = \"{name}\"\ntype = \"webhook\"\nurl = \"{url}/x\"\nca_file = \"{ca}\"\n{rest}")
    };
    let identity = format!("cert_file = \"{cert}\"\nkey_file = \"{key_file}\"\n");
    let rules = Rules::parse(&(receiver("shown", &identity) + &receiver("hidden", "")), "r.toml").unwrap();
    let pace = Pace { attempts: 1, pauses: Backoff { first: Duration::ZERO, most: Duration::ZERO } };
    let alerting = Alerting::start(Arc::new(SqliteStore::in_memory().await.unwrap()), rules, pace, Notifying::Always);
    let mut request = tonic::Request::new(v1::TestReceiversRequest { receiver: None });
    request.extensions_mut().insert(memctl_daemon::access::Caller::owner("a test", "here"));
    let answers = alerting.alerts.test_receivers(request).await.unwrap().into_inner();
    let answers = memctl_answers::wire::from_wire::<memctl_answers::alerts::Answers>(&answers).unwrap().receivers;
    let said: Vec<(&str, bool)> = answers.iter().map(|it| (it.receiver.as_str(), it.delivered)).collect();
    assert_eq!(said, [("log", true), ("shown", true), ("hidden", false)], "{answers:?}");
    alerting.finish().await;
    let half = Rules::parse(&receiver("half", &format!("cert_file = \"{cert}\"\n")), "r.toml").unwrap_err();
    assert!(half.to_string().contains("needs key_file as well"), "{half}");
}
