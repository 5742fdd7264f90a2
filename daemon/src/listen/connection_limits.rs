//! Limits on connections, and the choice of the connection that is closed to make room.
//!
//! Guarantees: connections are limited in total and per peer, so that one peer leaves room for others. A connection on
//! which a caller was admitted is never evicted. A connection on which no caller was ever admitted makes room for
//! others. A peer at its limit loses its own oldest such connection. When all places are taken, the peer with the most
//! such connections loses its oldest. The daemon's owner has spare places over its socket.
//!
//! (Over 400 lines: the state of a connection, and the choice of the one that makes room; a third are tests.)

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Peer;

/// A connection without requests for this long is closed.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(600);
/// The same limit for a connection on which no caller was ever admitted.
const UNKNOWN_IDLE_MAX: Duration = Duration::from_secs(60);
/// Additional places for the daemon's own user and root over its socket.
const OWNER_SPARE: usize = 16;
/// A connection that has sent less than HTTP/2's preface in this time is closed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Limits on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The limit in total.
    pub total: usize,
    /// The limit for one address or one user.
    pub per_peer: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        // An agent has one connection. Several hundred nodes of eight devices fit, even behind one address.
        Self { total: 8_192, per_peer: 4_096 }
    }
}

/// The unit that counts as one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Owner {
    Process,
    User(u32),
    /// An address; for IPv6, the /64 network of the host.
    Address(IpAddr),
}

impl Owner {
    pub(super) fn of(peer: &Peer) -> Self {
        match peer {
            Peer::Embedded => Self::Process,
            Peer::Unix { uid, .. } => Self::User(*uid),
            Peer::Tcp { address, .. } => Self::Address(match address.ip().to_canonical() {
                IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
                address => address,
            }),
        }
    }
}

impl Owner {
    /// Whether the peer is this process, its user or root.
    fn is_owner(self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        matches!(self, Self::Process) || matches!(self, Self::User(uid) if uid == own || uid == 0)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.write_str("this process"),
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
        }
    }
}

/// The state of a connection during its life, which its requests share.
pub(super) struct State {
    pub(super) whose: Owner,
    opened: Instant,
    /// Milliseconds from `opened` to the last time that a request began or ended.
    active_ms: AtomicU64,
    requests: AtomicU32,
    /// Whether a caller was admitted on it.
    admitted: AtomicBool,
    cut: AtomicBool,
    untaken: Mutex<UnreadBytes>,
    /// The waker of the task that serves the connection.
    waker: Mutex<Option<Waker>>,
}

/// Responses with data that the peer has not taken yet, by number.
#[derive(Default)]
struct UnreadBytes {
    next: u64,
    /// When the data became ready, and how long it may wait.
    since: BTreeMap<u64, (Instant, Duration)>,
}

impl State {
    pub(super) fn new(whose: Owner) -> Arc<Self> {
        Arc::new(Self {
            whose,
            opened: Instant::now(),
            active_ms: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            admitted: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            untaken: Mutex::default(),
            waker: Mutex::new(None),
        })
    }

    /// Whether the connection must end. If not, `waker` is woken when it must.
    pub(super) fn is_cut(&self, waker: &Waker) -> bool {
        {
            let mut kept = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
                *kept = Some(waker.clone());
            }
        }
        // The flag is read after the waker is stored, because `cut` sets the flag first and wakes then.
        self.cut.load(Ordering::Acquire)
    }

    /// Ends the connection, even with requests in progress.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    /// Begins a request, which ends when the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Underway {
        // Relaxed here and below: these are independent counters and timestamps that timers read.
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Underway(self.clone())
    }

    fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        self.active_ms.store(self.opened.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Begins a response. Its parts may wait for `patience` until the peer takes them.
    pub(super) fn answer(self: &Arc<Self>, patience: Duration) -> Taking {
        let mut untaken = self.untaken();
        untaken.next += 1;
        let number = untaken.next;
        drop(untaken);
        Taking { state: self.clone(), number, patience }
    }

    fn untaken(&self) -> MutexGuard<'_, UnreadBytes> {
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reason why the connection must be closed, if it must. `heard` is whether the peer has sent anything.
    pub(super) fn overdue(&self, heard: bool) -> Option<&'static str> {
        let age = self.opened.elapsed();
        if !heard {
            return (age >= SILENCE_MAX).then_some("it said nothing");
        }
        // With a flow-control window of zero, a peer can leave responses in this process without filling the
        // connection.
        if self.untaken().since.values().any(|(since, patience)| since.elapsed() >= *patience) {
            return Some("it does not take its answers");
        }
        let idle = age.saturating_sub(Duration::from_millis(self.active_ms.load(Ordering::Relaxed)));
        let idle_max = if self.is_admitted() { IDLE_MAX } else { UNKNOWN_IDLE_MAX };
        (self.requests.load(Ordering::Relaxed) == 0 && idle >= idle_max).then_some("nothing was asked on it")
    }
}

