//! Streams the stored data of a job, rank by rank, so that a reader can rebuild the recording: session, stacks, the
//! state before the first event, chunks, marks, and on request samples.
//!
//! Guarantees: only a few chunks are in memory, regardless of the job's size. The export waits for the reader.

use std::sync::Arc;

use memctl_proto::convert::marks::to_wire;
use memctl_proto::convert::samples::sharing_to_wire;
use memctl_proto::item::Content;
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;
use memctl_proto::v1::{ExportPart, ItemKind};
use tokio::sync::mpsc;
use tonic::Status;

use super::timeline::{chosen, devices_of};
use crate::job_data::error::ReadError;
use crate::job_data::job::{FoundJob, find};
use crate::job_data::replay::{Go, Replay};
use crate::job_data::samples::latest;
use crate::job_data::stacks::{Batches, open};
use crate::store::{Selection, SessionRow, Store};

/// Parts that wait for the reader.
const PARTS: usize = 4;
/// Payloads read at a time.
const PAYLOADS: usize = 8;

pub(super) type Parts = mpsc::Receiver<Result<ExportPart, Status>>;
type Out = mpsc::Sender<Result<ExportPart, Status>>;

/// The reader disconnected.
struct ReaderDisconnected;

enum ExportEnd {
    Gone,
    Failed(ReadError),
}

