//! The judge's state of a job: one watch per device of each session, which reads the store item by item.
//!
//! Guarantees: a watch's state depends only on the session's items and their order, not on how often it was queried. So
//! a live job, an import and a restarted daemon report the same. A bounded number of items is read at a time. Items
//! that saved state covers are not read.
//!
//! Refuses: to exceed its memory limit, which is checked at every table.
//! (Over 400 lines: reading, saving and resuming the watches of a session share one state.)

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use memctl_analysis::judge::stacks::{OUTSIDE, STACKS_MAX};
use memctl_analysis::judge::{RankFacts, RankWatch, Stacks};
use memctl_answers::report::Boundaries;
use memctl_model::{Frame, Sample, SiteTable, StackId};
use memctl_proto::StackDictionary;
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use super::range::Range;
use super::saved_state::{self, Keeping, Progress, SavedWatch};
use super::session_boundaries::{self, Levels, SessionBoundaries};
use crate::job_data::processes::Process;
use crate::job_data::samples::{fold, raise};
use crate::job_data::stacks::open;
use crate::job_data::{FoundJob, ReadError};
use crate::store::{ItemRow, SessionKey, SessionRow, Store};

/// Items of one kind read at a time; their tables are decoded one by one.
const PAGE: u32 = 64;

/// What the watches know about devices in addition to their stored rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    /// The latest value of each measured quantity.
    pub last: HashMap<(SessionKey, u8), Sample>,
    /// Growth of the allocated bytes, in bytes per epoch.
    pub growth: HashMap<(SessionKey, u8), f64>,
}

/// The watches of one session.
pub struct SessionWatch {
    session: SessionKey,
    /// The initial facts of each device's watch.
    facts: BTreeMap<u8, RankFacts>,
    range: Range,
    /// All items up to this one have been read.
    seen: u64,
    /// Whether saved state was looked for, or need not be because only a part of the job is read.
    looked_for_saved_state: bool,
    progress: Progress,
    stacks: StackDictionary,
    /// The stacks as the watches get them.
    shared_stacks: Arc<Stacks>,
    /// For each frame of the dictionary, the frame's number in `shared_stacks`.
    frames: Vec<u32>,
    /// Whether a batch of stacks could not be read. Later stacks then have no names.
    nameless: bool,
    /// By device.
    pub watches: BTreeMap<u8, RankWatch>,
    /// The highest value of each measured quantity, by device.
    highest: BTreeMap<u8, Sample>,
    /// The latest value of each measured quantity, by device.
    last: BTreeMap<u8, Sample>,
    /// The boundaries that the session has marked.
    shown: SessionBoundaries,
    /// Whether the session has any samples.
    measured: bool,
}

impl SessionWatch {
    /// A watch that has not read anything yet.
    #[must_use]
    pub fn new(session: &SessionRow, range: Range) -> Self {
        let facts = session.info.devices.iter().map(|device| {
            let index = device.index.0;
            // Device indexes do not identify a device across processes, so without a UUID nothing is compared.
            let device_id = device
                .uuid
                .as_ref()
                .map(|uuid| format!("{} {uuid}", session.info.host.as_deref().unwrap_or_default()).into());
            let (rank, device_total_bytes) = (session.info.rank, device.total_bytes);
            // The simulated device of tests has such a name. Its memory belongs to the process alone.
            let is_simulated = device.name.as_ref().is_some_and(|name| name.starts_with("Fake"));
            (
                index,
                RankFacts { rank, device: index, device_id, device_total_bytes, is_simulated, ..RankFacts::default() },
            )
        });
        Self {
            session: session.key,
            facts: facts.chain([(u8::MAX, RankFacts { rank: session.info.rank, ..RankFacts::default() })]).collect(),
            range,
            seen: 0,
            looked_for_saved_state: range != Range::default(),
            progress: Progress::default(),
            stacks: StackDictionary::default(),
            shared_stacks: Arc::default(),
            frames: Vec::new(),
            nameless: false,
            watches: BTreeMap::new(),
            highest: BTreeMap::new(),
            last: BTreeMap::new(),
            shown: SessionBoundaries::default(),
            measured: false,
        }
    }

