//! Builds the daemon's own series: ingest, storage, judging, notifications, and the state of its parts.
//!
//! Guarantees: the values are collected without the store, except for the store's own figures. One reader reads these
//! figures at most every few seconds. They are left out while the store does not respond.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memctl_proto::v1::{ItemKind, RefusedReason};
use tokio::time::Instant;

use super::definitions as metrics;
use super::family::{Definition, Family, Point, Value};
use super::{Exports, Sources, process};
use crate::store::{Scope, StoreError, Totals};

/// The shortest time between two reads of the store's sums.
const STORE_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two reads of the stored size of jobs. It is a sum over all their rows, and retention
/// computes it as often.
const KEPT_EVERY: Duration = Duration::from_secs(60);
/// How long a scrape waits for these figures. If they arrive later, the next scrape has them.
const STORE_WAIT: Duration = Duration::from_millis(500);

/// The last figures of the store.
#[derive(Default)]
pub(crate) struct StoreFigures {
    read: Option<Instant>,
    reading: bool,
    known: Option<StoreSnapshot>,
    kept_read: Option<Instant>,
    /// The stored size of every job, by its key.
    kept: Arc<HashMap<i64, u64>>,
}

impl StoreFigures {
    pub(super) fn kept(&self) -> Arc<HashMap<i64, u64>> {
        self.kept.clone()
    }
}

#[derive(Clone)]
struct StoreSnapshot {
    kind: &'static str,
    schema: i64,
    totals: Totals,
    size_bytes: u64,
    alerts: [(&'static str, u64); 3],
}

/// The daemon's families that a scope may see.
pub(super) async fn families(sources: &Sources, scope: &Scope) -> Vec<Family> {
    let known = figures(sources).await;
    let mut families = vec![build(known.as_ref())];
    families.extend(health(sources));
    families.push(Family::single(&metrics::STREAMS, sources.streams.count(scope) as f64));
    // A tenant must not see the activity of other tenants and the daemon's receivers.
    if *scope == Scope::All {
        families.extend(store(known.as_ref(), sources.store.damaged().len() as u64));
        families.extend(connections(sources));
        families.extend(ingest(sources));
        families.extend(judge(sources));
        families.extend(alerts(sources, known.as_ref()));
        families.extend(sources.exports.as_ref().map(exports));
    }
    families.extend(tasks(sources));
    families.extend(reloads(sources));
    families.extend(process::families(sources.started_ns));
    families
}

fn build(known: Option<&StoreSnapshot>) -> Family {
    let mut family = Family::new(&metrics::BUILD);
    let (kind, schema) = known.map_or(("", String::new()), |known| (known.kind, known.schema.to_string()));
    family.add(&[env!("CARGO_PKG_VERSION"), kind, &schema], 1.0);
    family
}

fn truth(definition: &'static Definition, so: bool) -> Family {
    Family::single(definition, f64::from(u8::from(so)))
}

fn health(sources: &Sources) -> Vec<Family> {
    let probe = sources.health.store();
    let mut families = vec![
        truth(&metrics::READY, sources.health.unready().is_empty()),
        truth(&metrics::STORE_UP, probe.fault.is_none()),
    ];
    families.extend(probe.took.map(|took| Family::single(&metrics::STORE_PROBE, took.as_secs_f64())));
    families
}

fn store(known: Option<&StoreSnapshot>, damaged: u64) -> Vec<Family> {
    let Some(StoreSnapshot { totals, size_bytes, .. }) = known else { return Vec::new() };
    let figures = [
        (&metrics::STORE_JOBS, totals.jobs),
        (&metrics::STORE_BYTES, totals.stored_bytes),
        (&metrics::STORE_SIZE, *size_bytes),
        (&metrics::STORE_DAMAGED, damaged),
        (&metrics::STORE_EVENTS, totals.events),
        (&metrics::STORE_EXPIRED, totals.expired_events),
    ];
    figures.into_iter().map(|(definition, value)| Family::single(definition, value as f64)).collect()
}

fn connections(sources: &Sources) -> Vec<Family> {
    let (mut open, mut refused) = (Family::new(&metrics::CONNECTIONS), Family::new(&metrics::CONNECTIONS_REFUSED));
    for (port, connections) in &sources.ports {
        open.add(&[port], connections.count() as f64);
        refused.add(&[port], connections.refused() as f64);
    }
    vec![open, refused]
}

fn ingest(sources: &Sources) -> Vec<Family> {
    let counts = &sources.ingest.counts;
    // Relaxed: these are only statistics.
    let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed) as f64;
    let mut items = Family::new(&metrics::ITEMS);
    counts.items().for_each(|(kind, count)| items.add(&[item_kind(kind)], count as f64));
    let mut refused = Family::new(&metrics::REFUSED);
    let before_ingest = sources.gate.refused_streams();
    counts.refused().for_each(|(reason, count)| {
        let earlier: u64 = before_ingest.iter().filter(|(known, _)| *known == reason).map(|(_, count)| count).sum();
        refused.add(&[&refused_reason(reason)], (count + earlier) as f64);
    });
    let mut dropped = Family::new(&metrics::DROPPED);
    counts.dropped().into_iter().for_each(|(reason, count)| dropped.add(&[reason], count as f64));
    let commits = Point { labels: Vec::new(), value: Value::Histogram(counts.commits.distribution()) };
    vec![
        items,
        Family::single(&metrics::BYTES, read(&counts.bytes)),
        Family::single(&metrics::EVENTS, read(&counts.events)),
        Family::single(&metrics::DUPLICATES, sources.ingest.duplicates() as f64),
        Family::single(&metrics::MISSING, read(&counts.missing)),
        Family::single(&metrics::QUEUE, sources.ingest.queued_bytes() as f64),
        Family::single(&metrics::QUEUE_MAX, sources.ingest.queue_bytes_max() as f64),
        refused,
        dropped,
        Family { definition: &metrics::COMMITS, points: vec![commits] },
        Family::single(&metrics::COMMITS_FAILED, read(&counts.failures)),
    ]
}

fn item_kind(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Unspecified => "unspecified",
        ItemKind::Chunk => "chunk",
        ItemKind::Marks => "marks",
        ItemKind::Stacks => "stacks",
        ItemKind::SiteTables => "site_tables",
        ItemKind::Keyframe => "keyframe",
        ItemKind::Samples => "samples",
        ItemKind::End => "end",
    }
}