impl From<ReadError> for ExportEnd {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

impl From<crate::store::StoreError> for ExportEnd {
    fn from(error: crate::store::StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<ReaderDisconnected> for ExportEnd {
    fn from(ReaderDisconnected: ReaderDisconnected) -> Self {
        Self::Gone
    }
}

/// What is sent beside stacks, keyframes and marks.
#[derive(Clone, Copy)]
struct Extent {
    events: bool,
    samples: bool,
}

/// Answers an export request.
pub(super) async fn export(store: Arc<dyn Store>, request: v1::ExportRequest) -> Result<Parts, ReadError> {
    let v1::ExportRequest { selection, without_events, with_samples } = request;
    let selection = selection.unwrap_or_default();
    let extent = Extent { events: !without_events, samples: with_samples };
    let found = find(&*store, &selection).await?;
    let chosen = chosen(&selection)?;
    let (out, parts) = mpsc::channel(PARTS);
    tokio::spawn(async move {
        if let Err(ExportEnd::Failed(error)) = send(&*store, &found, chosen, extent, &out).await {
            // The reader gets the error as the end of the stream. If the reader has disconnected, the error is not
            // needed.
            let _ = out.send(Err(error.into())).await;
        }
    });
    Ok(parts)
}

async fn send(
    store: &dyn Store,
    found: &FoundJob,
    chosen: Selection,
    extent: Extent,
    out: &Out,
) -> Result<(), ExportEnd> {
    let epoch_ends = store.epoch_ends(found.job.key).await?;
    let latest = latest(store, found).await?;
    for session in &found.sessions {
        for device in devices_of(found, session) {
            let start = v1::RankStart {
                rank: session.info.rank,
                device: u32::from(device),
                session: Some((&session.info).into()),
                process: found.process_name(session),
                sharing: latest
                    .get(&(session.key, device))
                    .map_or_else(Vec::new, |sample| sharing_to_wire(sample.sharing)),
            };
            say(out, Body::Start(start)).await?;
            let mut batches = Batches::of(store, session.key);
            while let Some((_, batch)) = batches.next().await? {
                say(out, Body::Stacks(batch)).await?;
            }
            let chunks = store.chunks(session.key, device, chosen).await?;
            let first = chunks.first().map_or(0, |chunk| chunk.index.first_event);
            let mut replay = Replay::before(store, session, device, &epoch_ends, first).await?;
            replay.run(first, |_, _, _| Go::On).await?;
            let time_ns = chunks.first().map_or(session.info.started_ns, |chunk| chunk.index.first_ns);
            let keyframe = replay.map().keyframe(
                memctl_model::DeviceIndex(device),
                replay.at_event(),
                time_ns,
                memctl_model::KeyframeReason::Start,
            );
            say(out, Body::Keyframe((&keyframe).into())).await?;
            marks(store, session, chosen, out).await?;
            if extent.samples {
                samples(store, (session, device), chosen, out).await?;
            }
            if extent.events {
                let seqs: Vec<u64> = chunks.iter().map(|chunk| chunk.seq).collect();
                for group in seqs.chunks(PAYLOADS) {
                    let payloads = store.payloads(session.key, group).await?;
                    if payloads.len() < group.len() {
                        let what = format!("rank {}, while it was exported,", session.info.rank);
                        return Err(ReadError::Expired { what }.into());
                    }
                    for (_, payload) in payloads {
                        say(out, Body::Chunk(payload)).await?;
                    }
                }
            }
        }
    }
    Ok(())
}

async fn marks(store: &dyn Store, session: &SessionRow, chosen: Selection, out: &Out) -> Result<(), ExportEnd> {
    let by_time = Selection { epochs: None, ..chosen };
    for row in store.items(session.key, ItemKind::Marks, None, by_time).await? {
        if let Content::Marks(mut marks) = open(session.key, &row)? {
            if let Some((first, last)) = chosen.times_ns {
                marks.retain(|mark| (first..=last).contains(&mark.time_ns));
            }
            say(out, Body::Marks(to_wire(&marks, session.info.resolution_ns))).await?;
        }
    }
    Ok(())
}

async fn samples(
    store: &dyn Store,
    (session, device): (&SessionRow, u8),
    chosen: Selection,
    out: &Out,
) -> Result<(), ExportEnd> {
    let by_time = Selection { epochs: None, ..chosen };
    for row in store.items(session.key, ItemKind::Samples, None, by_time).await? {
        if let Content::Samples(mut samples) = open(session.key, &row)? {
            let (first, last) = chosen.times_ns.unwrap_or((0, u64::MAX));
            samples.retain(|sample| sample.device.0 == device && (first..=last).contains(&sample.time_ns));
            if !samples.is_empty() {
                let batch = v1::SampleBatch { samples: samples.iter().map(Into::into).collect() };
                say(out, Body::Samples(batch)).await?;
            }
        }
    }
    Ok(())
}

async fn say(out: &Out, body: Body) -> Result<(), ReaderDisconnected> {
    out.send(Ok(ExportPart { body: Some(body) })).await.map_err(|_| ReaderDisconnected)
}

#[cfg(test)]
mod tests {
    use memctl_model::{DeviceInfo, Dropped, SessionId, SessionInfo};

    use super::*;
    use crate::store::{Append, ChunkLevels, ItemIndex, NewItem, Retention, SqliteStore};

    const CHUNKS: u64 = 40;

    /// A job of many chunks, which the test never decodes.
    async fn recorded() -> Arc<SqliteStore> {
        let store = Arc::new(SqliteStore::in_memory().await.unwrap());
        let info =
            SessionInfo { devices: vec![DeviceInfo::default()], ..SessionInfo::live(SessionId([1; 16]), "job", 1) };
        let session = store.open_session(&info, 1).await.unwrap().key;
        let chunk = |seq| NewItem {
            seq,
            kind: ItemKind::Chunk,
            payload: vec![0; 100].into(),
            unpacked_bytes: 0,
            index: ItemIndex { device: Some(0), first_event: seq - 1, count: 1, ..ItemIndex::default() },
            levels: Some(ChunkLevels::default()),
        };
        let append = Append {
            session,
            items: (1..=CHUNKS).map(chunk).collect(),
            gaps: Vec::new(),
            durable_seq: CHUNKS,
            duplicates: 0,
            heard_ns: 1,
            devices: Vec::new(),
            epoch_ends: Vec::new(),
            end: None,
            dropped: Dropped::default(),
        };
        store.append(vec![append]).await.unwrap();
        store
    }

    #[tokio::test]
    async fn samples_of_the_device_are_sent_on_request() {
        use memctl_model::{DeviceIndex, Sample};
        use memctl_proto::item::Packed;

        let store = recorded().await;
        let session = find(&*store, &v1::Selection { job: "job".into(), ..Default::default() }).await;
        let session = session.unwrap().sessions[0].key;
        let sample = |device, time_ns| Sample { device: DeviceIndex(device), time_ns, ..Sample::default() };
        let Packed { kind, payload, unpacked_bytes } = Packed::samples(&[sample(0, 5), sample(1, 6), sample(0, 70)]);
        let index = ItemIndex { first_ns: 5, last_ns: 70, ..ItemIndex::default() };
        let append = Append {
            session,
            items: vec![NewItem { seq: CHUNKS + 1, kind, payload, unpacked_bytes, index, levels: None }],
            gaps: Vec::new(),
            durable_seq: CHUNKS + 1,
            duplicates: 0,
            heard_ns: 2,
            devices: Vec::new(),
            epoch_ends: Vec::new(),
            end: None,
            dropped: Dropped::default(),
        };
        store.append(vec![append]).await.unwrap();
        let times = async |with_samples| {
            let selection = v1::Selection { job: "job".into(), until_ns: Some(60), ..v1::Selection::default() };
            let request = v1::ExportRequest { selection: Some(selection), without_events: true, with_samples };
            let mut parts = export(store.clone(), request).await.unwrap();
            let mut times = Vec::new();
            while let Some(part) = parts.recv().await {
                if let Some(Body::Samples(batch)) = part.unwrap().body {
                    times.extend(batch.samples.iter().map(|sample| (sample.device, sample.time_ns)));
                }
            }
            times
        };
        assert_eq!(times(true).await, [(0, 5)]);
        assert_eq!(times(false).await, []);
    }

    #[tokio::test]
    async fn what_retention_removes_meanwhile_is_an_error_and_not_left_out() {
        let store = recorded().await;
        let selection = Some(v1::Selection { job: "job".into(), ..v1::Selection::default() });
        let request = v1::ExportRequest { selection, ..v1::ExportRequest::default() };
        let mut parts = export(store.clone(), request).await.unwrap();
        // The rows of chunks are read before the first payload. A slow reader leaves most payloads unread.
        while !matches!(parts.recv().await.unwrap().unwrap().body, Some(Body::Chunk(_))) {}
        store.expire(Retention { bytes: Some(1), ..Retention::default() }, 2).await.unwrap();
        let mut last = None;
        while let Some(part) = parts.recv().await {
            last = Some(part);
        }
        let status = last.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("retention removed it"), "{status}");
    }
}