    /// Sets the process's current name and role.
    pub fn set_process(&mut self, process: &Process) {
        let name = if process.is_rank() { "" } else { process.name.as_str() };
        let role = process.peer_role();
        for facts in self.facts.values_mut() {
            (facts.process, facts.role) = (name.into(), role.into());
        }
        self.watches.values_mut().for_each(|watch| watch.set_process(name, role));
    }

    /// Reads the session's items up to `durable`, as long as the watch takes at most `allowed` bytes.
    async fn catch_up(&mut self, store: &dyn Store, durable: u64, allowed: usize) -> Result<(), ReadError> {
        if !std::mem::replace(&mut self.looked_for_saved_state, true)
            && let Some((kept, seq)) = SavedWatch::read(store, self.session, durable).await
        {
            self.resume(store, kept, seq, allowed).await?;
        }
        while self.seen < durable {
            let mut upto = durable;
            let mut rows = Vec::new();
            for kind in [ItemKind::Stacks, ItemKind::SiteTables, ItemKind::Samples] {
                let mut page = store.items_after(self.session, kind, self.seen, PAGE).await?;
                // If this page is not the last of its kind, items of the other kinds are used only up to its end. So
                // items of all kinds are used in their order.
                upto = upto.min(page.looked_to.unwrap_or(upto));
                rows.append(&mut page.items);
            }
            rows.retain(|row| row.seq <= upto);
            rows.sort_by_key(|row| row.seq);
            for row in &rows {
                self.see(row, allowed)?;
            }
            self.seen = upto;
        }
        Ok(())
    }

    /// Resumes from saved state, with the stacks that were known when it was saved.
    async fn resume(&mut self, store: &dyn Store, kept: SavedWatch, seq: u64, allowed: usize) -> Result<(), ReadError> {
        let mut after = 0;
        loop {
            let page = store.items_after(self.session, ItemKind::Stacks, after, PAGE).await?;
            for row in page.items.iter().filter(|row| row.seq <= seq) {
                self.see(row, allowed)?;
            }
            match page.looked_to {
                Some(looked_to) if looked_to < seq => after = looked_to,
                _ => break,
            }
        }
        let SavedWatch { mut watches, highest, last, shown, measured, read_bytes } = kept;
        let sound = watches
            .iter_mut()
            .all(|(&device, watch)| watch.resume(facts_of(&self.facts, device), self.shared_stacks.clone()));
        if !sound {
            tracing::warn!(
                session = self.session,
                "the saved state of a session's watch contradicts itself; its items are read instead"
            );
            (self.stacks, self.shared_stacks, self.nameless) = Default::default();
            self.frames.clear();
            self.progress = Progress::default();
            return Ok(());
        }
        (self.watches, self.highest, self.last, self.shown) = (watches, highest, last, shown);
        (self.measured, self.seen, self.progress) = (measured, seq, Progress::of_kept(read_bytes));
        Ok(())
    }

    /// Saves the state when it is due. If an item is damaged, nothing is saved, so that a later daemon reads the items
    /// again and finds the damage. If saving fails, a later daemon only needs more time.
    async fn keep(&mut self, store: &dyn Store, ended: bool) {
        if self.range != Range::default() || !self.progress.is_due(ended) || store.has_damage(self.session) {
            return;
        }
        self.progress.settle();
        let Self { watches, highest, last, shown, measured, progress, .. } = &*self;
        let read_bytes = progress.read_bytes;
        let keeping = Keeping { watches, highest, last, shown, measured: *measured, read_bytes };
        let Some(row) = saved_state::row(&keeping, self.seen, read_bytes) else { return };
        if let Err(error) = store.put_watch(self.session, &row).await {
            tracing::debug!(session = self.session, %error, "the state of a session's watch could not be saved");
        }
    }

