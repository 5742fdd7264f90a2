//! Counts exports of metrics by OTLP.
//!
//! Guarantees: counting never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Outcomes of exports; clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    counts: Arc<[AtomicU64; 2]>,
}

impl Exports {
    /// The number of delivered exports, and the number of failed exports.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        // Relaxed: these are only statistics.
        let [delivered, failed] = &*self.counts;
        (delivered.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }

    /// Counts one export.
    pub(crate) fn note(&self, delivered: bool) {
        self.counts[usize::from(!delivered)].fetch_add(1, Ordering::Relaxed);
    }
}
