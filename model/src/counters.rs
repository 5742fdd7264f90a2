//! The allocator's counters at one moment, in PyTorch's terms.

/// `*.all.current` of `torch.cuda.memory_stats()`, and figures that only a block map has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Bytes of allocated blocks, by their (rounded, possibly unsplit) size: `allocated_bytes.all.current`.
    pub allocated_bytes: u64,
    /// Bytes of allocated blocks and of blocks whose free waits for another stream: `active_bytes.all.current`.
    pub active_bytes: u64,
    /// Bytes that the process got from the driver: `reserved_bytes.all.current`.
    pub reserved_bytes: u64,
    /// Bytes as requested, before rounding: `requested_bytes.all.current`.
    pub requested_bytes: u64,
    /// Free bytes in segments that are partly in use: `inactive_split_bytes.all.current`.
    pub inactive_split_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// Number of allocated blocks.
    pub allocated_blocks: u64,
    /// Number of segments held.
    pub segments: u64,
}

impl Counters {
    /// Share of the reserved bytes that no live block uses, 0..1; `None` if nothing is reserved.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> Option<f64> {
        (self.reserved_bytes > 0)
            .then(|| (self.reserved_bytes.saturating_sub(self.allocated_bytes)) as f64 / self.reserved_bytes as f64)
    }
}

/// Highest values since the session began, like PyTorch's `*.peak` since its last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Peaks {
    /// Highest `allocated_bytes`.
    pub allocated_bytes: u64,
    /// Highest `reserved_bytes`.
    pub reserved_bytes: u64,
}

impl Peaks {
    /// Raises the peaks to the counters' values.
    pub fn raise(&mut self, counters: &Counters) {
        self.allocated_bytes = self.allocated_bytes.max(counters.allocated_bytes);
        self.reserved_bytes = self.reserved_bytes.max(counters.reserved_bytes);
    }
}
