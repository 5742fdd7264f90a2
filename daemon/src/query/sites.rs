//! Finds live memory by allocation site at one moment: from a site table if one was taken at that moment, otherwise by
//! replay.

use std::collections::{BTreeMap, HashMap};

use memctl_analysis::block_map::SITES_MAX;
use memctl_analysis::classes::{Class, Classifier};
use memctl_answers::format::time::Time;
use memctl_answers::sites::{Birth, Further, RankSites, Site, Sites};
use memctl_answers::{Frame, SCHEMA};
use memctl_model::{Boundary, Counters, HumanBytes, SiteRow, SiteTable, Stack, StackId};
use memctl_proto::StackDictionary;
use memctl_proto::item::{Content, SiteTables};
use memctl_proto::v1;
use memctl_proto::v1::ItemKind;
use memctl_proto::v1::sites_request::Moment;

use super::answer;
use super::events_until::{EventsUntil, events_until};
use super::report::wanted;
use super::timeline::{Span, chosen, devices_of, span};
use crate::event_analysis::classed::{Classed, Until};
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::job_data::mark_cursor::MarkCursor;
use crate::job_data::replay::{Go, Replay};
use crate::job_data::stacks::{dictionary, open};
use crate::store::{ChunkRow, DeviceRow, EpochEndRow, Selection, SessionKey, SessionRow, Store};
use crate::streams::Streams;

/// The figures of a moment on one device.
struct State {
    time_ns: u64,
    /// The number of events before it.
    at: u64,
    epoch: u32,
    step: u64,
    counters: Counters,
    rows: Vec<SiteRow>,
    exact: bool,
}

impl From<SiteTable> for State {
    fn from(table: SiteTable) -> Self {
        let SiteTable { epoch, step, time_ns, at_event: at, exact, counters, rows, .. } = table;
        Self { time_ns, at, epoch, step, counters, rows, exact }
    }
}

struct Question<'a> {
    store: &'a dyn Store,
    selection: &'a v1::Selection,
    epoch_ends: &'a [EpochEndRow],
    job: &'a str,
}

/// The approximate limit of the bytes of a response's sites as JSON. The devices share it.
const ANSWER_BYTES: usize = 8 << 20;
/// The least bytes that each device gets, for its largest sites.
const DEVICE_BYTES_MIN: usize = 2 << 10;
/// The approximate bytes of field names and digits in JSON: for a site, and for each of its frames and births.
const SITE_BYTES: usize = 256;
const PART_BYTES: usize = 96;
/// The most devices whose sites get classes. For each, the events around the moment are replayed.
const CLASSED_MAX: usize = 8;

/// Answers a sites request.
pub(super) async fn sites(store: &dyn Store, streams: &Streams, request: v1::SitesRequest) -> Result<Sites, ReadError> {
    let selection = request.selection.unwrap_or_default();
    let found = find(store, &selection).await?;
    let epoch_ends = store.epoch_ends(found.job.key).await?;
    let devices = found.sessions.iter().map(|session| devices_of(&found, session).count()).sum::<usize>().max(1);
    let budget = (ANSWER_BYTES / devices).max(DEVICE_BYTES_MIN);
    let question = Question { store, selection: &selection, epoch_ends: &epoch_ends, job: &found.job.name };
    let mut ranks = Vec::new();
    // Without events, the owners of memory are unknown. An empty table would mean that there are none.
    for session in found.sessions.iter().filter(|session| session.events > 0) {
        for device in devices_of(&found, session) {
            let Some(state) = question.state(session, device, request.moment).await? else { continue };
            let process = found.process_name(session);
            ranks.push(RankSites {
                process,
                ..answer(store, (session, device), state, (budget, devices <= CLASSED_MAX)).await?
            });
        }
    }
    ranks.sort_by_key(|rank| (rank.rank, rank.device));
    Ok(Sites {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        ranks,
        ..Sites::default()
    })
}

/// The last table of an item that `is_it` accepts.
fn last_of(
    session: SessionKey,
    seq: u64,
    tables: SiteTables,
    is_it: impl Fn(&SiteTable) -> bool,
) -> Result<Option<SiteTable>, ReadError> {
    let mut last: Option<SiteTable> = None;
    let keep = |table: &SiteTable| {
        if is_it(table) {
            last.get_or_insert_with(|| table.clone()).clone_from(table);
        }
    };
    tables.each(keep).map_err(ReadError::wire(session, seq))?;
    Ok(last)
}

