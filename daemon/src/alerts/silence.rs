//! Silences: which alerts are not sent, until when.
//!
//! Guarantees: a silence names at least one criterion, ends, and is bounded. A silence for a rank never hides an alert
//! that also concerns other ranks. A silenced alert still fires and is listed; it is sent if it outlasts the silence.

use memctl_model::FindingKind;
use memctl_model::limits::{LABEL_BYTES_MAX, LABELS_MAX};

use super::alert::{Alert, RANKS_MAX, cut};
use crate::pattern::fits;

/// As a tenant: all of them.
pub const EVERY_TENANT: &str = "*";
/// The longest silence: a year.
const LONGEST_NS: u64 = 365 * 86_400 * 1_000_000_000;
const TEXT_BYTES_MAX: usize = 1_024;

/// One silence. An empty field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// Its id; 0 for a requested one.
    pub id: u64,
    /// The tenant whose alerts it covers, `*` for all.
    pub tenant: String,
    /// The job's name; `*` in it matches any text.
    pub job: String,
    /// The finding's kind.
    pub kind: String,
    /// The rule's name.
    pub rule: String,
    /// Covers only alerts whose ranks are all among these.
    pub ranks: Vec<u32>,
    /// Labels that the alert or its job must have, all of them.
    pub labels: Vec<(String, String)>,
    /// When it was added, nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// When it ends.
    pub ends_ns: u64,
    /// The author.
    pub author: String,
    /// The reason.
    pub comment: String,
}

/// A requested silence, checked and completed.
///
/// # Errors
/// What is wrong with it, as text.
pub fn made(asked: Silence, for_ns: u64, id: u64, now_ns: u64) -> Result<Silence, String> {
    let Silence { id: _, tenant, job, kind, rule, ranks, labels, created_ns: _, ends_ns: _, author, comment } = asked;
    if job.is_empty() && kind.is_empty() && rule.is_empty() && ranks.is_empty() && labels.is_empty() {
        return Err("a silence needs a job, a kind, a rule, ranks or labels; `*` as job matches all jobs".into());
    }
    if !kind.is_empty() && FindingKind::of_name(&kind).is_none() {
        let known: Vec<&str> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
        return Err(format!("there is no kind of finding {:?}; there are {}", cut(&kind, 64), known.join(", ")));
    }
    if job.len() > LABEL_BYTES_MAX || rule.len() > LABEL_BYTES_MAX || ranks.len() > 1 << 16 {
        return Err(format!(
            "a job's or rule's name has {LABEL_BYTES_MAX} bytes at most, a list of ranks 65536 entries"
        ));
    }
    let long = |(key, value): &(String, String)| key.is_empty() || key.len().max(value.len()) > LABEL_BYTES_MAX;
    if labels.len() > LABELS_MAX || labels.iter().any(long) {
        return Err(format!("a silence has {LABELS_MAX} labels of {LABEL_BYTES_MAX} bytes at most, each with a name"));
    }
    if for_ns == 0 || for_ns > LONGEST_NS {
        return Err("a silence must last longer than 0 s and at most a year".into());
    }
    Ok(Silence {
        id,
        tenant,
        job,
        kind,
        rule,
        ranks,
        labels,
        created_ns: now_ns,
        ends_ns: now_ns.saturating_add(for_ns),
        author: cut(&author, TEXT_BYTES_MAX),
        comment: cut(&comment, TEXT_BYTES_MAX),
    })
}

/// The silence that covers an alert: of several, the one that ends last.
#[must_use]
pub fn of<'s>(silences: &'s [Silence], alert: &Alert, now_ns: u64) -> Option<&'s Silence> {
    let matching = silences.iter().filter(|silence| silence.ends_ns > now_ns && matches(silence, alert));
    matching.max_by_key(|silence| silence.ends_ns)
}

fn matches(silence: &Silence, alert: &Alert) -> bool {
    let whole = alert.ranks.len() < RANKS_MAX || alert.rank_count as usize == alert.ranks.len();
    let ranks = silence.ranks.is_empty()
        || whole && !alert.ranks.is_empty() && alert.ranks.iter().all(|rank| silence.ranks.contains(rank));
    let labelled = |label: &(String, String)| alert.labels.iter().chain(&alert.job_labels).any(|known| known == label);
    (silence.tenant == EVERY_TENANT || silence.tenant == alert.tenant)
        && (silence.job.is_empty() || fits(&silence.job, &alert.job))
        && (silence.kind.is_empty() || silence.kind == alert.kind)
        && (silence.rule.is_empty() || silence.rule == alert.rule)
        && ranks
        && silence.labels.iter().all(labelled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::record;

    #[test]
    fn what_names_nothing_or_never_ends_is_refused() {
        let job = |job: &str| Silence { job: job.into(), ..Silence::default() };
        assert!(made(Silence::default(), 1, 1, 1).unwrap_err().contains("needs a job"));
        assert!(made(job("a"), 0, 1, 1).unwrap_err().contains("at most a year"));
        assert!(made(job("a"), u64::MAX, 1, 1).unwrap_err().contains("at most a year"));
        assert!(made(job(&"a".repeat(257)), 1, 1, 1).is_err());
        let leek = Silence { kind: "leek".into(), ..Silence::default() };
        assert!(made(leek, 1, 1, 1).unwrap_err().contains("there are leak, eval_graph"));
        let silence = made(job("a"), 5, 0xabc, 10).unwrap();
        assert_eq!((silence.id, silence.created_ns, silence.ends_ns), (0xabc, 10, 15));
        assert_eq!(record::read_silence(&record::put_silence(&silence).record), Some(silence));
    }
}
