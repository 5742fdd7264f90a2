//! Tests of jobs and sessions: opening, describing, listing, closing.

use std::sync::Arc;

use memctl_daemon::store::{Retention, Selection, Store, StoreError, Totals, Which};
use memctl_model::{AllocatorSettings, DeviceIndex, DeviceInfo, Launch, SessionInfo, SourceKind};
use memctl_proto::v1::ItemKind;

use super::made::{self, NOW_NS, append, chunk, open, session};

pub async fn an_empty_store_answers_everything(store: Arc<dyn Store>) {
    let info = store.info().await.unwrap();
    assert!(["memory", "sqlite", "postgres"].contains(&info.kind), "{info:?}");
    assert!(info.schema_version >= 1 && !info.version.is_empty() && !info.place.is_empty(), "{info:?}");
    assert_eq!(store.jobs(10).await.unwrap(), []);
    assert_eq!(store.job(&Which::Latest, None).await.unwrap(), None);
    assert_eq!(store.job(&Which::written("none"), Some(1)).await.unwrap(), None);
    assert_eq!(store.job(&Which::written("zero\0byte"), None).await.unwrap(), None);
    assert_eq!(store.sessions(1).await.unwrap(), []);
    assert_eq!(store.devices(1).await.unwrap(), []);
    assert_eq!(store.epoch_ends(1).await.unwrap(), []);
    assert_eq!(store.chunks(1, 0, Selection::default()).await.unwrap(), []);
    assert_eq!(store.payloads(1, &[1]).await.unwrap(), []);
    assert_eq!(store.items(1, ItemKind::Marks, None, Selection::default()).await.unwrap(), []);
    assert_eq!(store.keyframe_before(1, 0, u64::MAX).await.unwrap(), None);
    assert_eq!(store.gaps(1).await.unwrap(), []);
    assert_eq!(store.totals().await.unwrap(), Totals::default());
    assert_eq!(store.delete_job(1).await.unwrap(), Default::default());
    let policy = Retention { age_ns: Some(0), bytes: Some(0), ..Retention::default() };
    assert_eq!(store.expire(policy, NOW_NS).await.unwrap(), Default::default());
    store.append(Vec::new()).await.unwrap();
}

pub async fn a_session_is_found_again(store: Arc<dyn Store>) {
    let info = session(1, "job", 0);
    let opened = store.open_session(&info, NOW_NS).await.unwrap();
    assert_eq!((opened.durable_seq, opened.ended), (0, false));
    store.append(vec![append(opened.key, vec![chunk(1, 0), chunk(2, 0)])]).await.unwrap();
    // Differences in other details of the second hello do not matter.
    let mut changed = info.clone();
    (changed.host, changed.pid) = (Some("another".into()), None);
    let again = store.open_session(&changed, NOW_NS + 5).await.unwrap();
    assert_eq!((again.key, again.job, again.durable_seq, again.ended), (opened.key, opened.job, 2, false));
    let rows = store.sessions(opened.job).await.unwrap();
    assert_eq!((rows.len(), &rows[0].info, rows[0].heard_ns), (1, &info, NOW_NS + 5));
    assert_eq!(store.jobs(10).await.unwrap().len(), 1, "no job is made for a session that is there");
    // A clock that went back does not lower the time at which the session was last heard from.
    store.open_session(&info, NOW_NS - 5).await.unwrap();
    assert_eq!(store.sessions(opened.job).await.unwrap()[0].heard_ns, NOW_NS + 5);
    let mut last = append(opened.key, vec![chunk(3, 0)]);
    last.end = Some(made::end(30));
    store.append(vec![last]).await.unwrap();
    let ended = store.open_session(&info, NOW_NS).await.unwrap();
    assert_eq!((ended.durable_seq, ended.ended), (3, true));
    assert_eq!(store.sessions(opened.job).await.unwrap()[0].end, Some(made::end(30)));
}

