//! Decides which run a job's name refers to, and which run a session belongs to.
//!
//! A job's name is a series of runs. One launch (a `memctl run`, an `attach` of all ranks, an import) is one run. Runs
//! are numbered in order of arrival. Restarts of a launch are attempts of its run.
//!
//! Guarantees: pure. Every store decides with `Series::run_of` under its write lock. A launch never joins a run of
//! another launch in which its ranks are taken.

use std::fmt;

use memctl_model::SessionInfo;

/// Sessions that begin within this time count as one launch, unless something else decides.
const TOGETHER_NS: u64 = 600_000_000_000;

/// Selects a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The run of any name that was started or imported last.
    Latest,
    /// The newest run of a name.
    Newest(String),
    /// One run of a name.
    Run(String, u32),
    /// The run of a name that this launcher started.
    OfLauncher(String, u64),
}

impl Which {
    /// Parses `latest` (or nothing), `NAME` or `NAME#RUN`. A name never contains `#`.
    #[must_use]
    pub fn written(text: &str) -> Self {
        if text.is_empty() || text == "latest" {
            return Self::Latest;
        }
        let run = |(name, run): (&str, &str)| Some(Self::Run(name.to_owned(), run.parse().ok()?));
        text.split_once('#').and_then(run).unwrap_or_else(|| Self::Newest(text.to_owned()))
    }

    /// The name of the series, if given.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Latest => None,
            Self::Newest(name) | Self::Run(name, _) | Self::OfLauncher(name, _) => Some(name),
        }
    }

    /// The number of the run, if given.
    #[must_use]
    pub fn run(&self) -> Option<u32> {
        match self {
            Self::Run(_, run) => Some(*run),
            _ => None,
        }
    }

    /// The launcher, if given.
    #[must_use]
    pub fn launcher(&self) -> Option<u64> {
        match self {
            Self::OfLauncher(_, launcher) => Some(*launcher),
            _ => None,
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Newest(name) | Self::OfLauncher(name, _) => f.write_str(name),
            Self::Run(name, run) => write!(f, "{name}#{run}"),
        }
    }
}

/// The state of a series when one of its sessions is opened.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Series {
    /// The number of its newest run; 0 if there is none.
    pub newest: u32,
    /// The newest run with a session of the same launcher.
    pub of_launcher: Option<Launched>,
    /// The newest run of the same group.
    pub of_group: Option<Grouped>,
}

/// A run with a session of the same launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launched {
    pub run: u32,
    /// Whether an earlier session in this run is of the same process.
    pub has_process: bool,
}

/// A run of the same group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grouped {
    pub run: u32,
    /// The highest of its attempts.
    pub highest_attempt: u32,
    /// When the session's own attempt began, if that attempt exists.
    pub started_ns: Option<u64>,
    /// Ranks of the session's own attempt, if known.
    pub world_size: Option<u32>,
    /// Whether a session of the same attempt has the same rank.
    pub is_taken: bool,
    /// Whether a session of the same attempt has not ended and was heard from within [`TOGETHER_NS`].
    pub goes_on: bool,
}

/// The group under which a session is stored; empty if it has none.
pub(super) fn group_of(info: &SessionInfo) -> &str {
    info.launch.group.as_deref().unwrap_or_default()
}

/// A session last heard from before this moment does not count as running.
pub(super) fn heard_since_ns(now_ns: u64) -> u64 {
    now_ns.saturating_sub(TOGETHER_NS)
}

/// Whether both describe the same process.
pub(super) fn is_process(known: &SessionInfo, info: &SessionInfo) -> bool {
    info.pid.is_some() && (known.pid, &known.host) == (info.pid, &info.host)
}

/// Whether the group decides to which run a session belongs. Without a group, the launcher decides if it is known,
/// unless a person numbered the attempt.
pub(super) fn by_group(info: &SessionInfo) -> bool {
    info.launch.group.is_some() || info.launch.launcher.is_none() || info.attempt > 0
}

impl Series {
    /// The run that a session belongs to, and whether it exists.
    pub(super) fn run_of(&self, info: &SessionInfo) -> (u32, bool) {
        let new = (self.newest.saturating_add(1), false);
        if let Some(run) = info.launch.into_run.filter(|run| (1..=self.newest).contains(run)) {
            return (run, true);
        }
        if let Some(Launched { run, has_process }) = self.of_launcher {
            return if info.launch.attached && has_process { new } else { (run, true) };
        }
        match &self.of_group {
            Some(known) if by_group(info) && known.takes(info) => (known.run, true),
            _ => new,
        }
    }
}