impl Question<'_> {
    async fn state(
        &self,
        session: &SessionRow,
        device: u8,
        moment: Option<Moment>,
    ) -> Result<Option<State>, ReadError> {
        let Some(moment) = moment else { return self.at_last_epoch_end(session, device).await };
        match moment {
            Moment::Peak(_) => self.at_peak(session, device).await,
            Moment::EpochEnd(epoch) => self.at_epoch_end(session, device, epoch).await.map(Some),
            Moment::AtNs(time_ns) => self.at_time(session, device, time_ns).await,
            Moment::End(_) => self.at_end(session, device).await,
        }
    }

    fn ends<'a>(&'a self, session: &'a SessionRow, device: u8) -> impl Iterator<Item = &'a EpochEndRow> {
        self.epoch_ends.iter().filter(move |end| end.session == session.key && end.device == device)
    }

    async fn at_epoch_end(&self, session: &SessionRow, device: u8, epoch: u32) -> Result<State, ReadError> {
        let end = self.ends(session, device).filter(|end| end.epoch == epoch).last();
        let Some(end) = end else {
            let epochs: Vec<u32> = self.ends(session, device).map(|end| end.epoch).collect();
            let known = match (epochs.iter().min(), epochs.iter().max()) {
                (Some(first), Some(last)) => format!(" on rank {}; it has {first} to {last}", session.info.rank),
                _ => format!(" on rank {}; no epoch has ended there", session.info.rank),
            };
            return Err(ReadError::NoEpoch { job: self.job.into(), epoch, known });
        };
        let is_it = |table: &SiteTable| {
            table.device.0 == device && table.epoch == epoch && table.boundary == Boundary::EpochEnd
        };
        for row in self.store.items_at(session.key, &[end.table_seq]).await? {
            if let Content::SiteTables(tables) = open(session.key, &row)? {
                let found = last_of(session.key, row.seq, tables, is_it)?;
                return found
                    .map(State::from)
                    .ok_or_else(|| ReadError::damaged(session.key, end.table_seq, "its site table is missing"));
            }
        }
        Err(ReadError::Expired { what: format!("the site table of rank {}", session.info.rank) })
    }

    /// The end of the last epoch of the selection, or the end of the recording if none has ended.
    async fn at_last_epoch_end(&self, session: &SessionRow, device: u8) -> Result<Option<State>, ReadError> {
        match self.ends(session, device).filter(|end| wanted(end, self.selection)).last() {
            Some(end) => self.at_epoch_end(session, device, end.epoch).await.map(Some),
            None => self.at_end(session, device).await,
        }
    }

    /// The last table: the one at the end of a session that has ended, or at the latest step of a running one.
    async fn at_end(&self, session: &SessionRow, device: u8) -> Result<Option<State>, ReadError> {
        let latest = self.store.devices(session.job).await?;
        let latest = latest.into_iter().find(|row| row.session == session.key && row.info.index.0 == device);
        let Some(at) = latest.and_then(|row| row.latest) else { return self.at_time(session, device, u64::MAX).await };
        let since = Selection { times_ns: Some((at.time_ns, u64::MAX)), ..Selection::default() };
        let rows = self.store.items(session.key, ItemKind::SiteTables, None, since).await?;
        for row in rows.iter().rev() {
            if let Content::SiteTables(tables) = open(session.key, row)?
                && let Some(table) = last_of(session.key, row.seq, tables, |table| table.device.0 == device)?
            {
                return Ok(Some(table.into()));
            }
        }
        self.at_time(session, device, u64::MAX).await
    }

    async fn at_time(&self, session: &SessionRow, device: u8, time_ns: u64) -> Result<Option<State>, ReadError> {
        match events_until(self.store, session, device, time_ns).await? {
            Some(EventsUntil { chunk, at, time_ns }) => {
                self.replayed(session, device, at, Some((&chunk, time_ns))).await
            }
            None => self.replayed(session, device, 0, None).await,
        }
    }

    async fn at_peak(&self, session: &SessionRow, device: u8) -> Result<Option<State>, ReadError> {
        let chunks = self.store.chunks(session.key, device, chosen(self.selection)?).await?;
        let Some(highest) = chunks.iter().rev().max_by_key(|chunk| chunk.levels.allocated_max) else {
            part_is_stored(session, None, Span::default())?;
            return self.at_end(session, device).await;
        };
        let everything = self.selection.first_epoch.is_none() && self.selection.since_ns.is_none();
        if everything {
            self.peak_is_stored(session, device, highest).await?;
        } else {
            let span = span(self.selection, self.epoch_ends, session, device);
            part_is_stored(session, chunks.first(), span)?;
        }
        // If the selection cuts chunks at both ends, the peak of the highest chunk may be outside of it. The answer is
        // then the highest moment of the part inside.
        let span = span(self.selection, self.epoch_ends, session, device);
        let first = highest.index.first_event;
        let mut replay = Replay::before(self.store, session, device, self.epoch_ends, first).await?;
        // The highest moment may be the state at the beginning of the chunk, or of the selection within it.
        let mut peak = (replay.at_event(), highest.index.first_ns, replay.map().levels().allocated_bytes);
        replay
            .run(first + highest.index.count, |number, event, map| {
                let allocated = map.levels().allocated_bytes;
                let before = number <= first.max(span.events.0) || event.time_ns < span.times_ns.0;
                let behind = number > span.events.1 || event.time_ns > span.times_ns.1;
                if before || (!behind && allocated > peak.2) {
                    peak = (number, event.time_ns, allocated);
                }
                if behind { Go::Stop } else { Go::On }
            })
            .await?;
        self.replayed(session, device, peak.0, Some((highest, peak.1))).await
    }

    /// Checks that the peak is stored. Retention removes the oldest chunks first, and the peak may have been in one of
    /// them.
    async fn peak_is_stored(&self, session: &SessionRow, device: u8, highest: &ChunkRow) -> Result<(), ReadError> {
        let rows = self.store.devices(session.job).await?;
        let row = rows.iter().find(|row| row.session == session.key && row.info.index.0 == device);
        peak_is_stored(session, row, highest)
    }

    /// The state before event `until`.
    async fn replayed(
        &self,
        session: &SessionRow,
        device: u8,
        until: u64,
        within: Option<(&ChunkRow, u64)>,
    ) -> Result<Option<State>, ReadError> {
        let mut replay = Replay::before(self.store, session, device, self.epoch_ends, until).await?;
        replay.run(until, |_, _, _| Go::On).await?;
        let (chunk, time_ns) =
            within.map_or((None, session.info.started_ns), |(chunk, time_ns)| (Some(chunk), time_ns));
        let next_end = self.ends(session, device).find(|end| end.at_event >= until);
        let (epoch, step) = next_end.map_or_else(
            || chunk.map_or((0, 0), |chunk| (chunk.index.last_epoch, chunk.index.last_step)),
            |end| (end.epoch, end.step),
        );
        // Marks have the step itself. An epoch's end and a chunk only have a later step.
        let cursor = MarkCursor::at(self.store, session.key, time_ns).await?;
        Ok(Some(State {
            time_ns,
            at: until,
            epoch: cursor.epoch().unwrap_or(epoch),
            step: cursor.last_step().unwrap_or(step),
            counters: replay.map().counters(),
            rows: replay.map().site_rows(),
            exact: chunk.is_none_or(|chunk| chunk.levels.exact) && !replay.jumped(),
        }))
    }
}

