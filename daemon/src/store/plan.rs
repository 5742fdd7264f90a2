//! Decides what an append changes: which items are new, and the resulting sums. Both databases use this rule.
//!
//! Guarantees: pure. The same appends on the same state give the same plan, so both databases count alike. The plan of
//! an append that is already stored is empty.
//! Refuses: everything that [`Append::check`] refuses, unknown sessions, and items after a session's end.

use std::collections::{BTreeMap, BTreeSet};

use memctl_model::{Dropped, SessionEnd, SessionInfo};

use super::rows::{Append, DeviceUpdate, EpochEndRow, Gap, NewItem, SessionKey, SessionRow};
use super::{StoreError, wire_form};

/// Sums stop at this limit instead of overflowing: databases count in signed 64 bits.
pub(super) const SUM_MAX: u64 = i64::MAX as u64;

/// Adds counts, up to [`SUM_MAX`].
pub(super) fn add(sum: u64, more: u64) -> u64 {
    sum.saturating_add(more).min(SUM_MAX)
}

/// The stored checksum of a payload.
pub(super) fn checksum(payload: &[u8]) -> i64 {
    i64::from(crc32c::crc32c(payload))
}

/// The changing part of a session's row.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct SessionState {
    pub job: i64,
    pub durable_seq: u64,
    pub heard_ns: u64,
    pub end: Option<SessionEnd>,
    pub events: u64,
    pub stored_bytes: u64,
    pub stored_items: u64,
    pub dropped: Dropped,
    pub expired_events: u64,
    pub duplicates: u64,
    pub missing_items: u64,
    /// Whether segments are expandable; `None` until one was recorded.
    pub expandable: Option<bool>,
}

impl SessionState {
    /// The row for callers.
    ///
    /// The recorded segments take precedence over the exported setting, which may be misspelt, set too late, or
    /// overruled.
    pub(super) fn into_row(self, key: SessionKey, mut info: SessionInfo) -> SessionRow {
        let Self {
            job,
            durable_seq,
            heard_ns,
            end,
            events,
            stored_bytes,
            stored_items,
            dropped,
            expired_events,
            duplicates,
            missing_items,
            expandable,
        } = self;
        let exported = info.settings.expandable_segments;
        info.settings.expandable_segments = expandable.unwrap_or(exported);
        SessionRow {
            key,
            job,
            info,
            durable_seq,
            heard_ns,
            end,
            events,
            stored_bytes,
            stored_items,
            dropped,
            expired_events,
            duplicates,
            missing_items,
            overruled: exported && expandable == Some(false),
        }
    }
}

/// An item to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedItem<'a> {
    pub job: i64,
    pub session: SessionKey,
    pub item: &'a NewItem,
}

/// Everything that one transaction writes.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub items: Vec<PlannedItem<'a>>,
    pub gaps: Vec<(SessionKey, Gap)>,
    /// One merged update per device, from all appends.
    pub devices: BTreeMap<(SessionKey, u8), DeviceUpdate>,
    /// By session, device and epoch; the last one wins.
    pub epoch_ends: BTreeMap<(SessionKey, u8, u32), &'a EpochEndRow>,
    /// The sessions' resulting states.
    pub sessions: BTreeMap<SessionKey, SessionState>,
}

/// The sessions of these appends, in ascending order; sessions are locked in this order.
pub(super) fn sessions_of(appends: &[Append]) -> BTreeSet<SessionKey> {
    appends.iter().map(|append| append.session).collect()
}

/// Plans appends, given the sessions' states and the items already stored above their durable seq.
pub(super) fn plan<'a>(
    place: &str,
    appends: &'a [Append],
    sessions: BTreeMap<SessionKey, SessionState>,
    mut present: BTreeSet<(SessionKey, u64)>,
) -> Result<Plan<'a>, StoreError> {
    let mut plan =
        Plan { items: Vec::new(), gaps: Vec::new(), devices: BTreeMap::new(), epoch_ends: BTreeMap::new(), sessions };
    for append in appends {
        let session = append.session;
        append.check().map_err(|what| StoreError::Refused { session, what })?;
        let Some(state) = plan.sessions.get(&session) else {
            return Err(StoreError::NoSession { place: place.into(), session });
        };
        let mut state = state.clone();
        let new: Vec<&NewItem> = append
            .items
            .iter()
            .filter(|item| item.seq > state.durable_seq && present.insert((session, item.seq)))
            .collect();
        if let (Some(first), true) = (new.first(), state.end.is_some()) {
            let what = format!("item {} comes after the session's end", first.seq);
            return Err(StoreError::Refused { session, what });
        }
        if !new.is_empty() || append.items.is_empty() {
            plan.figures(append, &new);
            plan.gaps(append, &mut state);
            state.take(append, &new);
        }
        state.heard_ns = state.heard_ns.max(append.heard_ns.min(SUM_MAX));
        plan.items.extend(new.into_iter().map(|item| PlannedItem { job: state.job, session, item }));
        plan.sessions.insert(session, state);
    }
    Ok(plan)
}

