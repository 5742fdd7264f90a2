//! Processes that failed: which died first, of which cause, and which followed.
//!
//! The end of one rank ends the others: the launcher stops them, and their collectives fail. So deaths near each other
//! in time are one incident with one cause, and one finding covers all its ranks. Guarantees: the first death is the
//! earliest that neither a launcher nor a lost peer explains. Lists are sorted and bounded. A rank's out of memory is
//! reported by its own finding; the consequences are returned for that finding. If all processes were stopped from
//! outside, no cause is named.

mod cause;

use std::collections::BTreeMap;

use memctl_model::{EvidenceValue, Finding, FindingKind, JOB_FLAG, Moment, Severity};

pub use cause::{CauseOfDeath, says_out_of_memory};

use crate::wording::{opening, opening_letter, plural, ranks, sentence};

/// Deaths within this time of each other are one incident: a launcher checks every tenth of a second and kills after
/// 30 s.
const NEAR_NS: u64 = 60_000_000_000;
/// Collectives give up on a lost peer within this time: an hour, because default timeouts are at most 30 min.
const LATE_NS: u64 = 3_600_000_000_000;
/// Maximum number of different ends that a sentence names.
const ENDS_NAMED: usize = 4;
/// Maximum number of lost nodes that a sentence names.
const NODES_NAMED: usize = 4;

/// One process that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Its rank.
    pub rank: u32,
    /// The name of its host; empty if unknown.
    pub host: String,
    /// The time in ns since the Unix epoch: its end, or when it was last heard of.
    pub time_ns: u64,
    /// Current epoch, or the last known one.
    pub epoch: Option<u32>,
    /// Current step, or the last step that ended.
    pub step: Option<u64>,
    /// Whether `step` was under way.
    pub under_way: bool,
    /// The recorded words about its end; `None` if nothing more was received from the process.
    pub failure: Option<String>,
}

/// The processes of a job that were seen, failed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenProcesses {
    /// How many there are.
    pub processes: usize,
    /// How many each host has.
    pub by_host: BTreeMap<String, usize>,
}

impl SeenProcesses {
    /// The hosts of processes that were lost, if every process of these hosts was, and other hosts have processes, too.
    fn lost_hosts<'d>(&self, lost: &[&Dead<'d>]) -> Option<Vec<&'d str>> {
        let mut by_host: BTreeMap<&'d str, usize> = BTreeMap::new();
        for dead in lost {
            *by_host.entry(dead.death.host.as_str()).or_default() += 1;
        }
        let is_whole = |(host, count): (&&str, &usize)| !host.is_empty() && self.by_host.get(*host) == Some(count);
        let are_nodes = by_host.iter().all(is_whole) && by_host.len() < self.by_host.len();
        are_nodes.then(|| by_host.into_keys().collect())
    }
}

/// Consequences of an out of memory that another finding reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterOom {
    /// The rank that ran out of memory first.
    pub rank: u32,
    /// A sentence about the other ranks.
    pub sentence: String,
}

/// The findings about the deaths of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Incidents {
    /// One finding per incident.
    pub findings: Vec<Finding>,
    /// The consequences of incidents that began with an out of memory.
    pub after_oom: Vec<AfterOom>,
}

struct Dead<'a> {
    death: &'a Death,
    cause: CauseOfDeath,
}

struct Incident<'a> {
    /// Deaths with a cause of their own, by time.
    own: Vec<Dead<'a>>,
    /// Deaths that followed or were caused from outside, by time.
    after: Vec<Dead<'a>>,
    last_ns: u64,
}

/// What is known of the processes that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// There are none: every process failed or was lost.
    None,
    /// At least one runs as far as is known. The time is that of the last data of such a process, in ns since the Unix
    /// epoch.
    Running(u64),
    /// None runs, and at least one ended successfully.
    Finished,
}

impl Others {
    /// The words about them after an incident. Processes that run soon after a death may end of it later, so only later
    /// data shows that they continued.
    fn after(self, incident: &Incident<'_>) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Running(heard_ns) if heard_ns > incident.last_ns.saturating_add(NEAR_NS) => {
                Some("the others continued")
            }
            Self::Running(_) => Some("the others were still running then"),
            Self::Finished => Some("the others finished"),
        }
    }
}

