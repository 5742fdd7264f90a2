//! Health watches: streams about the daemon's health, which need no authentication.
//!
//! Guarantees: a peer has at most [`WATCHES_PER_PEER`] watches, and each ends after [`WATCH_MAX`]. The client can then
//! start another watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::Status;

use super::connection_limits::Owner;

/// The path of the call.
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// The most watches of one peer at a time.
const WATCHES_PER_PEER: usize = 8;
/// The longest life of a watch.
pub(super) const WATCH_MAX: Duration = Duration::from_secs(600);

/// Number of watches by peer.
pub(super) type Watches = Arc<Mutex<HashMap<Owner, usize>>>;

/// One watch, which ends on drop.
pub(super) struct Watch {
    watches: Watches,
    whose: Owner,
}

impl Watch {
    /// Begins another watch of a peer.
    pub(super) fn begin(watches: &Watches, whose: Owner) -> Result<Self, Status> {
        let mut counts = watches.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(whose).or_default();
        if *count >= WATCHES_PER_PEER {
            let why = format!("{whose} has {WATCHES_PER_PEER} health watches already: use Check, or end one of them");
            return Err(Status::resource_exhausted(why));
        }
        *count += 1;
        Ok(Self { watches: watches.clone(), whose })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut counts = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_watches_a_few_times_and_others_are_not_kept_from_it() {
        let watches = Watches::default();
        let mut own: Vec<Watch> =
            (0..WATCHES_PER_PEER).map(|_| Watch::begin(&watches, Owner::User(1)).unwrap()).collect();
        assert!(Watch::begin(&watches, Owner::User(1)).is_err());
        assert!(Watch::begin(&watches, Owner::User(2)).is_ok());
        own.pop();
        assert!(Watch::begin(&watches, Owner::User(1)).is_ok());
        drop(own);
        assert!(watches.lock().unwrap().is_empty());
    }
}
