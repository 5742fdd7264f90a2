//! Tests of the names and replacements of processes, for one kind of job at a time.

use memctl_model::{Dropped, SessionEnd, SessionId};

use super::*;

/// A running session of rank 0 on one host.
fn session(key: SessionKey, started_ns: u64, pid: u32, parent_pid: u32) -> SessionRow {
    let info = SessionInfo {
        host: Some("host".into()),
        pid: Some(pid),
        parent_pid: Some(parent_pid),
        ..SessionInfo::live(SessionId([key as u8; 16]), "job", started_ns)
    };
    SessionRow {
        key,
        job: 1,
        info,
        durable_seq: 0,
        heard_ns: started_ns,
        end: None,
        events: 0,
        stored_bytes: 0,
        stored_items: 0,
        dropped: Dropped::default(),
        expired_events: 0,
        overruled: false,
        duplicates: 0,
        missing_items: 0,
    }
}

fn of_rank(mut session: SessionRow, rank: u32) -> SessionRow {
    (session.info.rank, session.info.world_size) = (rank, Some(4));
    session
}

fn with_role(mut session: SessionRow, role: &str) -> SessionRow {
    session.info.role = Some(role.into());
    session
}

fn of_run(mut session: SessionRow, run: u64) -> SessionRow {
    session.info.launch.launcher = Some(run);
    session
}

fn ended(mut session: SessionRow, time_ns: u64) -> SessionRow {
    session.end = Some(SessionEnd { time_ns, ..SessionEnd::default() });
    session
}

/// The names in the order of keys.
fn named(sessions: &[SessionRow]) -> Vec<String> {
    let names = names(sessions.iter());
    sessions.iter().map(|session| names[&session.key].name.clone()).collect()
}

fn gone(sessions: &[SessionRow]) -> Vec<SessionKey> {
    let mut gone: Vec<SessionKey> = superseded(sessions).into_iter().collect();
    gone.sort_unstable();
    gone
}

#[test]
fn ranks_are_called_by_their_numbers_whatever_started_them() {
    let all: Vec<SessionRow> =
        (0..4).map(|rank| of_rank(session(i64::from(rank), 9 - u64::from(rank), 100 + rank, 50), rank)).collect();
    assert_eq!(named(&all), ["rank 0", "rank 1", "rank 2", "rank 3"]);
    assert_eq!(named(&[session(1, 5, 7, 1)]), ["rank 0"]);
    assert_eq!(named(&[with_role(session(1, 5, 7, 1), "trainer")]), ["rank 0"]);
}

#[test]
fn a_trainer_and_the_workers_that_it_started() {
    // The workers allocate before the trainer does.
    let all = [session(1, 30, 10, 1), session(2, 10, 12, 10), session(3, 20, 11, 10)];
    assert_eq!(named(&all), ["trainer", "worker-1", "worker-2"]);
    assert_eq!(gone(&all), [] as [SessionKey; 0]);
    let names = names(all.iter());
    assert_eq!((names[&1].is_child, names[&2].is_child), (false, true));
}

#[test]
fn siblings_whose_parent_allocates_nothing_are_workers() {
    let all = [session(1, 10, 11, 5), session(2, 10, 12, 5)];
    assert_eq!(named(&all), ["worker-1", "worker-2"]);
    // Nothing else is known about these processes.
    let all = [session(1, 10, 11, 5), session(2, 10, 12, 6)];
    assert_eq!(named(&all), ["process-1", "process-2"]);
}

#[test]
fn workers_of_several_ranks_are_counted_through() {
    let mut all: Vec<SessionRow> =
        (0..2).map(|rank| of_rank(session(i64::from(rank), 5, 100 + rank, 50), rank)).collect();
    all.push(of_rank(session(2, 8, 201, 101), 1));
    all.push(of_rank(session(3, 7, 200, 100), 0));
    assert_eq!(named(&all), ["rank 0", "rank 1", "worker-2", "worker-1"]);
}

#[test]
fn what_a_process_says_of_itself_names_it_and_no_two_share_a_name() {
    let all = [
        with_role(session(1, 1, 10, 1), "trainer"),
        with_role(session(2, 2, 11, 10), "rollout"),
        with_role(session(3, 3, 12, 10), "rollout"),
        with_role(session(4, 4, 13, 10), "rollout-2"),
        with_role(session(5, 5, 14, 10), "gw0"),
        with_role(session(6, 6, 15, 10), "gw0"),
        with_role(session(7, 7, 16, 10), "  weird name\u{1b}[2J "),
        session(8, 8, 17, 10),
    ];
    let expected = ["trainer", "rollout-1", "rollout-2", "rollout-2-1", "gw0", "gw0-1", "weird-name--2J-1", "worker-1"];
    assert_eq!(named(&all), expected);
}

#[test]
fn names_stay_when_more_workers_start() {
    let mut all = vec![session(1, 1, 10, 1), session(2, 2, 12, 10), session(3, 3, 11, 10)];
    let before = named(&all);
    all.push(session(4, 4, 9, 10));
    assert_eq!(named(&all)[..3], before);
    assert_eq!(named(&all)[3], "worker-3");
}

#[test]
fn the_same_process_again_takes_its_place() {
    assert_eq!(gone(&[session(1, 1, 10, 1), session(2, 2, 10, 1)]), [1]);
    let mut elsewhere = session(2, 2, 10, 1);
    elsewhere.info.host = Some("other".into());
    assert_eq!(gone(&[session(1, 1, 10, 1), elsewhere]), [] as [SessionKey; 0]);
}

#[test]
fn processes_of_one_run_that_follow_each_other_are_all_there_and_a_later_run_takes_their_places() {
    // The processes come from a shell loop under `memctl run`.
    let first = [of_run(ended(session(1, 1, 10, 5), 3), 7), of_run(ended(session(2, 4, 11, 6), 6), 7)];
    assert_eq!(gone(&first), [] as [SessionKey; 0]);
    let [a, b] = first;
    assert_eq!(gone(&[a.clone(), b.clone(), of_run(session(3, 8, 12, 9), 8)]), [1, 2]);
    // A run that has not ended continues in parallel, perhaps on another node.
    assert_eq!(gone(&[of_run(session(1, 1, 10, 5), 7), of_run(session(3, 8, 12, 9), 8)]), [] as [SessionKey; 0]);
    // Without a launcher, these are workers of one trainer, one after the other.
    let all = [session(1, 1, 10, 5), ended(session(2, 2, 11, 10), 3), session(3, 4, 12, 10)];
    assert_eq!(gone(&all), [] as [SessionKey; 0]);
    assert_eq!(gone(&[ended(session(1, 1, 10, 5), 3), session(2, 4, 11, 5)]), [1]);
}

#[test]
fn a_recording_that_is_imported_again_takes_its_place() {
    let imported = |key, rank| {
        let mut session = of_rank(session(key, 1, 0, 0), rank);
        (session.info.source, session.info.pid, session.info.parent_pid, session.info.host) =
            (SourceKind::Import, None, None, None);
        session
    };
    assert_eq!(gone(&[imported(1, 0), imported(2, 1), imported(3, 0)]), [1]);
}