/// Finds which process died of which cause.
#[must_use]
pub fn tell(deaths: &[Death], known: &SeenProcesses, others: Others) -> Incidents {
    let mut reported = Incidents::default();
    for (number, incident) in incidents(deaths).iter().enumerate() {
        let finding = match incident.own.first() {
            Some(Dead { death, cause: CauseOfDeath::OutOfMemory }) => {
                reported.after_oom.extend(after_oom(death.rank, incident, known.processes));
                beside_oom(incident, known)
            }
            Some(first) => Some(died(first, incident, known, others)),
            None => stopped(incident, known.processes, others),
        };
        reported.findings.extend(finding.map(|finding| Finding {
            // The same incident keeps the same finding, regardless of which process is found to have died first.
            subject: if number == 0 { String::new() } else { format!("incident {}", number + 1) },
            ..finding
        }));
    }
    reported
}

fn incidents(deaths: &[Death]) -> Vec<Incident<'_>> {
    let mut dead: Vec<Dead<'_>> =
        deaths.iter().map(|death| Dead { death, cause: CauseOfDeath::of(death.failure.as_deref()) }).collect();
    dead.sort_by_key(|dead| (dead.death.time_ns, dead.death.rank));
    let (consequences, own): (Vec<_>, Vec<_>) = dead.into_iter().partition(|dead| dead.cause.is_consequence());
    let mut incidents: Vec<Incident<'_>> = Vec::new();
    for dead in own {
        let time_ns = dead.death.time_ns;
        let near = |incident: &&mut Incident<'_>| time_ns.saturating_sub(incident.last_ns) <= NEAR_NS;
        match incidents.last_mut().filter(near) {
            Some(incident) => {
                incident.last_ns = time_ns;
                // The last data of two processes says nothing about which ended first.
                let is_silent = |dead: &Dead<'_>| dead.cause == CauseOfDeath::Silent;
                let are_both_silent = is_silent(&dead) && incident.own.first().is_some_and(is_silent);
                let is_taken_along = dead.cause.may_be_consequence() && !are_both_silent;
                if is_taken_along { &mut incident.after } else { &mut incident.own }.push(dead);
            }
            None => incidents.push(Incident { own: vec![dead], after: Vec::new(), last_ns: time_ns }),
        }
    }
    for dead in consequences {
        let time_ns = dead.death.time_ns;
        let explains = |incident: &&mut Incident<'_>| {
            let first = incident.own.iter().chain(&incident.after).map(|dead| dead.death.time_ns).min();
            // The end of the cause may be noticed a little later than the ends that it caused.
            first.is_some_and(|first| first <= time_ns.saturating_add(NEAR_NS))
                && time_ns <= incident.last_ns.saturating_add(LATE_NS)
        };
        match incidents.iter_mut().rev().find(explains) {
            Some(incident) => incident.after.push(dead),
            None => incidents.push(Incident { own: Vec::new(), after: vec![dead], last_ns: time_ns }),
        }
    }
    incidents
}

/// The finding for an incident in which at least one process died of its own cause.
fn died(first: &Dead<'_>, incident: &Incident<'_>, seen: &SeenProcesses, unharmed: Others) -> Finding {
    let key = first.cause.key();
    let (same, others): (Vec<&Dead<'_>>, Vec<&Dead<'_>>) =
        incident.own.iter().partition(|dead| dead.cause.key() == key);
    let (alike, known) = (numbers(same.iter().copied()), seen.processes);
    let who = opening(&ranks(&alike, known));
    let is_silent = first.cause == CauseOfDeath::Silent;
    let nodes = seen.lost_hosts(&same).filter(|_| is_silent);
    let at = at(first.death);
    let words = first.cause.words();
    let took_along = !incident.after.is_empty() || !others.is_empty();
    let mut title = match (&nodes, alike.len(), took_along) {
        (Some(nodes), ..) => lost(nodes, &ranks(&alike, known), &at),
        (None, 1, true) if is_silent => format!("{who} died first, without notice{at}: it sent nothing more"),
        (None, 1, true) => format!("{who} died first, {words},{at}"),
        _ => match first.cause {
            CauseOfDeath::Silent if alike.len() > 1 => {
                format!("{who} ended without notice{at}: they sent nothing more")
            }
            CauseOfDeath::Silent => format!("{who} ended without notice{at}: it sent nothing more"),
            CauseOfDeath::Exception { .. } => format!("{who} failed {}{at}", words.replacen("by", "with", 1)),
            _ => format!("{who} ended {words}{at}"),
        },
    };
    if title.ends_with(',') {
        title.pop();
    }
    title.push_str(&tail(incident, &others, known, unharmed));
    let severity =
        if took_along || (unharmed != Others::None && known > 1) { Severity::Critical } else { Severity::Warning };
    let mut evidence = vec![
        ("cause".to_owned(), EvidenceValue::Text(first.cause.name().to_owned())),
        ("died_first".to_owned(), EvidenceValue::Count(u64::from(first.death.rank))),
    ];
    evidence.extend(evidence_of(incident));
    Finding {
        all_ranks: alike.len() > 1 && alike.len() == known,
        title,
        explanation: explanation(first, incident),
        advice: format!(
            "{}; `memctl sites {JOB_FLAG} --rank {} --end` shows what it held.",
            opening_letter(first.cause.advice()),
            first.death.rank
        ),
        evidence,
        first_seen: moment(first.death),
        ..Finding::new(FindingKind::RankLost, severity, 1.0, alike)
    }
}