fn refused_reason(reason: RefusedReason) -> String {
    let name = reason.as_str_name();
    name.strip_prefix("REFUSED_REASON_").unwrap_or(name).to_ascii_lowercase()
}

fn judge(sources: &Sources) -> Vec<Family> {
    let (lag, waiting) = sources.notifier.lag();
    vec![
        Family::single(&metrics::JUDGE_LAG, lag.as_secs_f64()),
        Family::single(&metrics::JUDGE_WAITING, waiting as f64),
        Family::single(&metrics::JUDGE_MEMORY, sources.judge.bytes() as f64),
        Family::single(&metrics::JUDGE_MEMORY_MAX, sources.judge.bytes_max() as f64),
    ]
}

fn alerts(sources: &Sources, known: Option<&StoreSnapshot>) -> Vec<Family> {
    let mut states = Family::new(&metrics::ALERTS);
    known.iter().flat_map(|known| known.alerts).for_each(|(state, count)| states.add(&[state], count as f64));
    let mut notified = Family::new(&metrics::NOTIFIED);
    for (receiver, delivered, failed) in sources.alerts.notified() {
        notified.add(&[&receiver, "delivered"], delivered as f64);
        notified.add(&[&receiver, "failed"], failed as f64);
    }
    vec![states, Family::single(&metrics::ALERTS_REFUSED, sources.alerts.refused() as f64), notified]
}

fn exports(exports: &Exports) -> Family {
    let (delivered, failed) = exports.counts();
    let mut family = Family::new(&metrics::EXPORTS);
    family.add(&["delivered"], delivered as f64);
    family.add(&["failed"], failed as f64);
    family
}

fn tasks(sources: &Sources) -> Vec<Family> {
    let (mut up, mut restarts) = (Family::new(&metrics::TASK_UP), Family::new(&metrics::RESTARTS));
    for (name, state) in sources.tasks.states() {
        up.add(&[name], f64::from(u8::from(state.running)));
        restarts.add(&[name], state.restarts as f64);
    }
    vec![up, restarts]
}

fn reloads(sources: &Sources) -> Vec<Family> {
    let (applied, refused, last) = sources.reloads.counts();
    let mut family = Family::new(&metrics::RELOADS);
    family.add(&["applied"], applied as f64);
    family.add(&["refused"], refused as f64);
    vec![family, truth(&metrics::RELOADED, last)]
}

/// The figures of the store. If they are old, one reader at a time reads them again.
async fn figures(sources: &Sources) -> Option<StoreSnapshot> {
    let begin = {
        let mut figures = sources.figures();
        let is_old = figures.read.is_none_or(|read| read.elapsed() >= STORE_EVERY);
        let begin = is_old && !figures.reading && sources.health.store().fault.is_none();
        figures.reading |= begin;
        begin
    };
    if begin {
        // This read runs in the background.
        let adding = sources.clone();
        tokio::spawn(async move { read_kept(&adding).await });
        let reader = sources.clone();
        // The query has a task of its own: a cancelled scrape must not interrupt it, and a scrape must not wait for a
        // slow one.
        let reading = tokio::spawn(async move {
            let outcome = read(&reader).await;
            let mut figures = reader.figures();
            (figures.reading, figures.read) = (false, Some(Instant::now()));
            match outcome {
                Ok(known) => figures.known = Some(known),
                Err(error) => tracing::debug!(%error, "the figures of the store cannot be read"),
            }
        });
        // If the figures are late, the next scrape has them.
        let _ = tokio::time::timeout(STORE_WAIT, reading).await;
    }
    let known = sources.figures().known.clone();
    known.filter(|_| sources.health.store().fault.is_none())
}

async fn read(sources: &Sources) -> Result<StoreSnapshot, StoreError> {
    let info = sources.store.info().await?;
    let totals = sources.store.totals().await?;
    let size_bytes = sources.store.size_bytes().await?;
    let alerts = sources.alerts.states().await?;
    Ok(StoreSnapshot { kind: info.kind, schema: info.schema_version, totals, size_bytes, alerts })
}

/// Reads the stored size of jobs again if it is old. After an error, the old size stays.
async fn read_kept(sources: &Sources) {
    let is_old = {
        let mut figures = sources.figures();
        let is_old = figures.kept_read.is_none_or(|read| read.elapsed() >= KEPT_EVERY);
        if is_old {
            figures.kept_read = Some(Instant::now());
        }
        is_old
    };
    if !is_old {
        return;
    }
    match sources.store.kept_bytes().await {
        Ok(kept) => sources.figures().kept = Arc::new(kept.into_iter().collect()),
        Err(error) => tracing::debug!(%error, "the stored size of jobs cannot be computed"),
    }
}
