//! The only writer of ingest. It collects the prepared items of all sessions and commits them together.
//!
//! Guarantees: an item is acknowledged only after its transaction has committed. A session's items are stored in order.
//! If a commit fails, none of its items are acknowledged, and the streams concerned end with the store's error. A panic
//! here counts as a failed commit, and the next batch continues.
//!
//! Group commit needs no timer: while one transaction waits for the disk, the next one collects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memctl_model::Dropped;
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;

use super::counts::Counts;
use super::prepare::Prepared;
use crate::clock::steady;
use crate::store::{Append, Gap, SessionKey, Store, StoreError};
use crate::supervise::Tasks;

/// Limit of the bytes of one transaction. It is high enough to amortize an fsync, and low enough to commit in tens of
/// milliseconds.
const COMMIT_BYTES: usize = 8 << 20;
/// Limit of the items of one transaction.
const COMMIT_ITEMS: usize = 2_048;
/// The most items that wait between streams and committer. The streams' permits bound their bytes.
const QUEUE_ITEMS: usize = 4_096;

/// Up to which item a session is durable, or why it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durable {
    /// All items up to this one are durable.
    Upto(u64),
    /// A commit failed, with the store's error.
    Failed(String),
}

/// One item that arrived in a session.
pub struct Work {
    /// The session.
    pub session: SessionKey,
    /// The item; `None` for a duplicate.
    pub prepared: Option<Box<Prepared>>,
    /// Items missing before it.
    pub gap: Option<Gap>,
    /// The session's highest number, including this item.
    pub seq: u64,
    /// The channel that reports up to which item the session is durable.
    pub durable: Arc<watch::Sender<Durable>>,
    /// This item's share of the session's and the daemon's budget, which is released after the commit.
    pub permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// A handle of the committer.
#[derive(Clone)]
pub struct Committer {
    queue: mpsc::Sender<Work>,
    counts: Arc<Counts>,
}

impl Committer {
    /// Starts the task. It ends when all submitted items are stored and either every handle was dropped or `closing` is
    /// set. Waiting items survive a panic.
    pub fn start(
        store: Arc<dyn Store>,
        tasks: &Tasks,
        closing: watch::Receiver<bool>,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (queue, works) = mpsc::channel(QUEUE_ITEMS);
        let works = Arc::new(Mutex::new(works));
        let counts = Arc::<Counts>::default();
        let own = counts.clone();
        let running = move || run(store.clone(), works.clone(), closing.clone(), own.clone());
        let task = tasks.supervise("committer", running);
        (Self { queue, counts }, task)
    }

