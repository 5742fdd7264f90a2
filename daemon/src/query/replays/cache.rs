//! A cache of replay results. It also records which replay is running.
//!
//! Guarantees: the cache has at most [`KEPT`] results. The least recently used result is evicted first.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The maximum number of results of one kind. Each result takes some kilobytes.
const KEPT: usize = 64;

/// A cache of one kind of results; see the module.
pub(super) struct Cache<K, V> {
    kept: Mutex<VecDeque<(K, V)>>,
    running: Mutex<Option<K>>,
}

impl<K: PartialEq, V: Clone> Cache<K, V> {
    pub(super) fn new() -> Self {
        Self { kept: Mutex::new(VecDeque::new()), running: Mutex::new(None) }
    }

    pub(super) fn known(&self, is_it: impl Fn(&K) -> bool) -> Option<V> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // If several results match, the most recently used one is taken.
        let at = kept.iter().rposition(|(known, _)| is_it(known))?;
        let one = kept.remove(at)?;
        let done = one.1.clone();
        kept.push_back(one);
        Some(done)
    }

    pub(super) fn keep(&self, key: K, done: V) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| *known != key);
        kept.push_back((key, done));
        while kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// Records which replay is running.
    pub(super) fn runs(&self, key: Option<K>) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    pub(super) fn is_running(&self, is_it: impl Fn(&K) -> bool) -> bool {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_longest_ago_goes_first() {
        let kept = Cache::new();
        (0..KEPT).for_each(|number| kept.keep(number, ()));
        assert!(kept.known(|known| *known == 0).is_some(), "and is the last to go now");
        kept.keep(200, ());
        let is_kept = |number: usize| kept.known(|known| *known == number).is_some();
        assert!(is_kept(0) && !is_kept(1) && is_kept(2) && is_kept(200));
    }
}
