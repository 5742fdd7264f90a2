//! The parts of a snapshot that were found while it is read, and remarks about missing parts.

use std::sync::Arc;

use memctl_model::{AllocatorSettings, Event, SegmentState};

use super::containers::{Annotation, DictSlot};
use super::events::EventLog;
use super::intern::Tables;
use super::keys;
use super::value::Kind;

/// Maximum number of top-level keys that an error names.
const NAMED_KEYS_MAX: usize = 12;
/// Nanoseconds between two events whose times are not recorded.
const STEP_WITHOUT_TIME_NS: u64 = 1_000;

/// Parts that a recording lacked or that could not be used. All are zero for a file of a current torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Remarks {
    /// Events without a time (torch 2.1). Each is placed one microsecond after the previous event.
    pub events_without_time: u64,
    /// Events with a time before that of the previous event; they got that event's time.
    pub times_put_right: u64,
    /// Trace entries with an unknown action; they were left out.
    pub unknown_actions: u64,
    /// Trace entries, segments, blocks or annotations with missing fields or fields of another type; they were left
    /// out.
    pub malformed_entries: u64,
    /// Events with allocator metadata or a compile context; neither is kept.
    pub events_with_metadata: u64,
    /// Stacks and frames beyond the limits of a session; they count as "no stack".
    pub stacks_refused: u64,
    /// Events and blocks that did not get the name of the memory's owner, because there are too many names.
    pub owners_refused: u64,
    /// Segments whose blocks overlapped, left gaps or exceeded the segment; they were corrected.
    pub irregular_segments: u64,
}

/// The parts that were read so far.
#[derive(Default)]
pub(crate) struct ReadParts {
    pub traces: Option<Vec<Option<Box<EventLog>>>>,
    pub segments: Vec<(u64, SegmentState)>,
    pub annotations: Vec<Annotation>,
    pub settings: Option<AllocatorSettings>,
    pub remarks: Remarks,
    /// Number of events in all traces.
    pub events: u64,
    /// Number of blocks, segments and annotations.
    pub blocks: u64,
    /// Number of traces with events whose device index is too large.
    pub traces_refused: u64,
    /// Keys that any trace entry had, as the bits of [`DictSlot::seen`].
    pub event_keys: u64,
    /// Whether the snapshot has a list of annotations.
    pub has_annotations: bool,
    /// Whether the snapshot has a list of pinned memory.
    pub has_host_segments: bool,
    pub top_keys: Vec<Arc<str>>,
}

impl ReadParts {
    /// Upper estimate of the bytes held in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        // An event has 32 bytes. A segment, the largest of the others, has 80 bytes plus spare capacity of its vector.
        self.events * 32 + self.blocks * 128
    }

    pub(crate) fn note_key(&mut self, key: &Arc<str>) {
        self.has_annotations |= &**key == "external_annotations";
        self.has_host_segments |= &**key == "host_segments";
        if self.top_keys.len() < NAMED_KEYS_MAX && !self.top_keys.contains(key) {
            self.top_keys.push(Arc::clone(key));
        }
    }

    /// Gives an event without a time a time, and prevents times from running backwards.
    #[inline]
    pub(crate) fn order_in_time(&mut self, event: &mut Event, last_ns: &mut u64, has_time: bool) {
        if !has_time {
            self.remarks.events_without_time += 1;
            event.time_ns = last_ns.saturating_add(STEP_WITHOUT_TIME_NS);
        } else if event.time_ns < *last_ns {
            self.remarks.times_put_right += 1;
            event.time_ns = *last_ns;
        }
        *last_ns = event.time_ns;
    }

    /// Reads `allocator_settings`.
    pub(crate) fn take_settings(&mut self, dict: &DictSlot, tables: &Tables) {
        let default = AllocatorSettings::default();
        let conf =
            dict.get(keys::ALLOC_CONF).id(Kind::Str).map(|id| tables.text_at(id).to_string()).unwrap_or_default();
        let mut divisions = [0; keys::ROUNDUPS];
        for (key, division) in (keys::ROUNDUP_FIRST..).zip(&mut divisions) {
            *division = dict.get(key).as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        }
        let threshold = dict.get(keys::GC_THRESHOLD).as_f64().filter(|t| (0.0..=1.0).contains(t)).unwrap_or(0.0);
        self.settings = Some(AllocatorSettings {
            // Torch writes -1 for "no limit".
            max_split_size: dict.get(keys::MAX_SPLIT_SIZE).as_u64(),
            roundup_power2_divisions: divisions,
            expandable_segments: dict.get(keys::EXPANDABLE_SEGMENTS).as_bool().unwrap_or(false),
            large_segment_size: large_segment_size(&conf).unwrap_or(default.large_segment_size),
            // The result is between 0 and 1000; the threshold was checked above.
            garbage_collection_permille: (threshold * 1000.0).round() as u32,
            conf,
        });
    }
}

/// The bytes of `large_segment_size_mb` in a configuration string; no key of the snapshot contains them.
fn large_segment_size(conf: &str) -> Option<u64> {
    let (_, value) = conf
        .split(',')
        .filter_map(|setting| setting.split_once(':'))
        .rfind(|(key, _)| key.trim() == "large_segment_size_mb")?;
    value.trim().parse::<u64>().ok()?.checked_mul(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::large_segment_size;

    #[test]
    fn the_size_of_large_segments_comes_from_the_string() {
        assert_eq!(large_segment_size("expandable_segments:True, large_segment_size_mb:32"), Some(32 << 20));
        assert_eq!(large_segment_size("roundup_power2_divisions:[256:1,512:2,>:8]"), None);
        assert_eq!(large_segment_size("large_segment_size_mb:x"), None);
    }
}