/// Returns an error if retention removed the peak.
pub(super) fn peak_is_stored(
    session: &SessionRow,
    device: Option<&DeviceRow>,
    highest: &ChunkRow,
) -> Result<(), ReadError> {
    if session.expired_events == 0 {
        return Ok(());
    }
    let peak = device.and_then(|device| device.latest).map(|latest| latest.peaks.allocated_bytes);
    match peak {
        Some(peak) if highest.levels.allocated_max >= peak => Ok(()),
        peak => {
            let was = peak.map_or(String::new(), |peak| format!(" ({})", HumanBytes::of(peak)));
            let what = format!("the moment at which rank {} had most allocated{was}", session.info.rank);
            Err(ReadError::Expired { what })
        }
    }
}

/// Returns an error if the selected part of the job begins with events that retention removed, because its peak may
/// have been among them. `first` is the first stored chunk of that part.
pub(super) fn part_is_stored(session: &SessionRow, first: Option<&ChunkRow>, span: Span) -> Result<(), ReadError> {
    let begins_before =
        first.is_none_or(|first| span.events.0 < first.index.first_event && span.times_ns.0 < first.index.first_ns);
    if session.expired_events == 0 || !begins_before {
        return Ok(());
    }
    let what = format!("the beginning of this part of rank {}, whose highest moment was asked for,", session.info.rank);
    Err(ReadError::Expired { what })
}