/// Lets the gate mark a connection as admitted. It is part of each request's extensions.
#[derive(Clone)]
pub struct Admission(pub(super) Arc<State>);

impl Admission {
    /// Marks the connection, because a caller was admitted on it.
    pub fn admitted(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }
}

/// A request in progress.
pub(crate) struct Underway(Arc<State>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response that is being sent to the peer.
pub(super) struct Taking {
    state: Arc<State>,
    number: u64,
    patience: Duration,
}

impl Taking {
    /// Records that data is ready for the peer.
    pub(super) fn ready(&self) {
        self.state.untaken().since.insert(self.number, (Instant::now(), self.patience));
    }

    /// Records that the peer has taken all ready data.
    pub(super) fn taken(&self) {
        self.state.untaken().since.remove(&self.number);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.taken();
    }
}

#[derive(Default)]
struct Inner {
    next: u64,
    living: BTreeMap<u64, Arc<State>>,
    by_peer: HashMap<Owner, usize>,
}

/// The connections of a daemon.
pub struct Connections {
    limits: ConnectionLimits,
    inner: Mutex<Inner>,
    refused: AtomicU64,
}

/// A connection's place, which is released on drop.
pub(super) struct Place {
    connections: Arc<Connections>,
    number: u64,
    pub(super) state: Arc<State>,
}

impl Connections {
    /// A list without connections.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, inner: Mutex::default(), refused: AtomicU64::new(0) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections accepted so far.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().next
    }

    /// Takes a place for a connection of this peer, or returns the limit that it exceeds.
    pub(super) fn place(self: &Arc<Self>, peer: &Peer) -> Result<Place, String> {
        let whose = Owner::of(peer);
        let mut inner = self.lock();
        let of_peer = inner.by_peer.get(&whose).copied().unwrap_or(0);
        let spare = if whose.is_owner() { OWNER_SPARE } else { 0 };
        let is_full = inner.living.len() >= self.limits.total + spare;
        let beyond = if is_full {
            Some(format!(
                "there are {} connections, and no more are taken (max_connections): try again later, or have the operator allow more",
                self.limits.total
            ))
        } else if of_peer >= self.limits.per_peer {
            Some(format!(
                "{whose} has {of_peer} connections, and one peer may have {} (max_connections_per_peer): close some, or have the operator allow more",
                self.limits.per_peer
            ))
        } else {
            None
        };
        if let Some(beyond) = beyond {
            // A peer at its own limit loses one of its own connections.
            let loses = if is_full { inner.most_unknown() } else { Some(whose) };
            let Some(number) = loses.and_then(|loses| inner.oldest_unknown(loses)) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(beyond);
            };
            if let Some(state) = inner.remove(number) {
                state.cut();
            }
        }
        inner.next += 1;
        let (number, state) = (inner.next, State::new(whose));
        inner.living.insert(number, state.clone());
        *inner.by_peer.entry(whose).or_default() += 1;
        drop(inner);
        Ok(Place { connections: self.clone(), number, state })
    }

    /// Ends the oldest connection on which no caller was ever admitted. Returns whether there was one.
    pub(super) fn cut_unknown(&self) -> bool {
        let mut inner = self.lock();
        let victim = inner.living.iter().find(|(_, state)| !state.is_admitted()).map(|(number, _)| *number);
        let state = victim.and_then(|number| inner.remove(number));
        drop(inner);
        state.map(|state| state.cut()).is_some()
    }

    /// Ends every connection.
    pub fn cut_all(&self) {
        let states: Vec<Arc<State>> = self.lock().living.values().cloned().collect();
        states.iter().for_each(|state| state.cut());
    }

    /// The number of connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().living.len()
    }

    /// The number of refused connections.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// The peer with the most connections on which no caller was ever admitted.
    fn most_unknown(&self) -> Option<Owner> {
        let mut counts: HashMap<Owner, usize> = HashMap::new();
        for state in self.living.values().filter(|state| !state.is_admitted()) {
            *counts.entry(state.whose).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(whose, _)| whose)
    }

    /// The oldest of a peer's connections on which no caller was ever admitted.
    fn oldest_unknown(&self, whose: Owner) -> Option<u64> {
        let mut own = self.living.iter().filter(|(_, state)| state.whose == whose && !state.is_admitted());
        own.next().map(|(number, _)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<Arc<State>> {
        let state = self.living.remove(&number)?;
        if let Some(count) = self.by_peer.get_mut(&state.whose) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&state.whose);
            }
        }
        Some(state)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // An evicted connection has already left the list.
        self.connections.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Peer {
        Peer::Unix { uid, gid: 0, pid: None }
    }

    #[test]
    fn a_flood_pushes_out_its_own_unknown_connections_and_no_others() {
        let connections = Connections::new(ConnectionLimits { total: 4, per_peer: 2 });
        let honest = connections.place(&user(1)).unwrap();
        let request = honest.state.begin();
        Admission(honest.state.clone()).admitted();
        let (first, second) = (connections.place(&user(2)).unwrap(), connections.place(&user(2)).unwrap());
        let third = connections.place(&user(2)).unwrap();
        let waker = Waker::noop();
        assert!(first.state.is_cut(waker) && !second.state.is_cut(waker) && !third.state.is_cut(waker));
        drop(first);
        assert_eq!(connections.count(), 3);
        // A caller was admitted on both, so neither is evicted.
        for place in [&second, &third] {
            Admission(place.state.clone()).admitted();
        }
        assert!(connections.place(&user(2)).err().unwrap().contains("one peer may have 2"));
        let other = connections.place(&user(3)).unwrap();
        Admission(other.state.clone()).admitted();
        assert!(connections.place(&user(4)).err().unwrap().contains("no more are taken"));
        assert!(!honest.state.is_cut(waker));
        assert_eq!(connections.refused(), 2);
        drop((honest, request, second, third, other));
        let _unknown = connections.place(&user(5)).unwrap();
        assert_eq!(connections.count(), 1);
        assert!(connections.cut_unknown() && !connections.cut_unknown());
    }

    #[test]
    fn those_who_ask_only_for_health_leave_room_for_others_and_for_the_owner() {
        let connections = Connections::new(ConnectionLimits { total: 4, per_peer: 2 });
        let watchers: Vec<Place> = [1, 1, 2, 2].map(|uid| connections.place(&user(uid)).unwrap()).into();
        let watching: Vec<Underway> = watchers.iter().map(|place| place.state.begin()).collect();
        let waker = Waker::noop();
        let agent = connections.place(&user(3)).expect("one of those without an identity makes room");
        assert_eq!(watchers.iter().filter(|place| place.state.is_cut(waker)).count(), 1);
        Admission(agent.state.clone()).admitted();
        watchers.iter().for_each(|place| Admission(place.state.clone()).admitted());
        assert!(connections.place(&user(4)).is_err(), "all have proved who they are");
        let owner = user(rustix::process::geteuid().as_raw());
        assert!(connections.place(&owner).is_ok(), "the owner has places of its own");
        assert!(!agent.state.is_cut(waker));
        drop((watchers, watching, agent));
    }

    #[test]
    fn a_peer_that_takes_no_answer_goes_and_others_wait() {
        let state = State::new(Owner::Process);
        let (request, patient) = (state.begin(), state.answer(Duration::from_secs(3_600)));
        patient.ready();
        assert_eq!(state.overdue(true), None);
        let answer = state.answer(Duration::ZERO);
        assert_eq!(state.overdue(true), None, "nothing is ready");
        answer.ready();
        assert_eq!(state.overdue(true), Some("it does not take its answers"));
        answer.taken();
        assert_eq!(state.overdue(true), None);
        answer.ready();
        drop(answer);
        assert_eq!(state.overdue(true), None, "the answer is gone");
        drop((request, patient));
        assert!(state.untaken().since.is_empty());
    }

    #[test]
    fn the_addresses_of_one_host_are_one_peer() {
        let whose = |text: &str| Owner::of(&Peer::Tcp { address: text.parse().unwrap(), certificate: None });
        assert_eq!(whose("[2001:db8::1]:1"), whose("[2001:db8::2]:9"));
        assert_ne!(whose("[2001:db8:0:1::1]:1"), whose("[2001:db8::1]:1"));
        assert_eq!(whose("[::ffff:10.0.0.1]:1"), whose("10.0.0.1:2"));
        assert_ne!(whose("10.0.0.1:1"), whose("10.0.0.2:1"));
    }
}
