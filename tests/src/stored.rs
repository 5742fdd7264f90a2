//! What a daemon has stored, read back through its export.

use memctl_answers::report::Report;
use memctl_answers::wire::from_wire;
use memctl_model::{Event, SessionId, SessionInfo};
use memctl_proto::chunk::Decoder;
use memctl_proto::v1::export_part::Body;
use memctl_proto::v1::query_client::QueryClient;
use memctl_proto::v1::{ExportRequest, ReportRequest, Selection};
use tonic::transport::Channel;

/// A job's selection.
#[must_use]
pub fn job(name: &str) -> Option<Selection> {
    Some(Selection { job: name.into(), ..Selection::default() })
}

/// The report of a job.
///
/// # Panics
/// When there is none.
pub async fn report(channel: Channel, name: &str) -> Report {
    let request = ReportRequest { selection: job(name) };
    let response = QueryClient::new(channel).get_report(request).await.expect("a report");
    from_wire(response.get_ref()).expect("a report")
}

/// One device of a session as stored.
pub struct StoredDevice {
    /// Its session.
    pub session: SessionId,
    /// Its rank.
    pub rank: u32,
    /// Its events, in order.
    pub events: Vec<Event>,
    /// Number of the first event of each chunk, and its number of events.
    pub chunks: Vec<(u64, u64)>,
}

/// Everything stored of a job.
///
/// # Panics
/// When it cannot be read.
pub async fn events(channel: Channel, name: &str) -> Vec<StoredDevice> {
    let mut client = QueryClient::new(channel).max_decoding_message_size(64 << 20);
    let request = ExportRequest { selection: job(name), ..Default::default() };
    let mut parts = client.export(request).await.expect("an export").into_inner();
    let mut decoder = Decoder::new().expect("a decoder");
    let (mut stored, mut events): (Vec<StoredDevice>, Vec<Event>) = (Vec::new(), Vec::new());
    while let Some(part) = parts.message().await.expect("the export goes on") {
        match part.body.expect("a part") {
            Body::Start(start) => {
                let info = SessionInfo::try_from(start.session.expect("a session")).expect("a session");
                stored.push(StoredDevice { session: info.id, rank: info.rank, events: Vec::new(), chunks: Vec::new() });
            }
            Body::Chunk(bytes) => {
                let last = stored.last_mut().expect("a start came first");
                let header = decoder.decode(&bytes, &mut events).expect("a stored chunk decodes");
                last.events.extend_from_slice(&events);
                last.chunks.push((header.first_event, u64::from(header.events)));
            }
            Body::Stacks(_) | Body::Keyframe(_) | Body::Marks(_) | Body::Samples(_) => {}
        }
    }
    stored
}

/// Asserts that the stored events equal the produced ones.
///
/// # Panics
/// When an event or the number of events differs.
pub fn assert_same(stored: &[Event], produced: &[Event]) {
    if let Some(at) = stored.iter().zip(produced).position(|(stored, produced)| stored != produced) {
        let around = at.saturating_sub(2)..(at + 3).min(stored.len()).min(produced.len());
        panic!("event {at} differs:\nstored   {:#?}\nproduced {:#?}", &stored[around.clone()], &produced[around]);
    }
    assert_eq!(stored.len(), produced.len(), "as many events are stored as were produced");
}