    fn see(&mut self, row: &ItemRow, allowed: usize) -> Result<(), ReadError> {
        let mut bytes = self.bytes();
        self.progress.read_bytes += row.payload.len() as u64;
        match open(self.session, row)? {
            Content::Stacks(batch) => {
                if let Err(error) = self.stacks.add(&batch) {
                    if !std::mem::replace(&mut self.nameless, true) {
                        let (session, seq) = (self.session, row.seq);
                        tracing::warn!(session, seq, %error, "stacks cannot be read; later stacks have no names");
                    }
                    return Ok(());
                }
                self.tell_stacks();
            }
            Content::SiteTables(tables) => {
                let see = |table: &SiteTable| {
                    if self.range.holds(table) && bytes <= allowed {
                        self.shown.see(table);
                        let watch = watch(&mut self.watches, &self.shared_stacks, &self.facts, table.device.0);
                        let before = watch.bytes();
                        watch.table(table);
                        bytes += watch.bytes().saturating_sub(before);
                    }
                };
                tables.each(see).map_err(ReadError::wire(self.session, row.seq))?;
            }
            Content::Samples(samples) => {
                for sample in &samples {
                    if self.range.holds_time(sample.time_ns) {
                        raise(self.highest.entry(sample.device.0).or_default(), sample);
                        fold(self.last.entry(sample.device.0).or_default(), *sample);
                    }
                    self.sample(sample);
                }
            }
            _ => {}
        }
        if bytes.max(self.bytes()) <= allowed { Ok(()) } else { Err(too_large(allowed)) }
    }

    fn sample(&mut self, sample: &Sample) {
        if !self.range.holds_time(sample.time_ns) {
            return;
        }
        self.measured = true;
        // A device on which nothing was ever allocated has no watch. Some devices have only counters.
        let device = sample.device.0;
        if sample.allocated_bytes.is_some_and(|bytes| bytes > 0) || self.watches.contains_key(&device) {
            watch(&mut self.watches, &self.shared_stacks, &self.facts, device).sample(sample);
        }
    }

    /// Passes new stacks to the watches. The watches share the table, so they must release it while it grows.
    fn tell_stacks(&mut self) {
        self.watches.values_mut().for_each(|watch| watch.set_stacks(Arc::default()));
        let shared = Arc::make_mut(&mut self.shared_stacks);
        let known = self.stacks.innermost(0).len().min(STACKS_MAX);
        let new = &self.stacks.innermost(0)[shared.len().min(known)..known];
        // Frames that only stacks beyond `STACKS_MAX` have are left out, because these stacks get no names.
        let upto = new.iter().filter(|&&innermost| innermost != OUTSIDE).max().map_or(0, |last| *last as usize + 1);
        let from = shared.nodes();
        for (frame, caller) in self.stacks.nodes(from).take(upto.saturating_sub(from)) {
            while self.frames.len() <= frame as usize {
                let next = shared.frame(&self.stacks.all_frames()[self.frames.len()]);
                self.frames.push(next);
            }
            shared.node(self.frames[frame as usize], caller);
        }
        new.iter().for_each(|&innermost| shared.stack(innermost));
        self.watches.values_mut().for_each(|watch| watch.set_stacks(self.shared_stacks.clone()));
    }

    /// Bytes that the watches of this session take.
    fn bytes(&self) -> usize {
        let watches: usize = self.watches.values().map(RankWatch::bytes).sum();
        let samples = (self.highest.len() + self.last.len()) * size_of::<Sample>();
        let of_process = size_of::<Self>() + self.facts.len() * size_of::<RankFacts>() + samples;
        of_process
            + self.stacks.held_bytes()
            + self.shared_stacks.bytes()
            + self.frames.capacity() * size_of::<u32>()
            + watches
    }
}

/// The watch of a device, which is created at its first table.
fn watch<'a>(
    watches: &'a mut BTreeMap<u8, RankWatch>,
    stacks: &Arc<Stacks>,
    facts: &BTreeMap<u8, RankFacts>,
    device: u8,
) -> &'a mut RankWatch {
    watches.entry(device).or_insert_with(|| {
        let mut watch = RankWatch::new(facts_of(facts, device));
        watch.set_stacks(stacks.clone());
        watch
    })
}

/// The facts of a device. A device that the session did not list has the facts of its process.
fn facts_of(facts: &BTreeMap<u8, RankFacts>, device: u8) -> RankFacts {
    let known = facts.get(&device).or_else(|| facts.get(&u8::MAX)).cloned().unwrap_or_default();
    RankFacts { device, ..known }
}