pub async fn descriptions_survive(store: Arc<dyn Store>) {
    let mut odd = session(1, "a/B_c.d:e@f+g-0", 1_000_000);
    odd.attempt = u32::MAX;
    odd.world_size = Some(u32::MAX);
    odd.source = SourceKind::Import;
    odd.host = Some("ho\0st 'quoted\"; DROP TABLE job; -- ☃ 漢字 \u{10ffff}".into());
    odd.pid = Some(u32::MAX);
    odd.started_ns = i64::MAX as u64;
    odd.framework = Some(String::new());
    odd.settings = AllocatorSettings {
        conf: "max_split_size_mb:128,\n\0".into(),
        max_split_size: Some(u64::MAX),
        roundup_power2_divisions: [u32::MAX; 16],
        expandable_segments: true,
        large_segment_size: u64::MAX,
        garbage_collection_permille: 1000,
    };
    odd.devices = vec![
        DeviceInfo { index: DeviceIndex(63), uuid: None, name: Some("\0".into()), total_bytes: Some(u64::MAX) },
        made::device(0),
    ];
    odd.labels = vec![("".into(), "".into()), ("k\0'".into(), "☃".into()), ("k\0'".into(), "again".into())];
    let plain = memctl_model::SessionInfo {
        world_size: None,
        host: None,
        pid: None,
        parent_pid: None,
        launch: Launch::default(),
        role: None,
        found_by: None,
        started_ns: 0,
        framework: None,
        devices: Vec::new(),
        resolution_ns: 1_000_000_000,
        ..session(2, &"x".repeat(256), 0)
    };
    for info in [odd, plain] {
        let opened = store.open_session(&info, u64::MAX).await.unwrap();
        let rows = store.sessions(opened.job).await.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0].info, rows[0].key, rows[0].job), (&info, opened.key, opened.job));
        assert_eq!(rows[0].heard_ns, i64::MAX as u64, "a clock beyond 2262 stops there");
        let job = store.job(&Which::written(&info.job), Some(info.attempt)).await.unwrap().unwrap();
        assert_eq!((job.world_size, &job.labels, job.started_ns), (info.world_size, &info.labels, info.started_ns));
        let mut devices: Vec<_> = store.devices(opened.job).await.unwrap().into_iter().map(|row| row.info).collect();
        let mut expected = info.devices.clone();
        expected.sort_by_key(|device| device.index);
        assert_eq!(devices, expected);
        devices.clear();
    }
}

pub async fn jobs_gather_what_their_sessions_say(store: Arc<dyn Store>) {
    let mut first = session(1, "job", 0);
    (first.world_size, first.started_ns) = (None, NOW_NS + 9);
    let mut second = session(2, "job", 1);
    (second.world_size, second.started_ns) = (Some(2), NOW_NS + 1);
    second.labels = vec![("team".into(), "vision".into())];
    let mut third = session(3, "job", 2);
    (third.world_size, third.started_ns) = (None, NOW_NS + 5);
    third.labels = vec![("team".into(), "other".into())];
    let mut keys = Vec::new();
    for info in [&first, &second, &third] {
        keys.push(store.open_session(info, NOW_NS).await.unwrap().job);
    }
    assert!(keys.windows(2).all(|pair| pair[0] == pair[1]));
    let job = store.job(&Which::written("job"), None).await.unwrap().unwrap();
    assert_eq!((job.started_ns, job.world_size, job.labels), (NOW_NS + 1, Some(2), second.labels));
}

pub async fn jobs_are_listed_and_found(store: Arc<dyn Store>) {
    for (id, job, attempt, started) in [(1, "old", 0, 1), (2, "twice", 0, 2), (3, "twice", 7, 4), (4, "late", 0, 3)] {
        let mut info = session(id, job, 0);
        (info.attempt, info.started_ns) = (attempt, started);
        store.open_session(&info, NOW_NS).await.unwrap();
    }
    let listed = |limit| {
        let store = store.clone();
        async move {
            let rows = store.jobs(limit).await.unwrap();
            rows.into_iter().map(|row| (row.name, row.attempt, row.attempts)).collect::<Vec<_>>()
        }
    };
    let row = |name: &str, attempt, attempts| (name.to_owned(), attempt, attempts);
    let all = [row("twice", 7, 2), row("late", 0, 1), row("twice", 0, 2), row("old", 0, 1)];
    assert_eq!(listed(100).await, all);
    assert_eq!(listed(2).await, all[..2]);
    assert_eq!(listed(0).await, []);
    assert_eq!(listed(u32::MAX).await, all);
    let found = |name: Option<&'static str>, attempt| {
        let store = store.clone();
        let which = Which::written(name.unwrap_or_default());
        async move { store.job(&which, attempt).await.unwrap().map(|row| (row.name, row.attempt, row.attempts)) }
    };
    assert_eq!(found(None, None).await, Some(row("twice", 7, 2)));
    assert_eq!(found(None, Some(0)).await, Some(row("twice", 0, 2)));
    assert_eq!(found(Some("twice"), None).await, Some(row("twice", 7, 2)));
    assert_eq!(found(Some("old"), None).await, Some(row("old", 0, 1)));
    assert_eq!(found(Some("old"), Some(1)).await, None);
    assert_eq!(found(Some("OLD"), None).await, None, "names are compared as they are");
    assert_eq!(found(Some("ol%"), None).await, None);
}