/// The finding for an incident in which all processes were stopped, or lost a peer that was not recorded.
fn stopped(incident: &Incident<'_>, known: usize, others: Others) -> Option<Finding> {
    let first = incident.after.first()?;
    let all = numbers(incident.after.iter());
    let who = opening(&ranks(&all, known));
    let verb = if all.len() == 1 { "was" } else { "were" };
    let title = match first.cause.is_request() {
        true => format!("{who} {verb} stopped {}{}", first.cause.words(), at(first.death)),
        false => format!("{who} ended {}{}", first.cause.words(), at(first.death)),
    };
    let by_hand = incident.after.iter().all(|dead| matches!(dead.cause.key().as_str(), "KeyboardInterrupt" | "SIGINT"));
    let severity = match (others != Others::None && known > all.len(), by_hand) {
        (true, _) => Severity::Critical,
        (false, true) => Severity::Info,
        (false, false) => Severity::Warning,
    };
    let mut evidence = vec![("cause".to_owned(), EvidenceValue::Text(first.cause.name().to_owned()))];
    evidence.extend(evidence_of(incident));
    Some(Finding {
        all_ranks: all.len() > 1 && all.len() == known,
        title,
        explanation: match first.cause.is_request() {
            true => "No rank had failed by itself before; the signal came from outside. Everything up to that moment is stored.".to_owned(),
            false => "The peer whose end caused this was not recorded.".to_owned(),
        },
        advice: sentence(first.cause.advice()),
        evidence,
        first_seen: moment(first.death),
        ..Finding::new(FindingKind::RankLost, severity, 1.0, all)
    })
}

/// The sentence about nodes of which no process is left.
fn lost(nodes: &[&str], ranks: &str, at: &str) -> String {
    let named: Vec<&str> = nodes.iter().copied().take(NODES_NAMED).collect();
    let more = nodes.len() - named.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    match nodes.len() {
        1 => format!("Node {} was lost{at}: {ranks} of it sent nothing more", named[0]),
        _ => format!("Nodes {}{more} were lost{at}: {ranks} of them sent nothing more", named.join(", ")),
    }
}

fn after_oom(rank: u32, incident: &Incident<'_>, known: usize) -> Option<AfterOom> {
    let tail = tail(incident, &[], known, Others::None);
    let sentence = tail.strip_prefix("; ")?;
    Some(AfterOom { rank, sentence: format!("Consequences: {sentence}.") })
}

/// The finding about processes that failed of their own cause while another ran out of memory.
fn beside_oom(incident: &Incident<'_>, known: &SeenProcesses) -> Option<Finding> {
    let own: Vec<Dead<'_>> = incident
        .own
        .iter()
        .filter(|dead| dead.cause != CauseOfDeath::OutOfMemory)
        .map(|dead| Dead { death: dead.death, cause: dead.cause.clone() })
        .collect();
    let alone = Incident { own, after: Vec::new(), last_ns: incident.last_ns };
    alone.own.first().map(|first| died(first, &alone, known, Others::None))
}