/// The watches of one job.
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

    /// Reads the items of these sessions, as long as all of them together take at most `memory` bytes, and drops other
    /// sessions. Reports the total after each session.
    pub async fn catch_up(
        &mut self,
        store: &Arc<dyn Store>,
        found: &FoundJob,
        memory: usize,
        tell: &(dyn Fn(usize) + Sync),
    ) -> Result<(), ReadError> {
        let known = found.by_key();
        self.sessions.retain(|key, _| known.contains_key(key));
        let mut bytes = self.bytes();
        for session in &found.sessions {
            let range = self.range;
            let watch = self.sessions.entry(session.key).or_insert_with(|| SessionWatch::new(session, range));
            watch.set_process(found.process(session.key));
            let (before, allowed) = (watch.bytes(), memory.saturating_sub(bytes).saturating_add(watch.bytes()));
            watch.catch_up(&**store, session.durable_seq, allowed).await?;
            watch.keep(&**store, session.end.is_some()).await;
            bytes = bytes.saturating_add(watch.bytes()).saturating_sub(before);
            tell(bytes);
        }
        Ok(())
    }

    /// The frames of a session's stack, innermost first.
    #[must_use]
    pub fn frames(&self, key: SessionKey, stack: StackId) -> Vec<Frame> {
        self.sessions.get(&key).map_or_else(Vec::new, |session| session.stacks.frames(stack).cloned().collect())
    }

    /// The watch of a device.
    #[must_use]
    pub fn watch(&self, key: SessionKey, device: u8) -> Option<&RankWatch> {
        self.sessions.get(&key)?.watches.get(&device)
    }

    /// The watches of the devices for which `counts` is true.
    #[must_use]
    pub fn watches(&self, counts: impl Fn(SessionKey, u8) -> bool) -> Vec<&RankWatch> {
        let all =
            self.sessions.iter().flat_map(|(&key, session)| session.watches.iter().map(move |watch| (key, watch)));
        all.filter(|&(key, (&device, _))| counts(key, device)).map(|(_, (_, watch))| watch).collect()
    }

    /// The highest value of each measured quantity, by session and device.
    #[must_use]
    pub fn highest(&self) -> HashMap<(SessionKey, u8), Sample> {
        let of = |(&key, session): (&SessionKey, &SessionWatch)| {
            let by_device: Vec<_> = session.highest.iter().map(|(&device, &sample)| ((key, device), sample)).collect();
            by_device
        };
        self.sessions.iter().flat_map(of).collect()
    }

    /// What the watches know about its devices in addition to their stored rows.
    #[must_use]
    pub fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        for (&key, session) in &self.sessions {
            watched.last.extend(session.last.iter().map(|(&device, &sample)| ((key, device), sample)));
            watched.growth.extend(session.shown.growth().map(|(device, growth)| ((key, device), growth)));
        }
        watched
    }

    /// Whether samples or tables show a session's memory. A process that was never sampled, or that ended at once, has
    /// only tables without bytes, which show nothing.
    #[must_use]
    pub fn is_known(&self, key: SessionKey) -> bool {
        let holds = |levels: &Levels| levels.counters.reserved_bytes > 0 || levels.counters.allocated_bytes > 0;
        let known = |session: &SessionWatch| session.measured || session.shown.levels.values().any(holds);
        self.sessions.get(&key).is_some_and(known)
    }

    /// Where the boundaries of these sessions come from, and the levels of their devices at the last boundary.
    #[must_use]
    pub fn boundaries(&self, asked: &[SessionRow]) -> (Boundaries, BTreeMap<(SessionKey, u8), Levels>) {
        let of = |session: &SessionRow| self.sessions.get(&session.key).map(|watch| &watch.shown);
        let shown = || asked.iter().filter_map(|session| Some((session, of(session)?)));
        let levels = shown()
            .flat_map(|(session, shown)| shown.levels.iter().map(|(&device, &levels)| ((session.key, device), levels)));
        (session_boundaries::boundaries(shown()), levels.collect())
    }

    /// Bytes of all watches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sessions.values().map(SessionWatch::bytes).sum()
    }
}

fn too_large(bytes_max: usize) -> ReadError {
    let remedy = "allow the analysis more memory with `judge_memory` in the daemon's configuration";
    ReadError::TooLarge { what: "watching this job".to_owned(), bytes_max, remedy }
}