impl Grouped {
    /// Whether a session started by another launcher belongs to this run.
    fn takes(&self, info: &SessionInfo) -> bool {
        if info.attempt > self.highest_attempt {
            return true;
        }
        let Some(started_ns) = self.started_ns else { return false };
        let agrees = self.world_size.zip(info.world_size).is_none_or(|(known, said)| known == said);
        agrees && !self.is_taken && (self.goes_on || started_ns.abs_diff(info.started_ns) <= TOGETHER_NS)
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{Launch, SessionId};

    use super::*;

    const S: u64 = 1_000_000_000;

    fn info(attempt: u32, launch: Launch) -> SessionInfo {
        SessionInfo { attempt, world_size: Some(4), launch, ..SessionInfo::live(SessionId([7; 16]), "j", 5_000 * S) }
    }

    fn launched(launcher: u64) -> Launch {
        Launch { launcher: Some(launcher), ..Launch::default() }
    }

    fn in_group(launcher: u64) -> Launch {
        Launch { group: Some("torchrun/x".into()), ..launched(launcher) }
    }

    fn known() -> Grouped {
        Grouped {
            run: 3,
            highest_attempt: 0,
            started_ns: Some(100 * S),
            world_size: Some(4),
            is_taken: false,
            goes_on: true,
        }
    }

    fn series(of_launcher: Option<Launched>, of_group: Option<Grouped>) -> Series {
        Series { newest: 3, of_launcher, of_group }
    }

    #[test]
    fn what_is_written_is_a_name_a_run_or_the_latest() {
        assert_eq!(Which::written("latest"), Which::Latest);
        assert_eq!(Which::written(""), Which::Latest);
        assert_eq!(Which::written("a/b"), Which::Newest("a/b".into()));
        assert_eq!(Which::written("a#3"), Which::Run("a".into(), 3));
        for none in ["a#", "a#x", "a#-1", "a#99999999999"] {
            assert_eq!(Which::written(none), Which::Newest(none.into()), "a name that no job has");
        }
        assert_eq!(Which::written("a#3").to_string(), "a#3");
    }

    #[test]
    fn a_launch_is_a_run() {
        assert_eq!(Series::default().run_of(&info(0, launched(1))), (1, false));
        // Another launch begins a new run, although an active run of the name has room.
        assert_eq!(series(None, Some(known())).run_of(&info(0, launched(1))), (4, false));
        let own = Some(Launched { run: 2, has_process: false });
        assert_eq!(series(own, Some(known())).run_of(&info(0, launched(1))), (2, true));
        assert_eq!(series(own, None).run_of(&info(1, launched(1))), (2, true), "an elastic restart");
    }

    #[test]
    fn attaching_again_is_a_run_and_a_process_of_a_launcher_that_comes_again_is_none() {
        let before = Some(Launched { run: 2, has_process: true });
        let attached = Launch { attached: true, ..launched(1) };
        assert_eq!(series(before, None).run_of(&info(0, attached.clone())), (4, false));
        assert_eq!(series(before, None).run_of(&info(0, launched(1))), (2, true));
        let sibling = Some(Launched { run: 3, has_process: false });
        assert_eq!(series(sibling, None).run_of(&info(0, attached)), (3, true));
    }

    #[test]
    fn launchers_of_one_group_share_a_run_while_its_places_are_free() {
        let of = |group: Grouped| series(None, Some(group)).run_of(&info(0, in_group(9)));
        assert_eq!(of(known()), (3, true));
        assert_eq!(of(Grouped { is_taken: true, ..known() }), (4, false), "the same address, used again");
        assert_eq!(of(Grouped { world_size: Some(8), ..known() }), (4, false));
        assert_eq!(of(Grouped { goes_on: false, ..known() }), (4, false), "it is over");
        let late = Grouped { goes_on: false, started_ns: Some(4_900 * S), ..known() };
        assert_eq!(of(late), (3, true), "delivered one after the other");
        assert_eq!(of(Grouped { started_ns: None, highest_attempt: 2, ..known() }), (4, false));
    }

    #[test]
    fn a_later_attempt_goes_on_with_its_run() {
        let requeued =
            |launch| series(None, Some(Grouped { is_taken: true, goes_on: false, ..known() })).run_of(&info(1, launch));
        assert_eq!(requeued(in_group(9)), (3, true), "other launchers, the same step");
        assert_eq!(requeued(launched(9)), (3, true), "a person gave the number");
    }

    #[test]
    fn a_person_names_the_run() {
        let into = |run| Launch { into_run: Some(run), ..launched(9) };
        assert_eq!(series(None, None).run_of(&info(1, into(2))), (2, true));
        assert_eq!(series(None, None).run_of(&info(1, into(7))), (4, false), "there is none");
        assert_eq!(series(None, None).run_of(&info(1, into(0))), (4, false));
    }
}
