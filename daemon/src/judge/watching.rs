//! A job as its judge sees it: one watch a device of each session, fed from the store item by item.
//!
//! Guarantees: what a watch knows depends on the session's items and their order alone, not on how often it was asked; so a
//! live job, an import and a daemon that was restarted say the same. Reads a bounded number of items at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use memctl_analysis::judge::{RankFacts, RankWatch};
use memctl_model::{Sample, SiteTable, StackId};
use memctl_proto::StackDictionary;
use memctl_proto::item::Content;
use memctl_proto::v1::{Boundaries, ItemKind};

use super::shown::{self, Levels, Seen};
use crate::read::processes::Process;
use crate::read::samples::raise;
use crate::read::stacks::open;
use crate::read::{Found, ReadError};
use crate::store::{ItemRow, SessionKey, SessionRow, Store};

/// Items of one kind read at a time; their tables are unfolded one by one.
const PAGE: u32 = 64;

/// Which boundaries count, when a question narrows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First and last epoch.
    pub epochs: Option<(u32, u32)>,
    /// First and last nanosecond.
    pub times_ns: Option<(u64, u64)>,
}

impl Range {
    fn holds(&self, table: &SiteTable) -> bool {
        self.epochs.is_none_or(|(first, last)| (first..=last).contains(&table.epoch)) && self.holds_time(table.time_ns)
    }

    fn holds_time(&self, time_ns: u64) -> bool {
        self.times_ns.is_none_or(|(first, last)| (first..=last).contains(&time_ns))
    }
}

/// One session.
pub struct SessionWatch {
    session: SessionKey,
    /// What each device's watch begins with.
    facts: BTreeMap<u8, RankFacts>,
    range: Range,
    /// All items up to this one have been seen.
    seen: u64,
    stacks: StackDictionary,
    told: u32,
    /// A batch of stacks did not open: later ones have no names.
    nameless: bool,
    /// By device.
    pub watches: BTreeMap<u8, RankWatch>,
    /// The highest of each quantity that was measured, by device.
    highest: BTreeMap<u8, Sample>,
    /// The boundaries it has shown.
    shown: Seen,
    /// Whether anything was measured of it.
    measured: bool,
}

impl SessionWatch {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(session: &SessionRow, range: Range) -> Self {
        let facts = session.info.devices.iter().map(|device| {
            let index = device.index.0;
            // Indexes are no identities between processes: where nothing better is known, nothing is compared.
            let device_id = device
                .uuid
                .as_ref()
                .map(|uuid| format!("{} {uuid}", session.info.host.as_deref().unwrap_or_default()).into());
            let (rank, device_total_bytes) = (session.info.rank, device.total_bytes);
            (index, RankFacts { rank, device: index, device_id, device_total_bytes, ..RankFacts::default() })
        });
        Self {
            session: session.key,
            facts: facts.chain([(u8::MAX, RankFacts { rank: session.info.rank, ..RankFacts::default() })]).collect(),
            range,
            seen: 0,
            stacks: StackDictionary::default(),
            told: 0,
            nameless: false,
            watches: BTreeMap::new(),
            highest: BTreeMap::new(),
            shown: Seen::default(),
            measured: false,
        }
    }

    /// Tells what the process is called by now.
    pub fn call(&mut self, process: &Process) {
        let name = if process.is_rank() { "" } else { process.name.as_str() };
        let role = process.peer_role();
        for facts in self.facts.values_mut() {
            (facts.process, facts.role) = (name.into(), role.into());
        }
        self.watches.values_mut().for_each(|watch| watch.set_process(name, role));
    }

    /// Sees what is stored of the session up to `durable`.
    pub async fn catch_up(&mut self, store: &dyn Store, durable: u64) -> Result<(), ReadError> {
        while self.seen < durable {
            let mut upto = durable;
            let mut rows = Vec::new();
            for kind in [ItemKind::Stacks, ItemKind::SiteTables, ItemKind::Samples] {
                let mut page = store.items_after(self.session, kind, self.seen, PAGE).await?;
                page.retain(|row| row.seq <= durable);
                if page.len() == PAGE as usize {
                    // There may be more of this kind: the others are seen no further, so that all keep their order.
                    upto = upto.min(page.last().map_or(upto, |row| row.seq));
                }
                rows.append(&mut page);
            }
            rows.retain(|row| row.seq <= upto);
            rows.sort_by_key(|row| row.seq);
            for row in &rows {
                self.see(row)?;
            }
            self.seen = upto;
        }
        Ok(())
    }

