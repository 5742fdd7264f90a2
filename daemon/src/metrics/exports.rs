//! How often metrics were sent to a receiver of OTLP.
//!
//! Guarantees: counting never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How exports went; clones count the same.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    counts: Arc<[AtomicU64; 2]>,
}

impl Exports {
    /// How many were delivered, and how many were not.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        // Relaxed: figures for people.
        let [delivered, failed] = &*self.counts;
        (delivered.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }

    /// Counts one.
    pub(crate) fn note(&self, delivered: bool) {
        self.counts[usize::from(!delivered)].fetch_add(1, Ordering::Relaxed);
    }
}
