//! The driver's list of processes, which gives the device memory of each.

use memctl_model::Sample;

use super::watch::RankWatch;

/// Whether the driver's list of processes shows this process as its allocator does, in at least half of the
/// measurements: both are from different moments.
pub(super) fn is_listed(watch: &RankWatch) -> bool {
    let samples = watch.history.samples.all().iter();
    let known = samples
        .filter_map(|sample| Some((sample.process_used_bytes?, sample.reserved_bytes.filter(|&held| held > 0)?)));
    let (mut all, mut listed) = (0_usize, 0_usize);
    for (used, held) in known {
        all += 1;
        listed += usize::from(Sample { process_used_bytes: Some(used), ..Sample::default() }.lists_process(held));
    }
    2 * listed >= all
}
