//! Silences: which alerts are not sent, and until when. A silence has the form of the message that requests it, in
//! memory and in the store. An empty field matches everything.
//!
//! Guarantees: a silence has at least one criterion, ends, and is bounded in size. A silence for a rank never hides an
//! alert that also concerns other ranks. A silenced alert still fires and is listed. It is sent if it outlasts the
//! silence.

use memctl_answers::alerts as shown;
use memctl_answers::format::id::Id;
use memctl_answers::format::time::Time;
use memctl_model::FindingKind;
use memctl_model::limits::{LABEL_BYTES_MAX, LABELS_MAX};
use memctl_proto::v1::{Label, Silence};

use super::alert::{Alert, AlertedFinding, RANKS_MAX, cut};
use crate::pattern::fits;

/// As a tenant's name: all tenants.
pub const EVERY_TENANT: &str = "*";
/// The longest silence: a year.
const LONGEST_NS: u64 = 365 * 86_400 * 1_000_000_000;
const TEXT_BYTES_MAX: usize = 1_024;

/// Checks and completes a requested silence.
///
/// # Errors
/// The fault in the request, as text.
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
    let long = |Label { key, value }: &Label| key.is_empty() || key.len().max(value.len()) > LABEL_BYTES_MAX;
    if labels.len() > LABELS_MAX || labels.iter().any(long) {
        return Err(format!("a silence has {LABELS_MAX} labels of {LABEL_BYTES_MAX} bytes at most, each with a name"));
    }
    if for_ns == 0 || for_ns > LONGEST_NS {
        return Err("a silence must last longer than 0 s and at most a year".into());
    }
    Ok(Silence {
        id: Id(id).to_string(),
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

/// The silence that covers an alert; if several do, the one that ends last.
#[must_use]
pub fn of<'s>(silences: &'s [Silence], alert: &Alert, now_ns: u64) -> Option<&'s Silence> {
    let matching = silences.iter().filter(|silence| silence.ends_ns > now_ns && matches(silence, alert));
    matching.max_by_key(|silence| silence.ends_ns)
}

/// The silence in the form of the list.
#[must_use]
pub fn shown(silence: Silence) -> shown::Silence {
    let Silence { id, job, kind, rule, ranks, labels, created_ns, ends_ns, author, comment, tenant } = silence;
    let named = |text: String| (!text.is_empty()).then_some(text);
    shown::Silence {
        id,
        job: named(job),
        kind: named(kind),
        rule: named(rule),
        ranks,
        labels: labels.into_iter().map(|label| (label.key, label.value)).collect(),
        created_at: Time(created_ns),
        ends_at: Time(ends_ns),
        author: named(author),
        comment: named(comment),
        tenant,
    }
}

fn matches(silence: &Silence, alert: &Alert) -> bool {
    let AlertedFinding { kind, ranks, rank_count, .. } = &alert.finding;
    let whole = ranks.len() < RANKS_MAX || *rank_count as usize == ranks.len();
    let within =
        silence.ranks.is_empty() || whole && !ranks.is_empty() && ranks.iter().all(|rank| silence.ranks.contains(rank));
    let labelled = |Label { key, value }: &Label| {
        alert.labels.iter().chain(&alert.job_labels).any(|(known, is)| known == key && is == value)
    };
    (silence.tenant == EVERY_TENANT || silence.tenant == alert.tenant)
        && (silence.job.is_empty() || fits(&silence.job, &alert.job))
        && (silence.kind.is_empty() || silence.kind == *kind)
        && (silence.rule.is_empty() || silence.rule == alert.rule)
        && within
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
        assert_eq!((&*silence.id, silence.created_ns, silence.ends_ns), ("0000000000000abc", 10, 15));
        assert_eq!(record::read_silence(&record::put_silence(0xabc, &silence).record), Some(silence));
    }
}