async fn answer(
    store: &dyn Store,
    (session, device): (&SessionRow, u8),
    state: State,
    (budget, is_classed): (usize, bool),
) -> Result<RankSites, ReadError> {
    let stacks = dictionary(store, session.key).await?;
    let classes = match is_classed {
        true => classes(store, (session, device), &state, &stacks).await?,
        false => HashMap::new(),
    };
    let mut by_stack: BTreeMap<StackId, Site> = BTreeMap::new();
    for row in &state.rows {
        let site = by_stack.entry(row.stack).or_default();
        // Saturating: the figures come from the network.
        site.live_bytes = site.live_bytes.saturating_add(row.bytes);
        site.live_blocks = site.live_blocks.saturating_add(row.blocks);
        site.births.push(Birth { epoch: row.birth_epoch, live_bytes: row.bytes, live_blocks: row.blocks });
    }
    let mut by_bytes: Vec<(StackId, Site)> = by_stack.into_iter().collect();
    by_bytes.sort_by_key(|(_, site)| std::cmp::Reverse(site.live_bytes));
    let (mut sites, mut further, mut size) = (Vec::new(), Further::default(), 0);
    for (stack, site) in by_bytes {
        if size < budget {
            let Site { live_bytes, live_blocks, births, .. } = site;
            let class = classes.get(&stack).map(|class| class.name().to_owned());
            let named = Site::new(stacks.frames(stack).map(Frame::from).collect());
            let site = Site { live_bytes, live_blocks, births, class, ..named };
            size += as_json(&site);
            sites.push(site);
        } else {
            further.sites += 1;
            further.live_bytes = further.live_bytes.saturating_add(site.live_bytes);
            further.live_blocks = further.live_blocks.saturating_add(site.live_blocks);
        }
    }
    Ok(RankSites {
        rank: session.info.rank,
        process: String::new(),
        device: u32::from(device),
        at: Time(state.time_ns),
        epoch: state.epoch,
        step: state.step,
        exact: state.exact,
        allocated_bytes: Some(state.counters.allocated_bytes),
        reserved_bytes: Some(state.counters.reserved_bytes),
        sites,
        further: (further.sites > 0).then_some(further),
        merged: state.rows.len() > SITES_MAX,
    })
}

/// The approximate bytes of a site as JSON.
fn as_json(site: &Site) -> usize {
    let frame = |frame: &Frame| frame.function.len() + frame.file.len() + PART_BYTES;
    SITE_BYTES + site.births.len() * PART_BYTES + site.stack.iter().map(frame).sum::<usize>()
}

/// The class of each site's memory, if nearly all of it is of one class. It comes from the events around the moment, or
/// from the site's stack if these events have expired.
async fn classes(
    store: &dyn Store,
    (session, device): (&SessionRow, u8),
    state: &State,
    stacks: &StackDictionary,
) -> Result<HashMap<StackId, Class>, ReadError> {
    let chunks = store.chunks(session.key, device, Selection::default()).await?;
    let shown = match Classed::around(store, session, device, &chunks, (state.at, Until::Later), stacks).await {
        Ok(around) => around.by_stack_at(state.at),
        Err(ReadError::Expired { .. }) => HashMap::new(),
        Err(error) => return Err(error),
    };
    let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
    let by_rule = Classifier::new(&resolve).by_row(&state.rows, &HashMap::new());
    let each = state.rows.iter().zip(by_rule);
    Ok(each
        .filter_map(|(row, class)| Some((row.stack, shown.get(&row.stack).copied().unwrap_or(Some(class))?)))
        .collect())
}
