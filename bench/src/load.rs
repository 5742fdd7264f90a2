//! A daemon under load: dozens of the most expensive queries at once over a job of hundreds of ranks, while agents
//! stream.
//!
//! The benchmark measures the daemon's peak memory, the time until an item is durable, and the time until a query is
//! answered. A client that is refused a slot sends its query again, as users of the command line would; the wait
//! counts.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use memctl_daemon::store::{SqliteStore, Store as _};
use memctl_model::{Boundary, Counters, DeviceIndex, Event, Frame, Peaks, SessionEnd, SiteRow, SiteTable, StackId};
use memctl_proto::item::Packed;
use memctl_proto::v1::agent_message::Body as AgentBody;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::ingest_client::IngestClient;
use memctl_proto::v1::query_client::QueryClient;
use memctl_proto::v1::{
    AgentMessage, Hello, Item, LedgerRequest, ReportRequest, Selection, SitesRequest, TimelineRequest, sites_request,
};
use memctl_proto::{PROTOCOL_VERSION, StackSender};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

use crate::chunks::Chunks;
use crate::ingest::{Daemon, session};
use crate::query::appended;

/// Sites that a rank has live.
const SITES: u32 = 4;
/// Tables of an item, as an agent batches them.
const TABLES: usize = 64;
/// Steps of an epoch.
const EPOCH: u64 = 1_000;
/// The interval between two chunks of an agent: 65,536 events each, 330,000 per second.
const CHUNK_EVERY: Duration = Duration::from_millis(200);
/// Chunks per agent, enough for two minutes.
const CHUNKS: usize = 600;
/// The pause before a client that found no slot sends its query again.
const AGAIN: Duration = Duration::from_millis(200);

/// The result.
#[derive(Debug, Default)]
pub struct Load {
    /// Bytes of the store.
    pub store_bytes: u64,
    /// Highest resident bytes of the daemon.
    pub peak_bytes: u64,
    /// Milliseconds until an item was durable, sorted.
    pub durable_ms: Vec<f64>,
    /// Milliseconds until a question was answered, sorted.
    pub answered_ms: Vec<f64>,
    /// Queries that found no slot and were sent again.
    pub refused: u64,
    /// The largest answer, in bytes.
    pub answer_bytes: u64,
}

/// Runs `askers` concurrent clients with `rounds` queries each, over a job of `ranks` ranks and `steps` steps, while
/// `agents` agents stream.
///
/// # Errors
/// Any step fails.
pub async fn run(
    memctl: &Path,
    events: &[Event],
    (ranks, steps): (u32, u64),
    (askers, rounds): (u32, u32),
    agents: u32,
) -> Result<Load, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    fill(folder.path(), ranks, steps).await?;
    let store_bytes = std::fs::metadata(folder.path().join("memctl.db"))?.len();
    let daemon = Daemon::start_on(memctl, folder.path(), &[])?;
    let (over, refused, largest) = (Arc::new(AtomicBool::new(false)), Arc::default(), Arc::default());
    let mut streaming = Vec::new();
    let mut chunks = Chunks::new(events.to_vec(), 100)?;
    let made: Result<Vec<Bytes>, Box<dyn Error>> = (0..CHUNKS).map(|_| Ok(chunks.next_chunk()?.into())).collect();
    let made = made?;
    for rank in 0..agents {
        streaming.push(tokio::spawn(stream(daemon.url().to_owned(), rank, made.clone(), over.clone())));
    }
    let mut asking = Vec::new();
    for asker in 0..askers {
        let channel = Channel::from_shared(daemon.url().to_owned())?.connect().await?;
        asking.push(tokio::spawn(ask(channel, asker, rounds, Arc::clone(&refused), Arc::clone(&largest))));
    }
    let mut load = Load { store_bytes, ..Load::default() };
    for task in asking {
        load.answered_ms.extend(task.await?.map_err(|error| error.to_string())?);
    }
    // Relaxed: only a hint; nothing else is synchronized by it.
    over.store(true, Ordering::Relaxed);
    for task in streaming {
        load.durable_ms.extend(task.await?.map_err(|error| error.to_string())?);
    }
    load.answered_ms.sort_by(f64::total_cmp);
    load.durable_ms.sort_by(f64::total_cmp);
    load.refused = AtomicU64::load(&refused, Ordering::Relaxed);
    load.answer_bytes = AtomicU64::load(&largest, Ordering::Relaxed);
    load.peak_bytes = daemon.peak_bytes().unwrap_or(0);
    Ok(load)
}

type Failed = Box<dyn Error + Send + Sync>;

