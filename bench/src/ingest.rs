//! Durable ingest: encoded chunks through gRPC on a loopback port into SQLite (synchronous=FULL), until the last one is
//! acknowledged.
//!
//! The streams are prepared in advance. The benchmark measures the daemon (the real binary, in a separate process) and
//! the transport, with the client on the same two cores.

use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use memctl_agent::reach::{DaemonAddress, Tls};
use memctl_model::{DeviceInfo, Event, SessionId, SessionInfo};
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::item::Packed;
use memctl_proto::v1::agent_message::Body as AgentBody;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::ingest_client::IngestClient;
use memctl_proto::v1::{AgentMessage, Hello};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::chunks::Chunks;

/// The transport between the streams and the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// HTTP/2 without TLS.
    Plain,
    /// TLS 1.3; the daemon has a certificate.
    Tls,
    /// Both sides have a certificate.
    MutualTls,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Streams at once.
    pub streams: u32,
    /// Events.
    pub events: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Seconds from the first hello to the last acknowledgement.
    pub seconds: f64,
    /// Peak resident bytes of the daemon.
    pub daemon_peak_bytes: u64,
}

/// The session of a stream.
#[must_use]
pub fn session(job: &str, rank: u32) -> SessionInfo {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&rank.to_le_bytes());
    for (byte, letter) in id[4..].iter_mut().zip(job.bytes()) {
        *byte = letter;
    }
    SessionInfo { rank, devices: vec![DeviceInfo::default()], ..SessionInfo::live(SessionId(id), job, 1) }
}

/// A daemon in a separate process, on a SQLite store; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    url: String,
    _folder: Option<TempDir>,
}

impl Daemon {
    /// Starts a daemon with these environment variables, on a fresh store.
    pub(crate) fn start_with(memctl: &Path, settings: &[(&str, &str)]) -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let mut daemon = Self::start_on(memctl, folder.path(), settings)?;
        daemon._folder = Some(folder);
        Ok(daemon)
    }

    /// The same on the store of a folder.
    pub(crate) fn start_on(memctl: &Path, folder: &Path, settings: &[(&str, &str)]) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(memctl)
            .env("MEMCTL_SERVICE", "off")
            .args(["daemon", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder)
            .env("MEMCTL_LOG", std::env::var("MEMCTL_LOG").unwrap_or_else(|_| "error".into()))
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let url = line.split_whitespace().find(|word| word.starts_with("http")).ok_or("the daemon did not come up")?;
        let url = url.to_owned();
        Ok(Self { child, url, _folder: None })
    }

    /// Its address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A benchmark's daemon has no data to keep.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority, and a certificate with its key for the daemon and for clients.
fn write_certificates(folder: &Path) -> Result<(), Box<dyn Error>> {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(folder.join("ca"), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    for (name, usage) in
        [("daemon", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        std::fs::write(folder.join(format!("{name}.cert")), params.signed_by(&key, &issuer)?.pem())?;
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

/// Streams `chunks_per_stream` chunks over each of `streams` streams into a fresh SQLite store.
///
/// # Errors
/// Any step fails.
pub async fn run(
    memctl: &Path,
    events: &[Event],
    streams: u32,
    chunks_per_stream: usize,
    way: Way,
) -> Result<Run, Box<dyn Error>> {
    let mut prepared: Vec<Vec<Bytes>> = Vec::new();
    for _ in 0..streams {
        let mut chunks = Chunks::new(events.to_vec(), 100)?;
        let encoded: Result<Vec<Bytes>, Box<dyn Error>> =
            (0..chunks_per_stream).map(|_| Ok(chunks.next_chunk()?.into())).collect();
        prepared.push(encoded?);
    }
    let bytes = prepared.iter().flatten().map(|chunk| chunk.len() as u64).sum();
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    write_certificates(folder.path())?;
    let (cert, key, ca) = (file("daemon.cert"), file("daemon.key"), file("ca"));
    let settings =
        [("MEMCTL_TLS_CERT", cert.as_str()), ("MEMCTL_TLS_KEY", key.as_str()), ("MEMCTL_TLS_CLIENT_CA", ca.as_str())];
    let settings = match way {
        Way::Plain => &settings[..0],
        Way::Tls => &settings[..2],
        Way::MutualTls => &settings[..],
    };
    let daemon = Daemon::start_with(memctl, settings)?;
    let of = |name: &str, has: bool| has.then(|| file(name).into());
    let (tls, mutual) = (way != Way::Plain, way == Way::MutualTls);
    let tls = Tls { ca: of("ca", tls), cert: of("client.cert", mutual), key: of("client.key", mutual) };
    let address = DaemonAddress { url: daemon.url.clone(), tls, service: None };
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for (rank, chunks) in (0..streams).zip(prepared) {
        tasks.push(tokio::spawn(stream(address.clone(), rank, chunks.into_iter().map(Packed::chunk).collect())));
    }
    for task in tasks {
        task.await?.map_err(|error| error.to_string())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let events = u64::from(streams) * chunks_per_stream as u64 * 65_536;
    Ok(Run { streams, events, bytes, seconds, daemon_peak_bytes: daemon.peak_bytes().unwrap_or(0) })
}

/// Sends everything and waits until the last item is durable.
pub(crate) async fn stream(
    address: DaemonAddress,
    rank: u32,
    items: Vec<Packed>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let channel = address.connect(|endpoint| endpoint).await?;
    let mut client = IngestClient::new(channel);
    let (outbound, requests) = mpsc::channel(8);
    let session = Some((&session("ingest", rank)).into());
    let hello = Hello { version: PROTOCOL_VERSION, session, secret: Vec::new(), ..Hello::default() };
    outbound.send(AgentMessage { body: Some(AgentBody::Hello(hello)) }).await?;
    let mut inbound = client.push(ReceiverStream::new(requests)).await?.into_inner();
    let last = items.len() as u64;
    let sending = tokio::spawn(async move {
        for (seq, item) in (1..).zip(items) {
            let item = item.numbered(seq);
            if outbound.send(AgentMessage { body: Some(AgentBody::Item(item)) }).await.is_err() {
                break;
            }
        }
        outbound
    });
    while let Some(message) = inbound.message().await? {
        match message.body {
            Some(Heard::Ack(ack)) if ack.durable_seq >= last => {
                drop(sending.await?);
                return Ok(());
            }
            Some(Heard::Refused(refused)) => return Err(refused.message.into()),
            _ => {}
        }
    }
    Err("the daemon closed the stream".into())
}