    fn see(&mut self, row: &ItemRow) -> Result<(), ReadError> {
        match open(self.session, row)? {
            Content::Stacks(batch) => {
                if let Err(error) = self.stacks.add(&batch) {
                    if !std::mem::replace(&mut self.nameless, true) {
                        tracing::warn!(session = self.session, seq = row.seq, %error, "stacks cannot be read; later ones have no names");
                    }
                    return Ok(());
                }
                self.tell_stacks();
            }
            Content::SiteTables(tables) => {
                let see = |table: &SiteTable| {
                    if self.range.holds(table) {
                        self.shown.see(table);
                        watch(&mut self.watches, &self.stacks, &self.facts, table.device.0).table(table);
                    }
                };
                tables.each(see).map_err(ReadError::wire(self.session, row.seq))?;
            }
            Content::Samples(samples) => {
                for sample in &samples {
                    if self.range.holds_time(sample.time_ns) {
                        raise(self.highest.entry(sample.device.0).or_default(), sample);
                    }
                    self.sample(sample);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn sample(&mut self, sample: &Sample) {
        if !self.range.holds_time(sample.time_ns) {
            return;
        }
        self.measured = true;
        // A device that was never allocated on is watched by nobody; of some only counters ever come.
        let device = sample.device.0;
        if sample.allocated_bytes.is_some_and(|bytes| bytes > 0) || self.watches.contains_key(&device) {
            watch(&mut self.watches, &self.stacks, &self.facts, device).sample(sample);
        }
    }

    fn tell_stacks(&mut self) {
        let known = self.stacks.len() as u32;
        for id in self.told + 1..=known {
            let frames = self.stacks.stack(StackId(id)).frames;
            self.watches.values_mut().for_each(|watch| watch.stack(StackId(id), &frames));
        }
        self.told = known;
    }
}

/// The watch of a device, made at its first table.
fn watch<'a>(
    watches: &'a mut BTreeMap<u8, RankWatch>,
    stacks: &StackDictionary,
    facts: &BTreeMap<u8, RankFacts>,
    device: u8,
) -> &'a mut RankWatch {
    watches.entry(device).or_insert_with(|| {
        // A device that the session did not name is known by its process alone.
        let known = facts.get(&device).or_else(|| facts.get(&u8::MAX)).cloned().unwrap_or_default();
        let mut watch = RankWatch::new(RankFacts { device, ..known });
        for id in 1..=stacks.len() as u32 {
            watch.stack(StackId(id), &stacks.stack(StackId(id)).frames);
        }
        watch
    })
}

/// One job: its processes.
#[derive(Default)]
pub struct JobWatch {
    range: Range,
    sessions: BTreeMap<SessionKey, SessionWatch>,
}

impl JobWatch {
    /// A watch over a part of a job.
    #[must_use]
    pub fn over(range: Range) -> Self {
        Self { range, sessions: BTreeMap::new() }
    }

    /// Sees what is stored of these sessions; others are forgotten.
    pub async fn catch_up(&mut self, store: &Arc<dyn Store>, found: &Found) -> Result<(), ReadError> {
        self.sessions.retain(|key, _| found.sessions.iter().any(|session| session.key == *key));
        for session in &found.sessions {
            let range = self.range;
            let watch = self.sessions.entry(session.key).or_insert_with(|| SessionWatch::new(session, range));
            watch.call(found.process(session.key));
            watch.catch_up(&**store, session.durable_seq).await?;
        }
        Ok(())
    }

    /// The watches of devices that count.
    #[must_use]
    pub fn watches(&self, counts: impl Fn(SessionKey, u8) -> bool) -> Vec<&RankWatch> {
        let all =
            self.sessions.iter().flat_map(|(&key, session)| session.watches.iter().map(move |watch| (key, watch)));
        all.filter(|&(key, (&device, _))| counts(key, device)).map(|(_, (_, watch))| watch).collect()
    }

    /// The highest of each quantity that was measured, by session and device.
    #[must_use]
    pub fn highest(&self) -> HashMap<(SessionKey, u8), Sample> {
        let of = |(&key, session): (&SessionKey, &SessionWatch)| {
            let by_device: Vec<_> = session.highest.iter().map(|(&device, &sample)| ((key, device), sample)).collect();
            by_device
        };
        self.sessions.iter().flat_map(of).collect()
    }

    /// Whether anything beside events tells of a session's memory. A table of nothing is what a process leaves that was never
    /// looked at, or has ended at once.
    #[must_use]
    pub fn is_known(&self, key: SessionKey) -> bool {
        let holds = |levels: &Levels| levels.counters.reserved_bytes > 0 || levels.counters.allocated_bytes > 0;
        let known = |session: &SessionWatch| session.measured || session.shown.levels.values().any(holds);
        self.sessions.get(&key).is_some_and(known)
    }

    /// Where the boundaries of these sessions come from, and how their devices stood at the last of them.
    #[must_use]
    pub fn boundaries(&self, asked: &[SessionRow]) -> (Boundaries, BTreeMap<(SessionKey, u8), Levels>) {
        let of = |session: &SessionRow| self.sessions.get(&session.key).map(|watch| &watch.shown);
        let shown = || asked.iter().filter_map(|session| Some((session, of(session)?)));
        let levels = shown()
            .flat_map(|(session, shown)| shown.levels.iter().map(|(&device, &levels)| ((session.key, device), levels)));
        (shown::boundaries(shown()), levels.collect())
    }

    /// Devices watched: what the memory of all this is measured by.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.sessions.values().map(|session| session.watches.len().max(1)).sum()
    }
}
