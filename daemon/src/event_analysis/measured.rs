//! Reads measurements of a device around a moment, and the increase of its allocator retries.
//!
//! Guarantees: only the samples of half a minute are read. A quantity that was not measured in that time is `None`.

use memctl_model::Sample;
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use crate::job_data::error::ReadError;
use crate::job_data::samples::fold;
use crate::job_data::stacks::open;
use crate::store::{DeviceRow, Selection, SessionRow, Store};

/// NVML and host memory are sampled once a second, counters at every step. So half a minute has samples of both, even
/// with slow steps.
const LOOK_BACK_NS: u64 = 30_000_000_000;
/// The most items of samples that are decoded.
const ITEMS_MAX: usize = 64;

/// The newest value of each quantity in the half minute before `time_ns`. The device's size may also come from its
/// session.
pub(crate) async fn before(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    time_ns: u64,
) -> Result<Option<Sample>, ReadError> {
    let since = time_ns.saturating_sub(LOOK_BACK_NS);
    let mut known: Option<Sample> = None;
    for sample in samples(store, session, device, (since, time_ns)).await? {
        match &mut known {
            Some(known) => fold(known, sample),
            None => known = Some(sample),
        }
    }
    if let Some(total) = device.info.total_bytes {
        let known = known.get_or_insert(Sample { device: device.info.index, time_ns, ..Sample::default() });
        known.device_total_bytes = known.device_total_bytes.or(Some(total));
    }
    Ok(known)
}

/// The same as [`before`]. If the device was not measured in that time, it uses the first measurements in the half
/// minute after `time_ns`. The memory use of processes is read only once a second, so this value alone may come from
/// the later measurements.
pub(crate) async fn nearest(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    time_ns: u64,
) -> Result<Option<Sample>, ReadError> {
    let earlier = before(store, session, device, time_ns).await?;
    if earlier.is_some_and(|sample| sample.device_used_bytes.is_some() && sample.process_used_bytes.is_some()) {
        return Ok(earlier);
    }
    let until = time_ns.saturating_add(LOOK_BACK_NS);
    let mut later: Option<Sample> = None;
    // In reverse order, so that the first value of each quantity replaces later ones.
    for sample in samples(store, session, device, (time_ns, until)).await?.into_iter().rev() {
        match &mut later {
            Some(later) => fold(later, sample),
            None => later = Some(sample),
        }
    }
    Ok(joined(earlier, later))
}

/// Measurements around a moment, and their times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around {
    /// The figures.
    pub sample: Option<Sample>,
    /// When the device's use was measured.
    pub device_ns: Option<u64>,
    /// When this process's use was measured.
    pub process_ns: Option<u64>,
}

/// The measurements of the device and of its processes nearest to a moment, within half a minute on either side.
pub(crate) async fn around(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    time_ns: u64,
) -> Result<Around, ReadError> {
    let times_ns = (time_ns.saturating_sub(LOOK_BACK_NS), time_ns.saturating_add(LOOK_BACK_NS));
    let mut around = of_nearest(&samples(store, session, device, times_ns).await?, time_ns);
    if let Some(total) = device.info.total_bytes {
        let known = around.sample.get_or_insert(Sample { device: device.info.index, time_ns, ..Sample::default() });
        known.device_total_bytes = known.device_total_bytes.or(Some(total));
    }
    Ok(around)
}

fn of_nearest(samples: &[Sample], time_ns: u64) -> Around {
    let nearest = |known: fn(&Sample) -> bool| {
        samples.iter().filter(|sample| known(sample)).min_by_key(|sample| sample.time_ns.abs_diff(time_ns))
    };
    let device = nearest(|sample| sample.device_used_bytes.is_some());
    let process = nearest(|sample| sample.process_used_bytes.is_some());
    let others = nearest(|sample| sample.foreign_used_bytes.is_some());
    let nccl = nearest(|sample| sample.nccl_bytes.is_some());
    let limit = nearest(|sample| sample.limit_bytes.is_some());
    let sample = device.or(process).map(|&first| Sample {
        process_used_bytes: process.and_then(|sample| sample.process_used_bytes),
        foreign_used_bytes: others.and_then(|sample| sample.foreign_used_bytes),
        nccl_bytes: nccl.and_then(|sample| sample.nccl_bytes),
        limit_bytes: limit.and_then(|sample| sample.limit_bytes),
        device_total_bytes: samples.iter().find_map(|sample| sample.device_total_bytes),
        ..first
    });
    Around { sample, device_ns: device.map(|sample| sample.time_ns), process_ns: process.map(|sample| sample.time_ns) }
}