/// Sends the most expensive queries in turn, each about the whole job.
async fn ask(
    channel: Channel,
    asker: u32,
    rounds: u32,
    refused: Arc<AtomicU64>,
    largest: Arc<AtomicU64>,
) -> Result<Vec<f64>, Failed> {
    let mut client = QueryClient::new(channel).max_decoding_message_size(256 << 20);
    let selection = || Some(Selection { job: "wide".into(), ..Selection::default() });
    let mut took = Vec::new();
    for round in 0..rounds {
        let began = Instant::now();
        loop {
            let answer = match (asker + round) % 4 {
                0 => {
                    let request = TimelineRequest { selection: selection(), points: 10_000 };
                    client.get_timeline(request).await.map(|it| prost::Message::encoded_len(it.get_ref()))
                }
                1 => {
                    let request = ReportRequest { selection: selection() };
                    client.get_report(request).await.map(|it| prost::Message::encoded_len(it.get_ref()))
                }
                2 => {
                    let moment = Some(sites_request::Moment::Peak(true));
                    let request = SitesRequest { selection: selection(), moment };
                    client.get_sites(request).await.map(|it| prost::Message::encoded_len(it.get_ref()))
                }
                _ => {
                    let request = LedgerRequest { selection: selection(), ..LedgerRequest::default() };
                    client.get_ledger(request).await.map(|it| prost::Message::encoded_len(it.get_ref()))
                }
            };
            match answer.or_else(|status| match status.code() {
                // Data that these recordings do not contain is a valid response, too.
                Code::FailedPrecondition | Code::NotFound => Ok(0),
                _ => Err(status),
            }) {
                Ok(bytes) => {
                    largest.fetch_max(bytes as u64, Ordering::Relaxed);
                    break;
                }
                Err(status) if matches!(status.code(), Code::ResourceExhausted | Code::Unavailable) => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(AGAIN).await;
                }
                Err(status) => return Err(status.into()),
            }
        }
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Streams a chunk at a time, evenly, and times each until it is durable.
async fn stream(url: String, rank: u32, chunks: Vec<Bytes>, over: Arc<AtomicBool>) -> Result<Vec<f64>, Failed> {
    let channel = Channel::from_shared(url)?.connect().await?;
    let mut client = IngestClient::new(channel);
    let (outbound, requests) = mpsc::channel(8);
    let session = Some((&session("streams", rank)).into());
    let hello = Hello { version: PROTOCOL_VERSION, session, secret: Vec::new(), ..Hello::default() };
    outbound.send(AgentMessage { body: Some(AgentBody::Hello(hello)) }).await?;
    let mut inbound = client.push(ReceiverStream::new(requests)).await?.into_inner();
    let mut took = Vec::new();
    for (seq, chunk) in (1..).zip(chunks) {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        let item = Packed::chunk(chunk).numbered(seq);
        outbound.send(AgentMessage { body: Some(AgentBody::Item(item)) }).await?;
        loop {
            match inbound.message().await?.and_then(|message| message.body) {
                Some(Heard::Ack(ack)) if ack.durable_seq >= seq => break,
                Some(Heard::Refused(refused)) => return Err(refused.message.into()),
                Some(_) => {}
                None => return Err("the daemon closed the stream".into()),
            }
        }
        took.push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(CHUNK_EVERY.saturating_sub(began.elapsed())).await;
    }
    Ok(took)
}

/// Fills `folder` with a job of this many ranks and steps; all ranks have the same levels.
async fn fill(folder: &Path, ranks: u32, steps: u64) -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::open(&folder.join("memctl.db"), "bench").await?;
    let items = items(steps)?;
    for rank in 0..ranks {
        let opened = store.open_session(&session("wide", rank), 1).await?;
        for part in items.chunks(256) {
            store.append(vec![appended(opened.key, part)?]).await?;
        }
    }
    Ok(store.close().await?)
}

/// The numbered items of a rank.
fn items(steps: u64) -> Result<Vec<Item>, Box<dyn Error>> {
    let mut stacks = StackSender::default();
    for line in 1..=SITES {
        let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
        stacks.add(&[frame("forward", "/home/user/model.py", line), frame("train", "/home/user/train.py", 7)]);
    }
    let mut packed = vec![Packed::stacks(&stacks.take().ok_or("no stacks")?)];
    let mut tables = Vec::new();
    for step in 0..steps {
        let of_step = table(step, Boundary::StepEnd);
        let is_last = (step + 1) % EPOCH == 0;
        tables.push(of_step);
        if is_last {
            tables.push(table(step, Boundary::EpochEnd));
        }
    }
    packed.extend(tables.chunks(TABLES).map(Packed::site_tables));
    packed.push(Packed::end(&SessionEnd { time_ns: 1 << 50, ..SessionEnd::default() }));
    Ok((1..).zip(packed).map(|(seq, packed)| packed.numbered(seq)).collect())
}

fn table(step: u64, boundary: Boundary) -> SiteTable {
    let row = |stack: u32| {
        let grown = if stack == 2 { step / 50 } else { 0 };
        let bytes = (u64::from(stack) << 24) + (grown << 16);
        SiteRow { stack: StackId(stack), birth_epoch: 0, birth_phase: None, blocks: 1 + grown, bytes }
    };
    let rows: Vec<SiteRow> = (1..=SITES).map(row).collect();
    let allocated_bytes = rows.iter().map(|row| row.bytes).sum();
    let reserved_bytes = 8 << 30;
    SiteTable {
        device: DeviceIndex(0),
        boundary,
        epoch: (step / EPOCH) as u32,
        step,
        time_ns: (step + 1) * 50_000_000,
        at_event: (step + 1) * 900,
        exact: true,
        counters: Counters { allocated_bytes, reserved_bytes, ..Counters::default() },
        peaks: Peaks { allocated_bytes: 4 << 30, reserved_bytes },
        peaks_within: Peaks { allocated_bytes: (4 << 30) - (step % 97) * 4_096, reserved_bytes },
        found: false,
        private_pools: Vec::new(),
        rows,
    }
}