pub async fn runs_of_a_name_stay_apart(store: Arc<dyn Store>) {
    let launched = |id, rank, launcher, attempt| {
        let mut info = session(id, "job", rank);
        info.pid = Some(id);
        (info.attempt, info.started_ns) = (attempt, NOW_NS + u64::from(id));
        info.launch = Launch { launcher: Some(launcher), ..Launch::default() };
        info
    };
    // The launches are two ranks, the same ranks launched again concurrently, an elastic restart of the first launch, a
    // launch of two hosts, and another launch of rank 0 with the same group, which is a run of its own.
    let grouped = |id, rank, launcher| {
        let info = launched(id, rank, launcher, 0);
        SessionInfo { launch: Launch { group: Some("slurm/c/7.0".into()), ..info.launch }, ..info }
    };
    let infos = [
        (launched(1, 0, 71, 0), 1),
        (launched(2, 0, 72, 0), 2),
        (launched(3, 1, 71, 0), 1),
        (launched(4, 0, 71, 1), 1),
        (grouped(5, 0, 73), 3),
        (grouped(6, 1, 74), 3),
        (grouped(7, 0, 75), 4),
        (launched(8, 1, 72, 0), 2),
    ];
    for (info, run) in &infos {
        assert_eq!(store.open_session(info, NOW_NS).await.unwrap().run, *run, "{:?}", info.id);
        assert_eq!(store.open_session(info, NOW_NS).await.unwrap().run, *run, "it stays there");
    }
    let found = async |which: &Which| {
        let row = store.job(which, None).await.unwrap().unwrap();
        (row.run, row.attempt, row.attempts, row.has_other_runs, store.sessions(row.key).await.unwrap().len())
    };
    assert_eq!(found(&Which::written("job")).await, (4, 0, 1, true, 1), "the newest");
    assert_eq!(found(&Which::written("job#1")).await, (1, 1, 2, true, 1));
    assert_eq!(found(&Which::written("job#2")).await, (2, 0, 1, true, 2));
    assert_eq!(found(&Which::OfLauncher("job".into(), 74)).await, (3, 0, 1, true, 2));
    assert_eq!(found(&Which::Latest).await, (4, 0, 1, true, 1));
    for missing in [Which::written("job#5"), Which::written("other#1"), Which::OfLauncher("job".into(), 99)] {
        assert_eq!(store.job(&missing, None).await.unwrap(), None, "{missing}");
    }
    let first = store.job(&Which::written("job#1"), Some(0)).await.unwrap().unwrap();
    assert_eq!((first.label(), store.sessions(first.key).await.unwrap().len()), ("job#1".to_owned(), 2));
    let other = store.open_session(&session(9, "other", 0), NOW_NS).await.unwrap();
    assert_eq!(
        (other.run, store.job(&Which::written("other"), None).await.unwrap().unwrap().label()),
        (1, "other".into())
    );
}

pub async fn an_import_is_the_latest_however_old_its_recording_is(store: Arc<dyn Store>) {
    store.open_session(&session(1, "live", 0), NOW_NS).await.unwrap();
    let old = SessionInfo { source: SourceKind::Import, started_ns: NOW_NS - 9, ..session(2, "recorded", 0) };
    store.open_session(&old, NOW_NS + 5).await.unwrap();
    let names: Vec<String> = store.jobs(10).await.unwrap().into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["recorded", "live"]);
    assert_eq!(store.job(&Which::Latest, None).await.unwrap().unwrap().arrived_ns, NOW_NS + 5);
}

