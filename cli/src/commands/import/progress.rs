//! Progress bars of an import, one per rank, on standard error and only on a terminal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::hosting::{OnProgress, Progress};
use crate::render::text::count;

/// The bars of one import.
pub struct Bars {
    visible: bool,
    all: MultiProgress,
    ranks: Mutex<BTreeMap<u32, ProgressBar>>,
}

impl Bars {
    fn update(&self, progress: Progress) {
        if !self.visible {
            return;
        }
        let Progress { rank, bytes_read, bytes_total, events } = progress;
        // A poisoned lock is still usable: the bars stay valid even if another thread panicked while drawing.
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = ranks.entry(rank).or_insert_with(|| self.all.add(bar(rank)));
        if let Some(total) = bytes_total {
            bar.set_length(total);
        }
        bar.set_position(bytes_read);
        bar.set_message(format!("{} events", count(events)));
    }

    /// Removes the bars from the screen.
    pub fn finish(&self) {
        for bar in self.ranks.lock().unwrap_or_else(PoisonError::into_inner).values() {
            bar.finish_and_clear();
        }
    }
}

fn bar(rank: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>9} [{bar:30}] {bytes:>10} / {total_bytes:<10} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> ")).with_prefix(format!("rank {rank}"))
}

/// Progress bars, and the callback that updates them.
#[must_use]
pub fn bars(visible: bool) -> (Arc<Bars>, OnProgress) {
    let bars = Arc::new(Bars { visible, all: MultiProgress::new(), ranks: Mutex::default() });
    let shared = Arc::clone(&bars);
    (bars, Arc::new(move |progress| shared.update(progress)))
}
