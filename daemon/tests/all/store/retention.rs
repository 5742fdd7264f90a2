//! Tests of retention: what is removed, in which order, and how it is counted.
//! (Over 400 lines: each case is independent.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memctl_daemon::store::{Expired, Retention, Selection, SessionRow, Store, WatchRow, Which};
use memctl_proto::v1::ItemKind;

use memctl_daemon::clock::SteadyClock;
use memctl_daemon::retention;

use super::made::{self, NOW_NS, SECOND_NS, append, chunk, item, keyframe, open, session};

async fn sessions(store: &dyn Store, job: &str) -> Vec<SessionRow> {
    let job = store.job(&Which::written(job), None).await.unwrap().unwrap();
    store.sessions(job.key).await.unwrap()
}

async fn chunk_seqs(store: &dyn Store, session: i64) -> Vec<u64> {
    store.chunks(session, 0, Selection::default()).await.unwrap().iter().map(|chunk| chunk.seq).collect()
}

fn by_bytes(bytes: u64) -> Retention {
    Retention { bytes: Some(bytes), ..Retention::default() }
}

/// The total bytes of all jobs.
async fn kept(store: &dyn Store) -> u64 {
    store.kept_bytes().await.unwrap().iter().map(|(_, bytes)| bytes).sum()
}

/// Size of a chunk of 100 bytes with its rows.
const CHUNK: u64 = 356;

/// Checks that the sums of the sessions equal the totals. This holds as long as no job expired by age.
async fn assert_sums(store: &dyn Store) {
    let totals = store.totals().await.unwrap();
    let mut rows = Vec::new();
    for job in store.jobs(1_000).await.unwrap() {
        rows.extend(store.sessions(job.key).await.unwrap());
    }
    assert_eq!(totals.stored_bytes, rows.iter().map(|row| row.stored_bytes).sum::<u64>());
    assert_eq!(totals.events, rows.iter().map(|row| row.events).sum::<u64>());
    assert_eq!(totals.expired_events, rows.iter().map(|row| row.expired_events).sum::<u64>());
}

pub async fn deleting_a_job_leaves_the_others(store: Arc<dyn Store>) {
    for (id, job) in [(1, "a"), (2, "a"), (3, "b")] {
        let key = open(&*store, id, job, id).await;
        let mut sent = append(key, vec![chunk(2, 0), chunk(3, 0), item(4, ItemKind::Marks, None)]);
        sent.gaps = vec![memctl_daemon::store::Gap { first: 1, last: 1 }];
        sent.epoch_ends = vec![made::epoch_end(0, 1, 1)];
        store.append(vec![sent]).await.unwrap();
    }
    let (a, b) = (store.job(&Which::written("a"), None).await.unwrap().unwrap().key, sessions(&*store, "b").await);
    let keys: Vec<i64> = sessions(&*store, "a").await.iter().map(|row| row.key).collect();
    let gone = store.delete_job(a).await.unwrap();
    assert_eq!(gone, Expired { jobs: 1, sessions: 2, chunks: 4, events: 40, items: 6, bytes: 500 });
    assert_eq!(store.job(&Which::written("a"), None).await.unwrap(), None);
    assert_eq!(store.sessions(a).await.unwrap(), []);
    assert_eq!(store.devices(a).await.unwrap(), []);
    assert_eq!(store.epoch_ends(a).await.unwrap(), []);
    assert_eq!(store.gaps(a).await.unwrap(), []);
    for key in keys {
        assert_eq!(chunk_seqs(&*store, key).await, [0_u64; 0]);
        assert_eq!(store.payloads(key, &[2, 3, 4]).await.unwrap(), []);
        assert_eq!(store.items(key, ItemKind::Marks, None, Selection::default()).await.unwrap(), []);
    }
    assert_eq!(store.delete_job(a).await.unwrap(), Expired::default());
    assert_eq!(sessions(&*store, "b").await, b);
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.jobs, totals.sessions, totals.events, totals.stored_bytes), (1, 1, 20, 250));
    assert_eq!((totals.missing_items, totals.expired_events), (1, 0));
}