/// Many launches of one name at once: every launch gets its own run with all its ranks.
pub async fn launches_at_once_have_runs_of_their_own(store: Arc<dyn Store>) {
    let open = |launch: u32, rank| {
        let mut info = session(launch * 10 + rank, "job", rank);
        info.launch = Launch { launcher: Some(u64::from(launch)), ..Launch::default() };
        let store = store.clone();
        tokio::spawn(async move { (launch, store.open_session(&info, NOW_NS).await.unwrap().run) })
    };
    let opening: Vec<_> = (0..4).flat_map(|rank| (1..=6).map(move |launch| (launch, rank))).collect();
    let opening: Vec<_> = opening.into_iter().map(|(launch, rank)| open(launch, rank)).collect();
    let mut runs = std::collections::BTreeMap::new();
    for opened in opening {
        let (launch, run) = opened.await.unwrap();
        assert_eq!(*runs.entry(launch).or_insert(run), run, "launch {launch}");
    }
    let mut numbers: Vec<u32> = runs.into_values().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
}

pub async fn sessions_are_ordered_by_rank_then_start(store: Arc<dyn Store>) {
    for (id, rank, started) in [(1, 2, 1), (2, 0, 9), (3, 0, 3), (4, 1, 5)] {
        let mut info = session(id, "job", rank);
        (info.started_ns, info.launch.launcher) = (started, Some(1));
        store.open_session(&info, NOW_NS).await.unwrap();
    }
    let job = store.job(&Which::Latest, None).await.unwrap().unwrap();
    let order: Vec<_> =
        store.sessions(job.key).await.unwrap().iter().map(|row| (row.info.rank, row.info.started_ns)).collect();
    assert_eq!(order, [(0, 3), (0, 9), (1, 5), (2, 1)]);
    let devices: Vec<_> = store.devices(job.key).await.unwrap().iter().map(|row| row.session).collect();
    assert!(devices.is_sorted() && devices.len() == 4);
}

pub async fn what_cannot_be_stored_is_refused_at_open(store: Arc<dyn Store>) {
    let mut nameless = session(1, "", 0);
    nameless.job = "no\0name".into();
    let mut late = session(2, "job", 0);
    late.started_ns = i64::MAX as u64 + 1;
    let mut far = session(3, "job", 0);
    far.devices = vec![DeviceInfo { index: DeviceIndex(200), ..DeviceInfo::default() }];
    for info in [nameless, late, far] {
        let error = store.open_session(&info, NOW_NS).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    }
    assert_eq!(store.totals().await.unwrap(), Totals::default(), "nothing of it is there");
}

pub async fn many_open_the_same_session_at_once(store: Arc<dyn Store>) {
    let tasks: Vec<_> = (0..16)
        .map(|rank| {
            let store = store.clone();
            // There are four sessions of one job, with four openers each.
            tokio::spawn(async move { store.open_session(&session(rank % 4, "job", rank % 4), NOW_NS).await.unwrap() })
        })
        .collect();
    let mut keys = std::collections::BTreeSet::new();
    for task in tasks {
        keys.insert(task.await.unwrap().key);
    }
    assert_eq!(keys.len(), 4);
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.jobs, totals.sessions), (1, 4));
}

pub async fn a_closed_store_says_so(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    let errors = [
        store.info().await.err(),
        store.open_session(&session(2, "job", 0), NOW_NS).await.err(),
        store.append(vec![append(key, vec![chunk(1, 0)])]).await.err(),
        store.jobs(1).await.err(),
        store.payloads(key, &[1]).await.err(),
        store.expire(Retention { age_ns: Some(0), bytes: Some(0), ..Retention::default() }, NOW_NS).await.err(),
        store.delete_job(1).await.err(),
        store.totals().await.err(),
    ];
    for error in errors {
        assert!(matches!(error, Some(StoreError::Closed { .. })), "{error:?}");
    }
}