    /// The counts of the items stored so far.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Submits an item; waits while the queue is full. Returns `false` if the committer has ended.
    pub async fn submit(&self, work: Work) -> bool {
        self.queue.send(work).await.is_ok()
    }
}

async fn run(
    store: Arc<dyn Store>,
    works: Arc<Mutex<mpsc::Receiver<Work>>>,
    mut closing: watch::Receiver<bool>,
    counts: Arc<Counts>,
) {
    let mut works = works.lock().await;
    loop {
        let first = tokio::select! {
            biased;
            first = works.recv() => Some(first),
            // The borrow of the receiver must end here.
            () = async { _ = closing.wait_for(|closing| *closing).await } => None,
        };
        let first = match first {
            Some(first) => first,
            None => {
                // Items that were already submitted are still received; further submissions fail.
                works.close();
                works.recv().await
            }
        };
        let Some(first) = first else { return };
        let mut batch = vec![first];
        let mut bytes = size(&batch[0]);
        while bytes < COMMIT_BYTES && batch.len() < COMMIT_ITEMS {
            let Ok(work) = works.try_recv() else { break };
            bytes += size(&work);
            batch.push(work);
        }
        let items = batch.len();
        let mut owed = Owed(batch.iter().map(|work| work.durable.clone()).collect());
        let begun = Instant::now();
        commit(&*store, batch, &counts).await;
        counts.commits.observe(begun.elapsed());
        owed.0.clear();
        tracing::debug!(items, bytes, "committed");
    }
}

fn size(work: &Work) -> usize {
    work.prepared.as_ref().map_or(0, |prepared| prepared.item.payload.len())
}

/// Streams that wait for a transaction. If the committer panics within it, it is unknown which items are durable. The
/// streams then end, and they resume from the position that the store reports.
struct Owed(Vec<Arc<watch::Sender<Durable>>>);

impl Drop for Owed {
    fn drop(&mut self) {
        for durable in &self.0 {
            durable.send_replace(Durable::Failed("the daemon's committer failed; retry later".to_owned()));
        }
    }
}

/// A session's share of one transaction.
struct Part {
    append: Append,
    durable: Arc<watch::Sender<Durable>>,
}

async fn commit(store: &dyn Store, batch: Vec<Work>, counts: &Counts) {
    let mut parts: BTreeMap<SessionKey, Part> = BTreeMap::new();
    // Permits are held until the commit has ended, because they bound the memory of waiting items.
    let mut held = Vec::with_capacity(batch.len());
    for work in batch {
        let Work { session, prepared, gap, seq, durable, permits } = work;
        held.push(permits);
        if matches!(*durable.borrow(), Durable::Failed(_)) {
            // An earlier transaction of this stream failed, so later items must not be stored after the gap.
            continue;
        }
        let part = parts.entry(session).or_insert_with(|| Part { append: empty(session), durable });
        add(&mut part.append, prepared.map(|prepared| *prepared), gap, seq);
    }
    let appends: Vec<Append> = parts.values().map(|part| part.append.clone()).collect();
    // Only a transaction with items shows that the store takes writes.
    let has_items = appends.iter().any(|append| !append.items.is_empty());
    match store.append(appends).await {
        Ok(()) => {
            if has_items {
                counts.written();
            }
            parts.values().for_each(|part| acknowledge(part, counts));
        }
        Err(error) => match error.session() {
            Some(guilty) if parts.len() > 1 => one_by_one(store, parts, guilty, counts).await,
            _ => {
                tracing::error!(%error, sessions = parts.len(), "a commit failed; its streams end and will be resumed");
                parts.values().for_each(|part| fail(part, &error, counts));
            }
        },
    }
    drop(held);
}

/// Stores each session separately after one session made the transaction fail.
async fn one_by_one(store: &dyn Store, parts: BTreeMap<SessionKey, Part>, guilty: SessionKey, counts: &Counts) {
    for (session, part) in parts {
        match store.append(vec![part.append.clone()]).await {
            Ok(()) => acknowledge(&part, counts),
            Err(error) => {
                tracing::error!(%error, session, guilty, "a session's items cannot be stored");
                fail(&part, &error, counts);
            }
        }
    }
}

fn acknowledge(part: &Part, counts: &Counts) {
    counts.stored(&part.append);
    part.durable.send_replace(Durable::Upto(part.append.durable_seq));
}

fn fail(part: &Part, error: &StoreError, counts: &Counts) {
    // Relaxed: this is only a metric.
    counts.failures.fetch_add(1, Ordering::Relaxed);
    counts.not_written(error);
    part.durable.send_replace(Durable::Failed(error.to_string()));
}

fn empty(session: SessionKey) -> Append {
    Append {
        session,
        items: Vec::new(),
        gaps: Vec::new(),
        durable_seq: 0,
        duplicates: 0,
        heard_ns: steady().now_ns,
        devices: Vec::new(),
        epoch_ends: Vec::new(),
        end: None,
        dropped: Dropped::default(),
    }
}

fn add(append: &mut Append, prepared: Option<Prepared>, gap: Option<Gap>, seq: u64) {
    append.durable_seq = append.durable_seq.max(seq);
    append.gaps.extend(gap);
    let Some(Prepared { item, devices, epoch_ends, end, dropped }) = prepared else {
        append.duplicates += 1;
        return;
    };
    if append.items.last().is_some_and(|last| last.seq >= item.seq) {
        // This cannot happen while a session has one stream at a time. A duplicate must not make the transaction fail.
        append.duplicates += 1;
        return;
    }
    append.items.push(item);
    append.devices.extend(devices);
    append.epoch_ends.extend(epoch_ends);
    append.end = end.or(append.end.take());
    append.dropped = if dropped.total() > append.dropped.total() { dropped } else { append.dropped };
}