pub async fn deleted_jobs_come_back_empty(store: Arc<dyn Store>) {
    let info = session(1, "job", 0);
    let before = store.open_session(&info, NOW_NS).await.unwrap();
    store.append(vec![append(before.key, vec![chunk(1, 0)])]).await.unwrap();
    store.delete_job(before.job).await.unwrap();
    let error = store.append(vec![append(before.key, vec![chunk(2, 0)])]).await.unwrap_err();
    assert_eq!(error.session(), Some(before.key), "{error}");
    let after = store.open_session(&info, NOW_NS).await.unwrap();
    assert_eq!((after.durable_seq, after.ended), (0, false));
    assert!(after.key != before.key && after.job != before.job, "keys are not used twice");
    store.append(vec![append(after.key, vec![chunk(1, 0)])]).await.unwrap();
    assert_eq!(store.totals().await.unwrap().events, 10);
}

pub async fn old_jobs_go_whole(store: Arc<dyn Store>) {
    // One session of "mixed" was heard from recently; "idle" never sent any data.
    for (id, job, heard_ago_s) in
        [(1, "old", 100), (2, "mixed", 100), (3, "mixed", 10), (4, "new", 0), (5, "idle", 100)]
    {
        let heard_ns = NOW_NS - heard_ago_s * SECOND_NS;
        let key = store.open_session(&session(id, job, id), heard_ns).await.unwrap().key;
        if job != "idle" {
            let mut sent = append(key, vec![chunk(1, 0), item(2, ItemKind::Marks, None)]);
            sent.heard_ns = heard_ns;
            store.append(vec![sent]).await.unwrap();
        }
    }
    let policy = |age_s: u64| Retention { age_ns: Some(age_s * SECOND_NS), ..Retention::default() };
    assert_eq!(store.expire(policy(100), NOW_NS).await.unwrap(), Expired::default(), "exactly as old is not older");
    let gone = store.expire(policy(99), NOW_NS).await.unwrap();
    assert_eq!(gone, Expired { jobs: 2, sessions: 2, chunks: 1, events: 10, items: 2, bytes: 150 });
    let mut left: Vec<String> = store.jobs(10).await.unwrap().into_iter().map(|job| job.name).collect();
    left.sort();
    assert_eq!(left, ["mixed", "new"]);
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.sessions, totals.stored_bytes), (3, 450));
    assert_eq!((totals.events, totals.expired_events), (40, 10), "events of an expired job are counted for ever");
    // Data that is deleted on request has not expired.
    let job = store.job(&Which::written("new"), None).await.unwrap().unwrap();
    store.delete_job(job.key).await.unwrap();
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.events, totals.expired_events), (30, 10));
    // A later clock alone does not make any job old: new data must arrive.
    let later_ns = NOW_NS + 1_000_000 * SECOND_NS;
    assert_eq!(store.expire(policy(0), later_ns).await.unwrap().jobs, 0);
    store.open_session(&session(9, "later", 0), later_ns).await.unwrap();
    assert_eq!(store.expire(policy(0), later_ns).await.unwrap().jobs, 1);
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.jobs, totals.events, totals.expired_events, totals.stored_bytes), (1, 30, 30, 0));
    assert_eq!(store.expire(policy(u64::MAX / SECOND_NS), NOW_NS).await.unwrap(), Expired::default());
}

