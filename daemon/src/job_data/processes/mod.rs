//! Decides which sessions of a job are its processes, and names each of them.
//!
//! Guarantees: pure. Every process has a unique name within its job: `rank 0` for the only process of a rank, otherwise
//! its role and a number in the order of start (`trainer`, `worker-1`). Sessions that are no longer shown count as
//! earlier.
//!
//! A process never hides another one. A session is only replaced by the same process that attached again, a repeated
//! import, or a later run of the same name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use memctl_model::{SessionInfo, SourceKind};

use crate::store::{SessionKey, SessionRow};

/// The longest role in a name. It is short, because users type it.
const ROLE_MAX: usize = 32;
/// The role of the training process. There is usually one, and then its name needs no number.
const TRAINER: &str = "trainer";
/// The default role of a process that another process of the job started.
const WORKER: &str = "worker";
/// The role of several processes of one rank if nothing else is known about them.
const PROCESS: &str = "process";

/// The name and role of a process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Process {
    /// Its name within the job.
    pub name: String,
    /// Its role, if known.
    pub role: Option<String>,
    /// Whether it was started by another process of the job.
    pub is_child: bool,
}

impl Process {
    /// Whether the rank alone identifies it.
    #[must_use]
    pub fn is_rank(&self) -> bool {
        self.name.starts_with("rank ")
    }

    /// Its role, if that is not training: processes of one such role are compared with each other. Empty for training
    /// processes.
    #[must_use]
    pub fn peer_role(&self) -> &str {
        self.role.as_deref().filter(|role| *role != TRAINER).unwrap_or_default()
    }
}

/// Sessions that a later one has replaced: the same process again, the same recording again, or a later run.
pub(crate) fn superseded(sessions: &[SessionRow]) -> HashSet<SessionKey> {
    let mut by_rank: BTreeMap<u32, Vec<&SessionRow>> = BTreeMap::new();
    for session in sessions {
        by_rank.entry(session.info.rank).or_default().push(session);
    }
    let pids: HashSet<(Option<&str>, u32)> =
        sessions.iter().filter_map(|session| Some((session.info.host.as_deref(), session.info.pid?))).collect();
    let mut gone = HashSet::new();
    for mut rank in by_rank.into_values() {
        rank.sort_by_key(|session| (session.info.started_ns, session.key));
        // Each session is compared with all earlier ones of its rank.
        for (at, later) in rank.iter().enumerate() {
            let earlier = rank[..at].iter().filter(|earlier| takes_place(later, earlier, &pids));
            gone.extend(earlier.map(|earlier| earlier.key));
        }
    }
    gone
}

fn takes_place(later: &SessionRow, earlier: &SessionRow, pids: &HashSet<(Option<&str>, u32)>) -> bool {
    let (a, b) = (&earlier.info, &later.info);
    if a.source == SourceKind::Import && b.source == SourceKind::Import {
        return true;
    }
    if a.pid.is_some() && (a.pid, &a.host) == (b.pid, &b.host) {
        return true;
    }
    let was_over = earlier.end.as_ref().is_some_and(|end| end.time_ns <= b.started_ns);
    was_over && !is_same_run(a, b, pids)
}

/// Whether two consecutive processes of one rank belong to one run. They do if the same `memctl run` or the same
/// process of the job started both.
fn is_same_run(a: &SessionInfo, b: &SessionInfo, pids: &HashSet<(Option<&str>, u32)>) -> bool {
    let parent = |info: &SessionInfo| info.parent_pid.filter(|&pid| pids.contains(&(info.host.as_deref(), pid)));
    let is_child_of = |one: &SessionInfo, other: &SessionInfo| one.host == other.host && parent(one) == other.pid;
    match (a.launch.launcher, b.launch.launcher) {
        (Some(a), Some(b)) => a == b,
        _ if parent(a).is_some() => a.host == b.host && (parent(a) == parent(b) || is_child_of(a, b)),
        _ => parent(b).is_some() && is_child_of(b, a),
    }
}

