//! The allocator's settings that affect where a block is placed.

/// `PYTORCH_CUDA_ALLOC_CONF` as the allocator interpreted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorSettings {
    /// The string that the user set; empty if there is none.
    pub conf: String,
    /// `max_split_size_mb` in bytes; `None` = unlimited.
    pub max_split_size: Option<u64>,
    /// `roundup_power2_divisions` for sizes from 2^20 (and below) to 2^35 (and above); 0 = off.
    pub roundup_power2_divisions: [u32; 16],
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// Bytes of an ordinary large segment (`large_segment_size_mb`), 20 MiB by default.
    pub large_segment_size: u64,
    /// `garbage_collection_threshold` in thousandths; 0 = off.
    pub garbage_collection_permille: u32,
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        Self {
            conf: String::new(),
            max_split_size: None,
            roundup_power2_divisions: [0; 16],
            expandable_segments: false,
            large_segment_size: crate::allocator::LARGE_SEGMENT_BYTES,
            garbage_collection_permille: 0,
        }
    }
}