/// The earlier measurement, completed by the later one.
fn joined(earlier: Option<Sample>, later: Option<Sample>) -> Option<Sample> {
    let (Some(earlier), Some(later)) = (earlier, later) else { return earlier.or(later) };
    if earlier.device_used_bytes.is_none() {
        let device_total_bytes = later.device_total_bytes.or(earlier.device_total_bytes);
        return Some(Sample { device_total_bytes, ..later });
    }
    Some(Sample {
        process_used_bytes: earlier.process_used_bytes.or(later.process_used_bytes),
        foreign_used_bytes: earlier.foreign_used_bytes.or(later.foreign_used_bytes),
        ..earlier
    })
}

/// How often the allocator emptied its cache and tried again between two moments.
pub(crate) async fn retries(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    times_ns: (u64, u64),
) -> Result<Option<u64>, ReadError> {
    let counts: Vec<u64> = samples(store, session, device, times_ns)
        .await?
        .into_iter()
        .filter_map(|sample| sample.alloc_retries)
        .collect();
    Ok(counts.iter().max().zip(counts.iter().min()).filter(|_| counts.len() > 1).map(|(most, least)| most - least))
}

async fn samples(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    times_ns: (u64, u64),
) -> Result<Vec<Sample>, ReadError> {
    let selection = Selection { times_ns: Some(times_ns), ..Selection::default() };
    let rows = store.items(session.key, ItemKind::Samples, None, selection).await?;
    let mut all = Vec::new();
    for row in &rows[rows.len().saturating_sub(ITEMS_MAX)..] {
        if let Content::Samples(samples) = open(session.key, row)? {
            all.extend(samples);
        }
    }
    all.retain(|sample| sample.device == device.info.index && (times_ns.0..=times_ns.1).contains(&sample.time_ns));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_the_one_measured_nearest() {
        let sample = |time_ns, used, process| Sample {
            time_ns,
            device_used_bytes: used,
            process_used_bytes: process,
            ..Sample::default()
        };
        let samples = [sample(10, Some(1), Some(4)), sample(48, Some(2), None), sample(90, None, Some(6))];
        let around = of_nearest(&samples, 50);
        let known = around.sample.unwrap();
        assert_eq!((known.device_used_bytes, around.device_ns), (Some(2), Some(48)));
        assert_eq!((known.process_used_bytes, around.process_ns), (Some(4), Some(10)), "ties go to the earlier");
        assert!(of_nearest(&[], 50).sample.is_none());
    }

    #[test]
    fn what_was_measured_behind_a_moment_completes_what_was_measured_before_it() {
        let sample = |used, process, total| {
            Some(Sample {
                device_used_bytes: used,
                process_used_bytes: process,
                foreign_used_bytes: process.map(|_| 7),
                device_total_bytes: total,
                ..Sample::default()
            })
        };
        let figures = |sample: Option<Sample>| {
            sample.map(|s| (s.device_used_bytes, s.process_used_bytes, s.foreign_used_bytes, s.device_total_bytes))
        };
        let later = sample(Some(200), Some(150), None);
        assert_eq!(
            figures(joined(sample(Some(100), None, Some(900)), later)),
            Some((Some(100), Some(150), Some(7), Some(900)))
        );
        assert_eq!(
            figures(joined(sample(None, None, Some(900)), later)),
            Some((Some(200), Some(150), Some(7), Some(900)))
        );
        assert_eq!(figures(joined(sample(Some(100), None, None), None)), Some((Some(100), None, None, None)));
        assert_eq!(figures(joined(None, later)), figures(later));
        assert_eq!(joined(None, None), None);
    }
}