/// What happened to the other processes.
fn tail(incident: &Incident<'_>, others: &[&Dead<'_>], known: usize, unharmed: Others) -> String {
    let mut parts = Vec::new();
    let mut named: Vec<String> = Vec::new();
    for dead in others {
        let key = dead.cause.key();
        if named.contains(&key) || named.len() == ENDS_NAMED {
            continue;
        }
        let alike = numbers(others.iter().copied().filter(|dead| dead.cause.key() == key));
        parts.push(format!("{} ended {}", ranks(&alike, known), dead.cause.words()));
        named.push(key);
    }
    let own = incident.own.len();
    let group = |wanted: fn(&CauseOfDeath) -> bool| numbers(incident.after.iter().filter(|dead| wanted(&dead.cause)));
    let stopped = group(|cause| cause.is_request() || !cause.is_consequence());
    let lost_peers = group(|cause| cause.is_consequence() && !cause.is_request());
    let who = |numbers: &[u32]| match numbers.len() {
        all if all > 1 && all + own == known => "the others".to_owned(),
        _ => ranks(numbers, known),
    };
    let verb = |numbers: &[u32]| if numbers.len() == 1 { "was" } else { "were" };
    if !lost_peers.is_empty() {
        let peer = if own == 1 { "it" } else { "them" };
        parts.push(format!("{} lost {peer} as a peer and ended too", who(&lost_peers)));
    }
    if !stopped.is_empty() {
        let behind = if own == 1 { "it" } else { "them" };
        parts.push(format!("{} {} stopped after {behind}", who(&stopped), verb(&stopped)));
    }
    if parts.is_empty() && own < known {
        parts.extend(unharmed.after(incident).map(str::to_owned));
    }
    parts.into_iter().fold(String::new(), |text, part| text + "; " + &part)
}

fn explanation(first: &Dead<'_>, incident: &Incident<'_>) -> String {
    let stored = match first.cause {
        CauseOfDeath::Silent => "What it recorded after that has not arrived.",
        _ => "Everything up to that moment is stored.",
    };
    match incident.after.first() {
        Some(next) => {
            let gap_ns = next.death.time_ns.saturating_sub(first.death.time_ns);
            format!(
                "The next of {} ended {:.1} s later. A launcher stops the others when one ends, and collectives fail without their peer, so later ends are consequences. {stored}",
                plural(incident.after.len() as u64, "other process").replace("processs", "processes"),
                gap_ns as f64 / 1e9
            )
        }
        None => stored.to_owned(),
    }
}

fn evidence_of(incident: &Incident<'_>) -> Vec<(String, EvidenceValue)> {
    let all: Vec<&Dead<'_>> = incident.own.iter().chain(&incident.after).collect();
    let mut ends: Vec<(String, Vec<u32>)> = Vec::new();
    for dead in &all {
        let key = dead.cause.key();
        match ends.iter_mut().find(|(known, _)| *known == key) {
            Some((_, ranks)) => ranks.push(dead.death.rank),
            None => ends.push((key, vec![dead.death.rank])),
        }
    }
    let mut evidence = vec![("ended".to_owned(), EvidenceValue::Count(all.len() as u64))];
    for (at, (key, mut of)) in ends.into_iter().take(ENDS_NAMED).enumerate() {
        of.sort_unstable();
        of.dedup();
        // The count of known ranks is not passed: the evidence gives numbers and never "all".
        evidence.push((format!("end_{}", at + 1), EvidenceValue::Text(format!("{key}: {}", ranks(&of, usize::MAX)))));
    }
    evidence
}

fn numbers<'a, 'd: 'a>(dead: impl Iterator<Item = &'a Dead<'d>>) -> Vec<u32> {
    let mut numbers: Vec<u32> = dead.map(|dead| dead.death.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn moment(death: &Death) -> Moment {
    Moment { epoch: death.epoch, step: death.step, time_ns: Some(death.time_ns), ..Moment::default() }
}

/// The moment of the death with a leading space: ` at step 66 (epoch 1)`.
fn at(death: &Death) -> String {
    let preposition = if death.under_way { "at" } else { "after" };
    match (death.step, death.epoch) {
        (Some(step), Some(epoch)) => format!(" {preposition} step {step} (epoch {epoch})"),
        (Some(step), None) => format!(" {preposition} step {step}"),
        (None, Some(epoch)) => format!(" in epoch {epoch}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests;