pub async fn the_oldest_chunks_of_ended_sessions_go_first(store: Arc<dyn Store>) {
    // Sessions 1 and 2 have ended, and the chunks of 2 are between those of 1 in time. Session 3 is running and has the
    // oldest chunks.
    let mut keys = Vec::new();
    for (id, shift_us) in [(1, 0), (2, 5), (3, -1_000_000_i64)] {
        let key = open(&*store, id, "job", id).await;
        let mut items: Vec<_> = (1..=4).map(|seq| chunk(seq, 0)).collect();
        for item in &mut items {
            item.index.first_ns = item.index.first_ns.saturating_add_signed(shift_us * 1_000);
            item.index.last_ns = item.index.last_ns.saturating_add_signed(shift_us * 1_000);
        }
        items.push(item(5, ItemKind::Marks, None));
        let mut sent = append(key, items);
        sent.end = (id != 3).then(|| made::end(40));
        store.append(vec![sent]).await.unwrap();
        keys.push(key);
    }
    let all = 3 * 450;
    assert_eq!(store.totals().await.unwrap().stored_bytes, all);
    let gone = store.expire(by_bytes(kept(&*store).await - 2 * CHUNK - 1), NOW_NS).await.unwrap();
    assert_eq!(
        gone,
        Expired { chunks: 3, events: 30, items: 3, bytes: 300, ..Expired::default() },
        "as many as needed, not more"
    );
    assert_eq!(chunk_seqs(&*store, keys[0]).await, [3, 4]);
    assert_eq!(chunk_seqs(&*store, keys[1]).await, [2, 3, 4]);
    assert_eq!(chunk_seqs(&*store, keys[2]).await, [1, 2, 3, 4]);
    assert_eq!(store.payloads(keys[0], &[1, 2, 3]).await.unwrap().len(), 1);
    let rows = sessions(&*store, "job").await;
    assert_eq!(rows.iter().map(|row| row.expired_events).collect::<Vec<_>>(), [20, 10, 0]);
    assert_eq!(rows.iter().map(|row| row.stored_bytes).collect::<Vec<_>>(), [250, 350, 450]);
    assert!(rows.iter().all(|row| row.events == 40), "stored is what was stored");
    assert_sums(&*store).await;
    // Ended sessions lose chunks first, then the running one. Its latest chunk stays under any limit, and so do the
    // last marks.
    let gone = store.expire(by_bytes(kept(&*store).await - 5 * CHUNK), NOW_NS).await.unwrap();
    assert_eq!((gone.chunks, gone.events), (5, 50));
    assert_eq!(chunk_seqs(&*store, keys[1]).await, [0_u64; 0]);
    assert_eq!(chunk_seqs(&*store, keys[2]).await, [1, 2, 3, 4]);
    let gone = store.expire(by_bytes(0), NOW_NS).await.unwrap();
    assert_eq!((gone.chunks, gone.bytes), (3, 300));
    assert_eq!(store.totals().await.unwrap().stored_bytes, 250);
    for key in &keys {
        assert_eq!(store.items(*key, ItemKind::Marks, None, Selection::default()).await.unwrap().len(), 1);
    }
    assert_sums(&*store).await;
    // Expired items that are sent again are not stored again. The running session continues.
    store.append(vec![append(keys[2], vec![chunk(1, 0), chunk(6, 0)])]).await.unwrap();
    assert_eq!(chunk_seqs(&*store, keys[2]).await, [4, 6]);
    assert_sums(&*store).await;
    // After a deletion, only events that had expired before are counted.
    store.delete_job(rows[0].job).await.unwrap();
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.events, totals.expired_events, totals.stored_bytes), (110, 110, 0));
}