/// The names of a job's processes.
pub(crate) fn names<'a>(sessions: impl Iterator<Item = &'a SessionRow>) -> HashMap<SessionKey, Process> {
    let mut sessions: Vec<&SessionRow> = sessions.collect();
    sessions.sort_by_key(|session| (session.info.started_ns, session.info.pid, session.info.rank, session.key));
    let roles = roles(&sessions);
    let is_main = |session: &SessionRow| {
        roles.get(&session.key).is_some_and(|(role, _)| role.as_deref().is_none_or(|role| role == TRAINER))
    };
    let mut mains: BTreeMap<u32, usize> = BTreeMap::new();
    for session in sessions.iter().filter(|session| is_main(session)) {
        *mains.entry(session.info.rank).or_default() += 1;
    }
    let ranks: BTreeSet<u32> = sessions.iter().map(|session| session.info.rank).collect();
    let several_ranks = ranks.len() > 1 || sessions.iter().any(|session| session.info.world_size > Some(1));
    // Names by rank are used if there are several ranks, or if there is only one process.
    let by_rank = |session: &SessionRow| {
        is_main(session) && mains.get(&session.info.rank) == Some(&1) && (several_ranks || sessions.len() == 1)
    };
    let mut taken = HashSet::new();
    let mut named = HashMap::new();
    // Names by rank are assigned first, because they take precedence over roles.
    for session in sessions.iter().filter(|session| by_rank(session)) {
        let name = format!("rank {}", session.info.rank);
        taken.insert(name.clone());
        named.insert(session.key, name);
    }
    let alone = mains.values().sum::<usize>() == 1;
    let mut counts: HashMap<&str, u32> = HashMap::new();
    for session in sessions.iter().filter(|session| !by_rank(session)) {
        let role = roles.get(&session.key).and_then(|(role, _)| role.as_deref()).unwrap_or(TRAINER);
        let as_it_is = (role == TRAINER && alone) || role.ends_with(|last: char| last.is_ascii_digit());
        let name = match as_it_is && !taken.contains(role) {
            true => role.to_owned(),
            false => loop {
                let count = counts.entry(role).or_default();
                *count += 1;
                let numbered = format!("{role}-{count}");
                if !taken.contains(&numbered) {
                    break numbered;
                }
            },
        };
        taken.insert(name.clone());
        named.insert(session.key, name);
    }
    let process = |session: &SessionRow| {
        let (role, is_child) = roles.get(&session.key).cloned().unwrap_or_default();
        (session.key, Process { name: named.remove(&session.key).unwrap_or_default(), role, is_child })
    };
    sessions.iter().copied().map(process).collect()
}

/// The role of each process, and whether another process of the job started it. The role is the reported one, otherwise
/// it is inferred from the parent.
fn roles(sessions: &[&SessionRow]) -> HashMap<SessionKey, (Option<String>, bool)> {
    let by_pid: HashMap<(Option<&str>, u32), SessionKey> = sessions
        .iter()
        .filter_map(|session| Some(((session.info.host.as_deref(), session.info.pid?), session.key)))
        .collect();
    let parent = |session: &SessionRow| {
        let pid = session.info.parent_pid?;
        by_pid.get(&(session.info.host.as_deref(), pid)).copied().filter(|&key| key != session.key)
    };
    let parents: HashSet<SessionKey> = sessions.iter().filter_map(|session| parent(session)).collect();
    let mut of_rank: HashMap<u32, Vec<&SessionRow>> = HashMap::new();
    for session in sessions {
        of_rank.entry(session.info.rank).or_default().push(session);
    }
    let inferred = |session: &SessionRow| {
        let beside = of_rank.get(&session.info.rank).map_or(&[][..], Vec::as_slice);
        let siblings = || {
            let family = |info: &SessionInfo| Some((info.host.clone(), info.parent_pid?));
            let own = family(&session.info);
            own.is_some() && beside.iter().filter(|other| family(&other.info) == own).count() > 1
        };
        match beside.len() {
            _ if parent(session).is_some() => Some(WORKER),
            0 | 1 if parents.contains(&session.key) => Some(TRAINER),
            0 | 1 => None,
            _ if parents.contains(&session.key) => Some(TRAINER),
            // It is the only process of its rank that no process of the job started, so it is the main one.
            _ if beside.iter().filter(|other| parent(other).is_none() && other.info.role.is_none()).count() == 1 => {
                Some(TRAINER)
            }
            _ if siblings() => Some(WORKER),
            _ => Some(PROCESS),
        }
    };
    sessions
        .iter()
        .map(|session| {
            let said = session.info.role.as_deref().map(word).filter(|role| !role.is_empty());
            let role = said.or_else(|| inferred(session).map(str::to_owned));
            (session.key, (role, parent(session).is_some()))
        })
        .collect()
}

/// Turns a role into a part of a name that users can type.
fn word(role: &str) -> String {
    let known = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '-' };
    role.trim().chars().take(ROLE_MAX).map(known).collect::<String>().trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests;
