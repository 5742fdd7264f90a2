//! The sender of events: `(job, attempt, rank, session)`. A session is one attached process; it never resumes under
//! another id. The daemon uses its [`Launch`] to decide which run of its job a session belongs to.

use crate::completeness::Dropped;
use crate::event::DeviceIndex;
use crate::settings::AllocatorSettings;

/// A session: 16 random bytes, or a digest of an imported file and of its import.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// The origin of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SourceKind {
    /// A running training process.
    Live = 1,
    /// A recording.
    Import = 2,
}

/// One device of a session.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceInfo {
    /// Index within the session.
    pub index: DeviceIndex,
    /// The device's UUID; `None` if unknown. Indexes never identify a device.
    pub uuid: Option<String>,
    /// Marketing name.
    pub name: Option<String>,
    /// All bytes of the device.
    pub total_bytes: Option<u64>,
}

/// The launch of a session: processes that were started together form one run of their job.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Launch {
    /// The launcher of the process on its host: a `memctl run`, an `import`, or the parent of all ranks. `None` from
    /// older agents.
    pub launcher: Option<u64>,
    /// A key that the processes of one launch share across all hosts: a scheduler's step, a rendezvous address.
    pub group: Option<String>,
    /// Whether the program attached itself, without `memctl run`. The same process may then attach again, as another
    /// run.
    pub attached: bool,
    /// The number of the run to which it belongs, if a person set it.
    pub into_run: Option<u32>,
}

/// The facts about a session that are known when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The session.
    pub id: SessionId,
    /// The job's name.
    pub job: String,
    /// Restart count of the job.
    pub attempt: u32,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job, if known.
    pub world_size: Option<u32>,
    /// The origin of the events.
    pub source: SourceKind,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Process id of its parent.
    pub parent_pid: Option<u32>,
    /// The launch by which it was started.
    pub launch: Launch,
    /// The process's role in the job (`trainer`, `worker`, `loader`), if known.
    pub role: Option<String>,
    /// How boundaries were derived in a recording without marks: `the loop at train.py:31`.
    pub found_by: Option<String>,
    /// Nanoseconds since the Unix epoch at which recording began.
    pub started_ns: u64,
    /// Framework and version, `torch 2.11.0`.
    pub framework: Option<String>,
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// Devices.
    pub devices: Vec<DeviceInfo>,
    /// Labels of the job.
    pub labels: Vec<(String, String)>,
    /// Resolution of event times in nanoseconds.
    pub resolution_ns: u32,
}

impl SessionInfo {
    /// A live session with default values: rank 0, no device, times with a resolution of 100 ns.
    ///
    /// Code that reads or writes sessions must list every field instead, so that a new field is not forgotten there.
    #[must_use]
    pub fn live(id: SessionId, job: impl Into<String>, started_ns: u64) -> Self {
        Self {
            id,
            job: job.into(),
            attempt: 0,
            rank: 0,
            world_size: None,
            source: SourceKind::Live,
            host: None,
            pid: None,
            parent_pid: None,
            launch: Launch::default(),
            role: None,
            found_by: None,
            started_ns,
            framework: None,
            settings: AllocatorSettings::default(),
            devices: Vec::new(),
            labels: Vec::new(),
            resolution_ns: 100,
        }
    }
}

/// The end of a session. Nothing follows it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SessionEnd {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Number of events that the source produced, over all devices.
    pub produced: u64,
    /// Numbers of events that were dropped on the way, by reason.
    pub dropped: Dropped,
    /// `None` if the process did not fail, else the failure (`out of memory`, `killed by signal 9`).
    pub failure: Option<String>,
    /// Frees of blocks whose allocation was not seen.
    pub unknown_frees: u64,
    /// Events that contradicted the block map and were corrected.
    pub contradictions: u64,
}
