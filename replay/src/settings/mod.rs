//! The allocator's settings that affect where a block is placed, and the versions in which this differs.
//!
//! Guarantees: the defaults are PyTorch's. `parse` validates texts.

mod lexer;
mod parse;
mod roundup;
mod version;

use memctl_model::AllocatorSettings;

use memctl_model::allocator::LARGE_SEGMENT_BYTES;
pub use parse::{ConfError, Remark};
pub use version::{Ties, Version};

/// The settings in `PYTORCH_CUDA_ALLOC_CONF` as an allocator understands them.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// `max_split_size_mb` in bytes; `None` = unlimited.
    pub max_split_bytes: Option<u64>,
    /// `max_non_split_rounding_mb` in bytes: how much larger than the request an unsplit block may be.
    pub max_non_split_rounding_bytes: u64,
    /// `large_segment_size_mb` in bytes.
    pub large_segment_bytes: u64,
    /// `garbage_collection_threshold`, a share of the memory limit; 0 = off.
    pub garbage_collection_threshold: f64,
    /// `roundup_power2_divisions` for sizes from 2^20 (and below) to 2^35 (and above); 0 = off.
    pub roundup_power2_divisions: [u32; 16],
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// `per_process_memory_fraction`; `None` = all of the device.
    pub memory_fraction: Option<f64>,
    /// Which of equally large blocks is taken. The version determines it; it is not a setting.
    pub ties: Ties,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            max_split_bytes: None,
            max_non_split_rounding_bytes: LARGE_SEGMENT_BYTES,
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; 16],
            expandable_segments: false,
            memory_fraction: None,
            ties: Ties::default(),
        }
    }
}

/// Maximum size of a large segment, 1 TiB; no device has as much.
const LARGE_SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// The recorded size of a large segment if an allocator can have it; otherwise the default.
fn usable(large_segment: u64) -> u64 {
    let may_be = large_segment > LARGE_SEGMENT_BYTES / 2
        && large_segment <= LARGE_SEGMENT_BYTES_MAX
        && large_segment.is_multiple_of(1 << 20);
    if may_be { large_segment } else { LARGE_SEGMENT_BYTES }
}

impl Conf {
    /// Parses a text as the allocator of this version does. Parts that it would ignore give remarks.
    ///
    /// # Errors The allocator would reject the text, or it packs in a way that cannot be replayed.
    pub fn parse(text: &str, version: Version) -> Result<(Self, Vec<Remark>), ConfError> {
        parse::parse(text, version)
    }

    /// The settings of a recording. Its fields contain what the allocator understood; its text supplies the rest.
    #[must_use]
    pub fn recorded(settings: &AllocatorSettings, version: Version) -> Self {
        let said = parse::parse(&settings.conf, version).map(|(conf, _)| conf).unwrap_or_default();
        let AllocatorSettings {
            conf: _,
            max_split_size,
            roundup_power2_divisions,
            expandable_segments,
            large_segment_size,
            garbage_collection_permille,
        } = settings;
        let large_segment_bytes = usable(*large_segment_size);
        let collection = f64::from(*garbage_collection_permille) / 1000.0;
        // The text has all digits of the threshold; the field has only three.
        let is_said = (said.garbage_collection_threshold - collection).abs() < 0.001;
        Self {
            max_split_bytes: *max_split_size,
            max_non_split_rounding_bytes: said.max_non_split_rounding_bytes.max(large_segment_bytes),
            large_segment_bytes,
            garbage_collection_threshold: if is_said { said.garbage_collection_threshold } else { collection },
            roundup_power2_divisions: *roundup_power2_divisions,
            expandable_segments: *expandable_segments,
            memory_fraction: said.memory_fraction,
            ties: version.ties(),
        }
    }

    /// The value of `max_split_size` with which PyTorch compares.
    pub(crate) fn split_limit(&self) -> u64 {
        self.max_split_bytes.unwrap_or(u64::MAX)
    }
}