pub async fn idle_keyframes_go_with_their_chunks(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    // Chunks of events 0.., 20.., 40.., 60..; keyframes before events 0, 30 and 60.
    let items = vec![
        keyframe(1, 0),
        chunk(2, 0),
        chunk(3, 0),
        keyframe(4, 30),
        chunk(5, 0),
        chunk(6, 0),
        keyframe(7, 60),
        chunk(8, 0),
    ];
    let mut other = keyframe(9, 0);
    other.index.device = Some(1);
    let mut sent = append(key, [items, vec![other]].concat());
    sent.end = Some(made::end(50));
    for (item, event) in [(1, 0), (2, 20), (4, 40), (5, 50), (7, 60)] {
        sent.items[item].index.first_event = event;
    }
    store.append(vec![sent]).await.unwrap();
    let keyframes = || async {
        let rows = store.items(key, ItemKind::Keyframe, Some(0), Selection::default()).await.unwrap();
        rows.iter().map(|row| row.seq).collect::<Vec<_>>()
    };
    // The chunk that begins at event 20 needs the keyframe before event 0.
    assert_eq!(store.expire(by_bytes(kept(&*store).await - 1), NOW_NS).await.unwrap().chunks, 1);
    assert_eq!((chunk_seqs(&*store, key).await, keyframes().await), (vec![3, 5, 6, 8], vec![1, 4, 7]));
    // That chunk is removed next. Events then begin at 40, and the keyframe before 30 is the first one needed.
    let gone = store.expire(by_bytes(kept(&*store).await - 1), NOW_NS).await.unwrap();
    assert_eq!(gone, Expired { chunks: 1, events: 10, items: 2, bytes: 150, ..Expired::default() });
    assert_eq!((chunk_seqs(&*store, key).await, keyframes().await), (vec![5, 6, 8], vec![4, 7]));
    // If no chunk remains, the last keyframe stays.
    store.expire(by_bytes(kept(&*store).await - 2 * CHUNK - 1), NOW_NS).await.unwrap();
    assert_eq!((chunk_seqs(&*store, key).await, keyframes().await), (vec![], vec![7]));
    assert_eq!(store.items(key, ItemKind::Keyframe, Some(1), Selection::default()).await.unwrap().len(), 1);
    let row = sessions(&*store, "job").await.remove(0);
    assert_eq!((row.stored_bytes, row.expired_events, row.events), (100, 50, 50));
    assert_sums(&*store).await;
}

pub async fn limits_that_hold_change_nothing(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    store.append(vec![append(key, vec![chunk(1, 0), chunk(2, 0)])]).await.unwrap();
    let before = sessions(&*store, "job").await;
    let all = kept(&*store).await;
    let every = Retention { bytes_per_job: Some(all), bytes_per_tenant: Some(all), ..by_bytes(all) };
    let forever = Retention { age_ns: Some(u64::MAX), ..Retention::default() };
    for policy in [Retention::default(), by_bytes(all), by_bytes(u64::MAX), every, forever] {
        assert_eq!(store.expire(policy, NOW_NS).await.unwrap(), Expired::default(), "{policy:?}");
    }
    assert_eq!(sessions(&*store, "job").await, before);
}

