//! The page's data of recordings that this process keeps in memory, without a port and without a daemon.
//!
//! Guarantees: an address has the same answer as under `/api/v1/` of a daemon that has imported the same files, except
//! for the time of the import and the stored bytes. A session is stored as the daemon stores the items of an agent.
//! Refuses: everything that changes something, and everything about alerts and callers.

use std::sync::Arc;

use memctl_answers::format::json;
use memctl_model::{Dropped, SessionInfo};
use memctl_proto::item::Packed;
use memctl_proto::v1;
use serde::Serialize;
use tonic::Status;

use super::job_views::{JobViews, tile};
use super::params::Params;
use super::trouble::Trouble;
use crate::clock::now_ns;
use crate::ingest::prepare::{Prepared, Scale, prepare};
use crate::query::StoreReader;
use crate::store::{Append, OpenedSession, Opening, RecordingStore, Store, Tenant, Which};
use crate::url_text;

/// Recordings in memory, and the answers about them.
pub struct Recordings {
    store: Arc<dyn Store>,
    reader: StoreReader,
}

/// The answer to an address.
#[derive(Debug)]
pub struct PageAnswer {
    /// The status as over HTTP.
    pub status: u16,
    /// The media type.
    pub kind: &'static str,
    /// The content.
    pub content: Vec<u8>,
}

/// A session whose items are being stored.
pub struct Storing<'r> {
    store: &'r dyn Store,
    opened: OpenedSession,
    devices: Vec<u8>,
    last_seq: u64,
}

impl Default for Recordings {
    fn default() -> Self {
        let store: Arc<dyn Store> = Arc::new(RecordingStore::default());
        Self { reader: StoreReader::new(store.clone()), store }
    }
}

impl Recordings {
    /// Begins to store the session of a recording.
    ///
    /// # Errors
    /// The session cannot be stored.
    pub async fn begin(&self, info: &SessionInfo) -> Result<Storing<'_>, String> {
        let opening = Opening { tenant: &Tenant::default(), info, owner: "", secret: None, now_ns: now_ns() };
        let opened = self.store.open(&opening).await.map_err(|error| error.to_string())?;
        let devices = info.devices.iter().map(|device| device.index.0).collect();
        let last_seq = opened.durable_seq;
        Ok(Storing { store: &*self.store, opened, devices, last_seq })
    }

    /// Removes what an import has stored of a job. Nothing stored is no error.
    ///
    /// # Errors
    /// The store fails.
    pub async fn forget(&self, job: &str, launcher: u64) -> Result<(), String> {
        let which = Which::OfLauncher(job.to_owned(), launcher);
        while let Some(row) = self.store.job(&which, None).await.map_err(|error| error.to_string())? {
            self.store.delete_job(row.key).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// The answer to an address below `/api/v1/`, with its query.
    pub async fn get(&self, address: &str) -> PageAnswer {
        self.answer(address).await.unwrap_or_else(|trouble| {
            let (status, text) = trouble.status_and_text();
            PageAnswer { status: status.as_u16(), kind: "text/plain; charset=utf-8", content: text.into_bytes() }
        })
    }

    async fn answer(&self, address: &str) -> Result<PageAnswer, Trouble> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let params = Params::decode(query)?;
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            ["jobs"] => {
                params.takes(&["limit"])?;
                let limit = params.number("limit")?.unwrap_or(0);
                let request = v1::ListJobsRequest { limit, judge: true, ..v1::ListJobsRequest::default() };
                json_of(&self.reader.jobs(request).await?)
            }
            ["jobs", job, "tiles"] => {
                let question = tile(&params, &decoded(job)?)?;
                let tile = self.reader.answer(question).await?;
                let content = tile.bytes().map_err(|error| Status::internal(error.to_string()))?;
                Ok(PageAnswer { status: 200, kind: "application/octet-stream", content })
            }
            ["jobs", job, view] => {
                let selection = params.selection(&decoded(job)?)?;
                let views = JobViews { from: &self.reader, selection, params: &params };
                Ok(PageAnswer { status: 200, kind: "application/json", content: views.answer(view).await? })
            }
            _ => Err(Status::not_found("a page without a daemon has only recordings: jobs and their views").into()),
        }
    }
}

fn decoded(part: &str) -> Result<String, Trouble> {
    let wrong = || format!("{} is not encoded as an address has it (%XX, UTF-8)", part.escape_debug());
    Ok(url_text::decoded(part).ok_or_else(wrong)?)
}

fn json_of(answer: &impl Serialize) -> Result<PageAnswer, Trouble> {
    let mut content = Vec::new();
    json::line(&mut content, answer).map_err(|error| Status::internal(error.to_string()))?;
    Ok(PageAnswer { status: 200, kind: "application/json", content })
}

impl Storing<'_> {
    /// Stores the session's next items, in their order.
    ///
    /// # Errors
    /// An item cannot be stored.
    pub async fn store(&mut self, items: impl IntoIterator<Item = Packed>) -> Result<(), String> {
        let mut append = Append {
            session: self.opened.key,
            items: Vec::new(),
            gaps: Vec::new(),
            durable_seq: self.last_seq,
            duplicates: 0,
            heard_ns: now_ns(),
            devices: Vec::new(),
            epoch_ends: Vec::new(),
            end: None,
            dropped: Dropped::default(),
        };
        for packed in items {
            append.durable_seq += 1;
            let item = packed.numbered(append.durable_seq);
            let prepared = prepare(self.opened.key, &self.devices, &item, &Scale::default());
            let Prepared { item, devices, epoch_ends, end, dropped } = prepared.map_err(|error| error.to_string())?;
            append.items.push(item);
            append.devices.extend(devices);
            append.epoch_ends.extend(epoch_ends);
            append.end = end.or(append.end.take());
            append.dropped = if dropped.total() > append.dropped.total() { dropped } else { append.dropped };
        }
        if append.items.is_empty() {
            return Ok(());
        }
        self.last_seq = append.durable_seq;
        self.store.append(vec![append]).await.map_err(|error| error.to_string())
    }
}
