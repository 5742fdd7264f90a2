//! Decides what a size of device does to a training: by the peaks, else by replays.
//!
//! Guarantees: a size fits only if it fits every process, and fails if it fails one. A failure names its request where
//! a replay found it.

use memctl_analysis::need::{Bound, CLASSES, ReserveLimit};
use memctl_model::HumanBytes;

use super::rows::{Replay, Row};
use super::{Failure, Fit, Size};
use crate::what_if::Setting;

/// A size to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSize {
    /// Its name.
    pub name: String,
    /// Whether the question named it.
    pub is_asked: bool,
    /// Bytes that programs can use.
    pub usable_bytes: u64,
}

/// The usual sizes and those of the question, the smallest first.
#[must_use]
pub fn device_sizes(named: &[u64]) -> Vec<DeviceSize> {
    let usual = CLASSES.iter().map(|class| DeviceSize {
        name: class.name.to_owned(),
        is_asked: false,
        usable_bytes: class.usable_bytes,
    });
    let named = named.iter().map(|&usable_bytes| DeviceSize {
        name: HumanBytes::of(usable_bytes).to_string(),
        is_asked: true,
        usable_bytes,
    });
    let mut sizes: Vec<DeviceSize> = usual.chain(named).collect();
    sizes.sort_by_key(|size| (size.usable_bytes, size.is_asked));
    sizes.dedup();
    sizes
}

/// Whether all requests are served on a size, for one row.
enum Outcome {
    Fits,
    FitsAfterRetries(u64),
    Fails(Failure),
    Unknown(String),
}

impl Row {
    /// The sizes that need a replay, or whose failing request a replay finds, with what the allocator may reserve there.
    #[must_use]
    pub fn limits<'s>(&self, sizes: &'s [DeviceSize]) -> Vec<(&'s DeviceSize, ReserveLimit)> {
        let Some(demand) = self.demand else { return Vec::new() };
        let sizes = sizes.iter().filter(|size| demand.bound(size.usable_bytes) != Bound::Fits);
        sizes.map(|size| (size, demand.allowed(size.usable_bytes))).collect()
    }

    /// Whether a replay decides one of the sizes.
    #[must_use]
    pub fn is_open(&self, sizes: &[DeviceSize]) -> bool {
        self.demand.is_some_and(|demand| sizes.iter().any(|size| demand.bound(size.usable_bytes) == Bound::Open))
    }

    fn outcome(&self, size: &DeviceSize) -> Outcome {
        let Some(demand) = self.demand else {
            return Outcome::Unknown("its peak is not recorded".to_owned());
        };
        let replayed = match &self.replay {
            Replay::Exact(settings) => self.replayed(size, settings),
            Replay::Not(_) => None,
        };
        match (demand.bound(size.usable_bytes), &self.replay, replayed) {
            (Bound::Fits, ..) => Outcome::Fits,
            (Bound::Fails, _, setting) => Outcome::Fails(self.failure(setting)),
            (Bound::Open, Replay::Not(why), _) => Outcome::Unknown(why.clone()),
            (Bound::Open, _, Some(setting)) if setting.out_of_memory.is_some() => {
                Outcome::Fails(self.failure(Some(setting)))
            }
            (Bound::Open, ..) if demand.has_failed => {
                Outcome::Unknown("what follows its failed request is not recorded".to_owned())
            }
            (Bound::Open, _, Some(setting)) => match setting.retries {
                0 => Outcome::Fits,
                retries => Outcome::FitsAfterRetries(retries),
            },
            (Bound::Open, _, None) => Outcome::Unknown("its replay lacks this size".to_owned()),
        }
    }

    /// The setting of a replay under the limit of a size.
    fn replayed<'s>(&self, size: &DeviceSize, settings: &'s [Setting]) -> Option<&'s Setting> {
        let limit = self.demand?.allowed(size.usable_bytes).bytes;
        settings.iter().find(|setting| setting.limit_bytes == Some(limit))
    }

    fn failure(&self, setting: Option<&Setting>) -> Failure {
        let ended = setting.and_then(|setting| setting.out_of_memory.as_ref());
        Failure {
            rank: self.device.rank,
            process: self.device.process.clone(),
            device: self.device.device,
            event: ended.map(|ended| ended.event),
            step: ended.and_then(|ended| ended.step),
            requested_bytes: ended.map(|ended| ended.requested_bytes),
            site: ended.and_then(|ended| ended.site.clone()),
        }
    }

    fn named(&self, why: &str) -> String {
        format!("{}: {why}", crate::naming::name_of(&self.device.process, self.device.rank))
    }
}

/// What a size does to all rows.
pub(super) fn size(rows: &[Row], asked: &DeviceSize) -> Size {
    let DeviceSize { name, is_asked, usable_bytes } = asked.clone();
    let mut size = Size { name, asked: is_asked, usable_bytes, outcome: Fit::Unknown, ..Size::default() };
    let (mut retries, mut unknown, mut failures) = (0, None, Vec::new());
    for row in rows {
        match row.outcome(asked) {
            Outcome::Fits => {}
            Outcome::FitsAfterRetries(times) => retries = retries.max(times),
            Outcome::Fails(failure) => failures.push(failure),
            Outcome::Unknown(why) => unknown = unknown.or_else(|| Some(row.named(&why))),
        }
    }
    // The earliest step. A request that a replay found comes before a mere comparison of peaks.
    let earliest = |it: &Failure| (it.event.is_none(), it.step.is_none(), it.step, it.rank);
    if let Some(failure) = failures.into_iter().min_by_key(earliest) {
        (size.outcome, size.failure) = (Fit::Fails, Some(failure));
    } else if rows.is_empty() {
        size.reason = Some("no process of the job used a device".to_owned());
    } else if unknown.is_some() {
        size.reason = unknown;
    } else if retries > 0 {
        (size.outcome, size.retries) = (Fit::FitsAfterRetries, Some(retries));
    } else {
        size.outcome = Fit::Fits;
    }
    size
}