pub async fn appends_and_removals_at_once(store: Arc<dyn Store>) {
    let mut keys = Vec::new();
    for id in 0..3 {
        keys.push(open(&*store, id, "job", id).await);
    }
    let doomed = open(&*store, 9, "doomed", 0).await;
    let done = Arc::new(AtomicBool::new(false));
    let appending = {
        let (store, keys, done) = (store.clone(), keys.clone(), done.clone());
        tokio::spawn(async move {
            for first in (1..400).step_by(10) {
                let appends =
                    keys.iter().map(|&key| append(key, (first..first + 10).map(|seq| chunk(seq, 0)).collect()));
                store.append(appends.collect()).await.unwrap();
                // This succeeds until the job is removed, and never afterwards.
                let _ = store.append(vec![append(doomed, vec![chunk(first, 0)])]).await;
            }
            // Release, with the acquire below: the last removal includes everything that was appended.
            done.store(true, Ordering::Release);
        })
    };
    let removing: Vec<_> = (0..2)
        .map(|_| {
            let (store, done) = (store.clone(), done.clone());
            tokio::spawn(async move {
                let mut gone = Expired::default();
                loop {
                    let last = done.load(Ordering::Acquire);
                    let went = store.expire(by_bytes(20_000), NOW_NS).await.unwrap();
                    gone.events += went.events;
                    gone.bytes += went.bytes;
                    if last {
                        return gone;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let job = store.job(&Which::written("doomed"), None).await.unwrap().unwrap().key;
    store.delete_job(job).await.unwrap();
    appending.await.unwrap();
    let (mut events, mut bytes) = (0, 0);
    for task in removing {
        let gone = task.await.unwrap();
        (events, bytes) = (events + gone.events, bytes + gone.bytes);
    }
    let rows = sessions(&*store, "job").await;
    assert!(rows.iter().all(|row| row.events == 4_000 && row.durable_seq == 400));
    let mut left = 0;
    for (key, row) in keys.iter().zip(&rows) {
        let chunks = chunk_seqs(&*store, *key).await.len() as u64;
        assert_eq!((row.stored_bytes, row.events - row.expired_events), (chunks * 100, chunks * 10));
        left += chunks;
    }
    assert_eq!(left * 100 + rows.iter().map(|row| row.expired_events * 10).sum::<u64>(), 3 * 400 * 100);
    assert!(left <= 200 && events >= 10_000, "{left} chunks are left, {events} events went");
    assert!(events >= rows.iter().map(|row| row.expired_events).sum(), "what went of the doomed job may be among it");
    assert_eq!(bytes, events * 10);
}

const DAY_NS: u64 = 24 * 3_600 * SECOND_NS;

/// Runs retention as the daemon does, with given times of both clocks.
async fn look(store: &dyn Store, clock: &mut SteadyClock, wall_ns: u64, second: u64) -> u64 {
    let policy = Retention { age_ns: Some(30 * DAY_NS), ..Retention::default() };
    let reading = clock.read(wall_ns, second * SECOND_NS);
    let (jobs, outcome) = retention::once(store, policy, reading, Some(NOW_NS)).await;
    outcome.unwrap();
    jobs.iter().map(|job| job.gone.jobs).sum()
}

pub async fn a_clock_that_jumps_makes_nothing_old(store: Arc<dyn Store>) {
    open(&*store, 1, "old", 0).await;
    let mut clock = SteadyClock::default();
    let running = session(2, "running", 0);
    for (second, jump_days) in [(0, 0), (60, 0), (61, 400), (62, 400), (63, 0), (64, -400), (65, 0)] {
        let wall_ns = (NOW_NS + second * SECOND_NS).saturating_add_signed(jump_days * DAY_NS as i64);
        // Data keeps arriving, with the times that the daemon would stamp.
        let stamped_ns = clock.read(wall_ns, second * SECOND_NS).now_ns;
        store.open_session(&running, stamped_ns).await.unwrap();
        assert_eq!(look(&*store, &mut clock, wall_ns, second).await, 0, "{second} s, {jump_days} d");
        assert!(store.heard_latest().await.unwrap().unwrap() <= NOW_NS + 100 * SECOND_NS, "no stamp jumped");
    }
    // The clock stays where it jumped to. The new time is accepted after a while, once new data arrives.
    let away_ns = NOW_NS + 400 * DAY_NS;
    for second in [100, 400, 699] {
        store.open_session(&running, clock.read(away_ns, second * SECOND_NS).now_ns).await.unwrap();
        assert_eq!(look(&*store, &mut clock, away_ns + (second - 100) * SECOND_NS, second).await, 0, "{second} s");
    }
    let believed_ns = away_ns + 601 * SECOND_NS;
    assert_eq!(look(&*store, &mut clock, believed_ns, 701).await, 0, "nothing came in since");
    store.open_session(&running, clock.read(believed_ns, 701 * SECOND_NS).now_ns).await.unwrap();
    assert_eq!(look(&*store, &mut clock, believed_ns, 701).await, 1);
    assert_eq!(store.jobs(9).await.unwrap()[0].name, "running");
}

pub async fn a_daemon_that_starts_with_a_wrong_clock_waits(store: Arc<dyn Store>) {
    open(&*store, 1, "old", 0).await;
    let wrong_ns = NOW_NS + 400 * DAY_NS;
    let mut clock = SteadyClock::default();
    let stamped_ns = clock.read(wrong_ns, 0).now_ns;
    store.open_session(&session(2, "running", 0), stamped_ns).await.unwrap();
    assert_eq!(look(&*store, &mut clock, wrong_ns + 2 * SECOND_NS, 2).await, 0);
    // The clock is corrected. The age of the data that it stamped counts from now.
    for second in [3, 63, 603, 1_300] {
        assert_eq!(look(&*store, &mut clock, NOW_NS + second * SECOND_NS, second).await, 0, "{second} s");
    }
    let heard_ns = store.heard_latest().await.unwrap().unwrap();
    assert!(heard_ns <= NOW_NS + 1_300 * SECOND_NS, "{heard_ns}");
    assert_eq!(store.jobs(9).await.unwrap().len(), 2);
}

pub async fn everything_counts(store: Arc<dyn Store>) {
    let mut before = kept(&*store).await;
    assert_eq!(before, 0);
    let key = open(&*store, 1, "job", 0).await;
    let mut sent = vec![append(key, vec![chunk(1, 0)])];
    for (kind, device) in [
        (ItemKind::Marks, None),
        (ItemKind::Stacks, None),
        (ItemKind::SiteTables, None),
        (ItemKind::Keyframe, Some(0)),
        (ItemKind::Samples, None),
    ] {
        sent.push(append(key, vec![item(sent.len() as u64 + 1, kind, device)]));
    }
    let mut ends = append(key, Vec::new());
    ends.epoch_ends = vec![made::epoch_end(0, 1, 1)];
    sent.push(ends);
    assert!(kept(&*store).await >= before + 100, "a session costs");
    for sent in sent {
        before = kept(&*store).await;
        let bytes: u64 = sent.items.iter().map(|item| item.payload.len() as u64).sum();
        store.append(vec![sent.clone()]).await.unwrap();
        let more = kept(&*store).await - before;
        assert!(more > bytes && more >= 100, "{more} bytes more for {sent:?}");
    }
    let row = sessions(&*store, "job").await.remove(0);
    assert_eq!((row.stored_items, row.stored_bytes), (6, 350));
    assert!(store.size_bytes().await.unwrap() >= kept(&*store).await);
}

pub async fn a_noisy_job_does_not_push_out_another(store: Arc<dyn Store>) {
    let quiet = open(&*store, 1, "quiet", 0).await;
    store.append(vec![append(quiet, (1..=20).map(|seq| chunk(seq, 0)).collect())]).await.unwrap();
    let quiet_bytes = kept(&*store).await;
    let noisy = open(&*store, 2, "noisy", 0).await;
    // These items are younger than all of the other job's, and not only chunks.
    let mut items: Vec<_> = (1..=600).map(|seq| chunk(seq + 1_000, 0)).collect();
    items.extend((1_601..=2_000).map(|seq| item(seq, ItemKind::SiteTables, None)));
    store.append(vec![append(noisy, items)]).await.unwrap();
    for policy in [
        by_bytes(quiet_bytes + 200_000),
        by_bytes(quiet_bytes + 150_000),
        Retention { bytes_per_job: Some(100_000), ..Retention::default() },
        Retention { bytes_per_job: Some(15_000), ..Retention::default() },
    ] {
        let gone = store.expire(policy, NOW_NS).await.unwrap();
        assert!(gone.items > 0 && gone.jobs == 0, "{policy:?}: {gone:?}");
        let limit = policy.bytes.unwrap_or(quiet_bytes + policy.bytes_per_job.unwrap_or(0));
        assert!(kept(&*store).await <= limit, "{policy:?}");
        assert!(kept(&*store).await > limit - 2_000, "no more than is needed: {policy:?}");
        assert_eq!(chunk_seqs(&*store, quiet).await.len(), 20, "{policy:?}");
    }
    assert_eq!(chunk_seqs(&*store, noisy).await, [1_600], "what a running job sent last stays");
    let tables = store.items(noisy, ItemKind::SiteTables, None, Selection::default()).await.unwrap();
    assert!(tables.iter().map(|table| table.seq).eq(2_001 - tables.len() as u64..=2_000), "the oldest went");
    assert_sums(&*store).await;
}

pub async fn a_job_that_ended_goes_whole_when_its_chunks_are_not_enough(store: Arc<dyn Store>) {
    for id in 1..=3 {
        let key = store.open_session(&session(id, &format!("job-{id}"), 0), NOW_NS).await.unwrap().key;
        let tables = (2..=50).map(|seq| item(seq, ItemKind::SiteTables, None));
        let mut sent = append(key, std::iter::once(chunk(1, 0)).chain(tables).collect());
        sent.heard_ns = NOW_NS + u64::from(id) * SECOND_NS;
        sent.end = (id != 1).then(|| made::end(10));
        store.append(vec![sent]).await.unwrap();
    }
    let all = kept(&*store).await;
    let gone = store.expire(by_bytes(all - 2 * CHUNK - 1), NOW_NS).await.unwrap();
    assert_eq!((gone.jobs, gone.sessions, gone.chunks), (1, 1, 2));
    let mut left: Vec<String> = store.jobs(9).await.unwrap().into_iter().map(|job| job.name).collect();
    left.sort();
    assert_eq!(left, ["job-1", "job-3"], "the oldest that has ended");
    let totals = store.totals().await.unwrap();
    assert_eq!((totals.events, totals.expired_events), (30, 20));
}

pub async fn answers_about_holders_go_the_oldest_first_behind_chunks_and_before_all_else(store: Arc<dyn Store>) {
    let key = open(&*store, 1, "job", 0).await;
    let other = open(&*store, 2, "job", 1).await;
    let tables = (2..=20).map(|seq| item(seq, ItemKind::SiteTables, None));
    let mut sent = append(key, std::iter::once(chunk(1, 0)).chain(tables).collect());
    sent.end = Some(made::end(10));
    store.append(vec![sent]).await.unwrap();
    let job = sessions(&*store, "job").await[0].job;
    let without = kept(&*store).await;
    for (session, asked_ns) in [(key, 1), (other, 2), (key, 3), (other, 4)] {
        store.put_holders(&made::holders(session, asked_ns, 60_000)).await.unwrap();
    }
    store.put_watch(key, &WatchRow { seq: 1, form: "form".into(), state: vec![7; 1_000].into() }).await.unwrap();
    let per_job = |bytes| Retention { bytes_per_job: Some(bytes), ..Retention::default() };
    let one = made::holders(key, 1, 60_000).index.bytes + 128;
    let left = async || {
        let answers = store.holders_kept(job).await.unwrap().iter().map(|kept| kept.asked_ns).collect::<Vec<_>>();
        let tables = store.items(key, ItemKind::SiteTables, None, Selection::default()).await.unwrap().len();
        (answers, store.watch(key).await.unwrap().is_some(), chunk_seqs(&*store, key).await.len(), tables)
    };
    let all = kept(&*store).await;
    assert_eq!(all, without + 4 * one + 1_000);
    store.expire(per_job(all - 1), NOW_NS).await.unwrap();
    assert_eq!(left().await, (vec![1, 2, 3, 4], true, 0, 19), "chunks are enough");
    let gone = store.expire(per_job(kept(&*store).await - 1_001), NOW_NS).await.unwrap();
    assert_eq!(left().await, (vec![2, 3, 4], false, 0, 19), "what the judge keeps, then the oldest");
    assert_eq!((gone.bytes, gone.items, gone.jobs), (1_000 + one, 0, 0));
    store.expire(per_job(without - CHUNK + one), NOW_NS).await.unwrap();
    assert_eq!(left().await, (vec![4], false, 0, 19), "as many as needed");
    assert!(kept(&*store).await <= without - CHUNK + one);
    // Next is the last answer, and then the oldest table. The job stays, because one of its sessions is running.
    let gone = store.expire(by_bytes(without - CHUNK), NOW_NS).await.unwrap();
    assert_eq!((left().await, gone.jobs), ((vec![], false, 0, 19), 0));
    store.expire(per_job(without - CHUNK - 1), NOW_NS).await.unwrap();
    assert_eq!(left().await, (vec![], false, 0, 18));
    assert_sums(&*store).await;
}
