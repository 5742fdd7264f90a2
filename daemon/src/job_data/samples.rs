//! Finds the latest measurements: for each quantity, the newest sample that has it. For a run that has ended, they are
//! from before its teardown, in which workers exit and tensors are freed.
//!
//! Guarantees: only the samples of the last recorded half minute are read, regardless of the job's length.

use std::collections::{BTreeMap, HashMap};

use memctl_model::Sample;
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use super::error::ReadError;
use super::job::FoundJob;
use super::mark_cursor::last_boundary_ns;
use super::stacks::open;
use crate::store::{Selection, SessionKey, SessionRow, Store};

/// NVML and host memory are sampled once a second, counters at every step. So half a minute has samples of both, even
/// with slow steps.
const LOOK_BACK_NS: u64 = 30_000_000_000;
/// The most items of samples that are read. Each has up to a thousand samples.
const ITEMS_MAX: usize = 64;

/// The latest figures by session and device.
pub(crate) async fn latest(
    store: &dyn Store,
    found: &FoundJob,
) -> Result<HashMap<(SessionKey, u8), Sample>, ReadError> {
    let mut latest = HashMap::new();
    for session in &found.sessions {
        let since = last_ns(found, session).saturating_sub(LOOK_BACK_NS);
        let times = Selection { times_ns: Some((since, u64::MAX)), ..Selection::default() };
        let rows = store.items(session.key, ItemKind::Samples, None, times).await?;
        let mut last: Vec<Sample> = Vec::new();
        for row in &rows[rows.len().saturating_sub(ITEMS_MAX)..] {
            if let Content::Samples(samples) = open(session.key, row)? {
                last.extend(samples);
            }
        }
        let teardown_ns = match &session.end {
            // Without samples there is no teardown to exclude, and in a job of thousands of ranks each read takes time.
            Some(end) if !last.is_empty() => last_boundary_ns(store, session.key, end.time_ns).await?,
            _ => None,
        };
        for (device, sample) in before_teardown(&last, teardown_ns.unwrap_or(u64::MAX)) {
            latest.insert((session.key, device), sample);
        }
    }
    Ok(latest)
}

/// The last values of each device's samples before the teardown. A quantity that was only measured later is taken from
/// the later samples.
fn before_teardown(samples: &[Sample], teardown_ns: u64) -> BTreeMap<u8, Sample> {
    let mut known: BTreeMap<u8, Sample> = BTreeMap::new();
    let (before, behind): (Vec<&Sample>, Vec<&Sample>) =
        samples.iter().partition(|sample| sample.time_ns <= teardown_ns);
    for sample in behind.into_iter().chain(before.iter().copied()) {
        fold(known.entry(sample.device.0).or_default(), *sample);
    }
    for (device, known) in &mut known {
        let own = before.iter().filter(|sample| sample.device.0 == *device);
        known.time_ns = own.map(|sample| sample.time_ns).max().unwrap_or(known.time_ns);
    }
    known
}

/// Replaces values by higher ones.
pub(crate) fn raise(known: &mut Sample, other: &Sample) {
    known.device = other.device;
    known.time_ns = known.time_ns.max(other.time_ns);
    macro_rules! raise {
        ($($field:ident)*) => { $(known.$field = known.$field.max(other.$field);)* };
    }
    raise!(allocated_bytes active_bytes reserved_bytes peak_allocated_bytes peak_reserved_bytes alloc_retries ooms);
    raise!(device_used_bytes device_total_bytes process_used_bytes foreign_used_bytes utilisation_percent);
    raise!(host_rss_bytes children_rss_bytes nccl_bytes limit_bytes);
    known.sharing = known.sharing.or(other.sharing);
}

/// The last known time of a session.
fn last_ns(found: &FoundJob, session: &SessionRow) -> u64 {
    let devices = found.devices_of(session.key).iter();
    let boundary = devices.filter_map(|device| device.latest.map(|latest| latest.time_ns)).max();
    let end = session.end.as_ref().map(|end| end.time_ns);
    boundary.or(end).unwrap_or(session.info.started_ns)
}

/// Replaces the values of an earlier sample by those of a later one. Samples are in sending order.
pub(crate) fn fold(known: &mut Sample, later: Sample) {
    known.device = later.device;
    known.time_ns = known.time_ns.max(later.time_ns);
    macro_rules! replace {
        ($($field:ident)*) => { $(known.$field = later.$field.or(known.$field);)* };
    }
    replace!(allocated_bytes active_bytes reserved_bytes peak_allocated_bytes peak_reserved_bytes alloc_retries ooms);
    replace!(device_used_bytes device_total_bytes process_used_bytes foreign_used_bytes utilisation_percent);
    replace!(host_rss_bytes children_rss_bytes nccl_bytes limit_bytes);
    known.sharing = known.sharing.or(later.sharing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_sample_replaces_what_it_knows() {
        let mut known = Sample { time_ns: 5, device_used_bytes: Some(1), host_rss_bytes: Some(9), ..Sample::default() };
        fold(&mut known, Sample { time_ns: 7, device_used_bytes: Some(2), ..Sample::default() });
        fold(&mut known, Sample { time_ns: 6, utilisation_percent: Some(40), ..Sample::default() });
        let expected = Sample {
            time_ns: 7,
            device_used_bytes: Some(2),
            host_rss_bytes: Some(9),
            utilisation_percent: Some(40),
            ..Sample::default()
        };
        assert_eq!(known, expected);
    }

    #[test]
    fn what_is_measured_while_it_ends_replaces_nothing() {
        let sample = |time_ns, children, host| Sample {
            time_ns,
            children_rss_bytes: children,
            host_rss_bytes: host,
            ..Sample::default()
        };
        let samples = [sample(5, Some(700), None), sample(8, Some(600), Some(90)), sample(12, Some(0), Some(40))];
        let known = before_teardown(&samples, 10)[&0];
        assert_eq!((known.time_ns, known.children_rss_bytes, known.host_rss_bytes), (8, Some(600), Some(90)));
        // A value from the teardown is better than none. A running session has no teardown.
        assert_eq!(before_teardown(&samples, 3)[&0].children_rss_bytes, Some(0));
        assert_eq!(before_teardown(&samples, u64::MAX)[&0].children_rss_bytes, Some(0));
        let mut highest = Sample::default();
        samples.iter().for_each(|sample| raise(&mut highest, sample));
        assert_eq!((highest.children_rss_bytes, highest.host_rss_bytes), (Some(700), Some(90)));
    }
}
