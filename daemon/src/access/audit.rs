//! The audit log: deletions by callers or by retention, silences, tokens created or revoked, tests of receivers, holder
//! searches, and refused attempts at these. Refused attempts to push to a session are included.
//!
//! Guarantees: each of these actions has an entry in the store and a log line with target `audit`. Other refused calls
//! have only the log line. Texts are cut and have no control characters. The same
//! refusal of one caller is recorded at most once a second. Of different refusals of one caller, at most eight are
//! recorded per second. So refusals do not load the store. Refusals of unknown callers, however many, never prevent the
//! record of a known caller's refusal. Entries contain no secrets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Caller;
use crate::clock::now_ns;
use crate::store::{AuditRow, Store};

/// Limit of the characters of a text.
const TEXT_MAX: usize = 512;
/// The same refusal of a caller is recorded at most once within this time.
const REFUSED_EVERY: Duration = Duration::from_secs(1);
/// The most refusals that are remembered for this limit.
const REMEMBERED_MAX: usize = 1_024;
/// The most different refusals of one caller that are recorded within this time.
const PER_CALLER_MAX: usize = 8;

/// The audit log; see the module.
pub struct Audit {
    store: Arc<dyn Store>,
    refused: Recent,
    turned_away: Recent,
}

/// Refusals that were recorded recently: the caller, and what was refused.
#[derive(Default)]
struct Recent(Mutex<HashMap<(String, String), Instant>>);

impl Recent {
    /// Whether this refusal must be recorded, because the last such refusal is long enough ago and the caller had few
    /// others.
    fn is_news(&self, from: &str, what: &str) -> bool {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|_, since| since.elapsed() < REFUSED_EVERY);
        let key = (from.to_owned(), what.to_owned());
        let of_caller = refused.keys().filter(|(caller, _)| caller == from).count();
        if refused.len() >= REMEMBERED_MAX || of_caller >= PER_CALLER_MAX || refused.contains_key(&key) {
            return false;
        }
        refused.insert(key, Instant::now());
        true
    }
}

impl Audit {
    /// Creates the log over a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, refused: Recent::default(), turned_away: Recent::default() }
    }

    /// Records an action.
    pub async fn done(&self, caller: &Caller, action: &str, subject: &str, outcome: &str) {
        let (name, peer, tenant) = (&caller.name, &caller.peer, caller.tenant_name());
        tracing::info!(target: "audit", caller = name, peer, tenant, action, subject, outcome, "done");
        self.write(caller, action, subject, false, outcome).await;
    }

    /// Records a refusal.
    pub async fn refused(&self, caller: &Caller, action: &str, subject: &str, why: &str) {
        if !self.refused.is_news(&caller.name, &plain(&format!("{action} {subject} {why}"))) {
            return;
        }
        let (name, peer, tenant) = (&caller.name, &caller.peer, caller.tenant_name());
        tracing::warn!(target: "audit", caller = name, peer, tenant, action, subject, why, "refused");
        self.write(caller, action, subject, true, why).await;
    }

    /// Logs a refused call that would have changed nothing, or whose caller is unknown. Any client can make many such
    /// calls, so the store has no entries for them.
    pub fn turned_away(&self, from: &str, action: &str, why: &str) {
        if self.turned_away.is_news(from, action) {
            tracing::warn!(target: "audit", caller = plain(from), action = plain(action), why, "refused");
        }
    }

    async fn write(&self, caller: &Caller, action: &str, subject: &str, refused: bool, outcome: &str) {
        let entry = AuditRow {
            id: 0,
            time_ns: now_ns(),
            tenant: caller.tenant_name().to_owned(),
            caller: plain(&caller.name),
            peer: plain(&caller.peer),
            action: plain(action),
            subject: plain(subject),
            refused,
            outcome: plain(outcome),
        };
        if let Err(error) = self.store.add_audit(&entry).await {
            // The log line above exists even without the entry.
            tracing::error!(%error, action, "the audit log in the store lacks an entry");
        }
    }
}

/// Cuts the text and removes line breaks, so that it cannot look like another entry.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Scope, SqliteStore};

    #[tokio::test]
    async fn what_was_done_is_kept_and_trying_often_writes_little() {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.unwrap());
        let audit = Audit::new(store.clone());
        let caller = Caller::owner("uid 1000", "here");
        audit.done(&caller, "DeleteJob", "vit\nforged", "2 sessions").await;
        for number in 0..2 * REMEMBERED_MAX {
            audit.turned_away(&format!("2001:db8::{number:x}"), "GetReport", "this is not a token");
        }
        for _ in 0..100 {
            audit.refused(&caller, "DeleteJob", "vit", "no").await;
        }
        let entries = store.audit_in(&Scope::All, 1_000).await.unwrap();
        assert!((1..=2).contains(&entries.iter().filter(|entry| entry.refused).count()), "{entries:?}");
        for number in 0..10 * PER_CALLER_MAX {
            audit.refused(&caller, "RevokeToken", &format!("token {number}"), "no").await;
        }
        let entries = store.audit_in(&Scope::All, 1_000).await.unwrap();
        let revoked = entries.iter().filter(|entry| entry.action == "RevokeToken").count();
        assert!(
            (2..6 * PER_CALLER_MAX).contains(&revoked),
            "different subjects are recorded, a flood is not: {revoked}"
        );
        let done: Vec<_> = entries.iter().filter(|entry| !entry.refused).collect();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].subject.as_str(), done[0].tenant.as_str()), ("vit forged", "*"));
    }
}