impl<'a> Plan<'a> {
    /// Devices and epoch ends.
    fn figures(&mut self, append: &'a Append, new: &[&NewItem]) {
        let partly = new.len() < append.items.len();
        // The figures of an item that is already stored were counted when it was stored.
        let is_known = |seq: u64| {
            let among = |items: &[&NewItem]| items.binary_search_by_key(&seq, |item| item.seq).is_ok();
            partly && !among(new) && append.items.binary_search_by_key(&seq, |item| item.seq).is_ok()
        };
        for update in append.devices.iter().filter(|update| !is_known(update.seq)) {
            let mut update = update.clone();
            if partly && update.seq == 0 {
                (update.events, update.ooms) = chunk_sums(new, update.device);
            }
            match self.devices.entry((append.session, update.device)) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(DeviceUpdate {
                        events: add(0, update.events),
                        ooms: add(0, update.ooms),
                        epochs: add(0, update.epochs),
                        steps: add(0, update.steps),
                        ..update
                    });
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => merge(entry.get_mut(), &update),
            }
        }
        for end in append.epoch_ends.iter().filter(|end| !is_known(end.table_seq)) {
            self.epoch_ends.insert((append.session, end.device, end.epoch), end);
        }
    }

    /// Adds the gaps above the durable seq; a gap that begins below it is cut there.
    fn gaps(&mut self, append: &Append, state: &mut SessionState) {
        for gap in &append.gaps {
            let first = gap.first.max(state.durable_seq + 1);
            if first <= gap.last {
                self.gaps.push((append.session, Gap { first, last: gap.last }));
                state.missing_items = add(state.missing_items, gap.last - first + 1);
            }
        }
    }
}

impl SessionState {
    fn take(&mut self, append: &Append, new: &[&NewItem]) {
        for item in new {
            self.stored_bytes = add(self.stored_bytes, item.payload.len() as u64);
            self.stored_items = add(self.stored_items, 1);
            if item.is_chunk() {
                self.events = add(self.events, item.index.count);
            }
            // Until the session's last item reports drops by reason, only the figures in the chunks are known.
            let announced = item.levels.map_or(0, |levels| levels.dropped_before);
            self.dropped.ring_full = add(self.dropped.ring_full, announced);
        }
        for expandable in append.devices.iter().filter_map(|update| update.expandable) {
            // Custom pools have ordinary segments under any setting, so one expandable segment decides.
            self.expandable = Some(expandable || self.expandable.unwrap_or(false));
        }
        self.durable_seq = self.durable_seq.max(append.durable_seq);
        self.duplicates = add(self.duplicates, append.duplicates);
        self.dropped = Dropped {
            ring_full: self.dropped.ring_full.max(append.dropped.ring_full),
            spool_full: self.dropped.spool_full.max(append.dropped.spool_full),
            shutdown: self.dropped.shutdown.max(append.dropped.shutdown),
        };
        if self.end.is_none() {
            self.end.clone_from(&append.end);
        }
    }
}

/// Events and failed requests in the chunks of one device.
fn chunk_sums(items: &[&NewItem], device: u8) -> (u64, u64) {
    items
        .iter()
        .filter(|item| item.is_chunk() && item.index.device == Some(device))
        .fold((0, 0), |(events, ooms), item| {
            (add(events, item.index.count), add(ooms, item.levels.map_or(0, |levels| levels.ooms)))
        })
}

/// Adds counts and replaces latest values.
fn merge(into: &mut DeviceUpdate, next: &DeviceUpdate) {
    into.events = add(into.events, next.events);
    into.ooms = add(into.ooms, next.ooms);
    into.epochs = add(into.epochs, next.epochs);
    into.steps = add(into.steps, next.steps);
    into.latest = next.latest.or(into.latest);
    into.device_used_bytes = next.device_used_bytes.or(into.device_used_bytes);
    into.alloc_retries = next.alloc_retries.or(into.alloc_retries);
}

/// A session's stored description, if it can be stored.
pub(super) fn check_session(info: &SessionInfo) -> Result<Vec<u8>, StoreError> {
    let refused = |what: String| StoreError::Refused { session: 0, what };
    if info.started_ns > SUM_MAX {
        return Err(refused(format!("its start {} ns is beyond the year 2262", info.started_ns)));
    }
    wire_form::session_info(info).map_err(refused)
}
