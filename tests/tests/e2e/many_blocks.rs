//! A process with a hundred thousand live blocks, from the agent to the responses: every event is stored, every table
//! is exact, the session ends, and the growing line is named, unless there are more lines than the judge distinguishes.

use std::sync::Arc;
use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_answers::finding::Finding;
use memctl_answers::ledger::Ledger;
use memctl_answers::report::Report;
use memctl_answers::sites::{Site, Sites};
use memctl_answers::wire::from_wire;
use memctl_daemon::server::Embedded;
use memctl_daemon::store::{Selection, SqliteStore, Store as _, Which};
use memctl_model::{DeviceIndex, DeviceInfo, Frame, JobState, SessionId, SessionInfo, StackId};
use memctl_proto::v1;
use memctl_proto::v1::query_client::QueryClient;

const PATIENCE: Duration = Duration::from_secs(120);
const BLOCKS: u64 = 100_000;
const STEPS: u64 = 300;
/// Blocks of a step, of which the first stays.
const STEP_BLOCKS: u64 = 20;
const BLOCK_BYTES: u64 = 2_048;
const BASE: u64 = 1 << 40;

fn session() -> SessionInfo {
    SessionInfo {
        host: Some("here".into()),
        pid: Some(1),
        devices: vec![DeviceInfo::default()],
        ..SessionInfo::live(SessionId([1; 16]), "many", 1)
    }
}

fn frame(line: u64) -> Frame {
    Frame { function: "build".into(), file: "train.py".into(), line: line as u32 }
}

/// Makes the blocks and the steps; returns the number of produced events.
fn record(agent: &Agent, stacks: u64) -> u64 {
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    let stacks: Vec<StackId> = (1..=stacks).map(|line| agent.stack_waiting(&[frame(line)]).unwrap()).collect();
    assert!(recorder.segment_alloc(BASE, 1 << 30, 0));
    let mut produced = 1;
    for block in 0..BLOCKS {
        let stack = stacks[block as usize % stacks.len()];
        assert!(recorder.alloc(BASE + block * BLOCK_BYTES, BLOCK_BYTES, 0, stack));
        produced += 1;
    }
    let own = agent.stack_waiting(&[Frame { function: "keep".into(), file: "train.py".into(), line: 7 }]).unwrap();
    for step in 0..STEPS {
        assert!(agent.step_begin(step));
        let first = BASE + (BLOCKS + step) * BLOCK_BYTES;
        for block in 0..STEP_BLOCKS {
            assert!(recorder.alloc(first + block * BLOCK_BYTES, BLOCK_BYTES, 0, own));
        }
        for block in 1..STEP_BLOCKS {
            assert!(recorder.free(first + block * BLOCK_BYTES, BLOCK_BYTES, 0));
        }
        produced += STEP_BLOCKS + 2 * (STEP_BLOCKS - 1);
        assert!(agent.step_end(step));
    }
    produced
}

/// Records blocks of this many stacks; returns the one finding.
async fn found(stacks: u64) -> Finding {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&folder.path().join("memctl.db"), "a test").await.unwrap());
    let daemon = Embedded::start(store).await.unwrap();
    // The usual ring holds all events, so that none is lost even on a busy machine.
    let config = AgentConfig::new(session(), Daemon::Connected(daemon.channel()));
    let recorded = tokio::task::spawn_blocking(move || {
        let agent = Agent::start(config).unwrap();
        let produced = record(&agent, stacks);
        (produced, agent.stop(None, PATIENCE))
    });
    let (produced, outcome) = recorded.await.unwrap();
    assert!(outcome.delivered, "{outcome:?}");
    assert_eq!((outcome.end.produced, outcome.counts.dropped, outcome.notes_dropped), (produced, 0, 0));

    let selection = Some(v1::Selection { job: "many".into(), ..v1::Selection::default() });
    let mut query = QueryClient::new(daemon.channel());
    let report = query.get_report(v1::ReportRequest { selection: selection.clone() }).await.unwrap();
    let report: Report = from_wire(report.get_ref()).unwrap();
    let completeness = report.completeness;
    assert_eq!((completeness.exact, completeness.events_stored, completeness.gaps), (true, produced, 0));
    assert_eq!(report.job.state, JobState::Finished);
    let [finding] = report.findings.as_slice() else { panic!("one finding: {:#?}", report.findings) };

    let moment = Some(v1::sites_request::Moment::End(true));
    let sites = query.get_sites(v1::SitesRequest { selection, moment }).await.unwrap();
    let sites: Sites = from_wire(sites.get_ref()).unwrap();
    let [rank] = sites.ranks.as_slice() else { panic!("one rank: {:#?}", sites.ranks.len()) };
    let sum = |of: fn(&Site) -> u64| rank.sites.iter().map(of).sum::<u64>();
    let live = BLOCKS + STEPS;
    assert_eq!(
        (rank.exact, sum(|site| site.live_blocks), sum(|site| site.live_bytes)),
        (true, live, live * BLOCK_BYTES)
    );
    assert_eq!(rank.allocated_bytes, Some(live * BLOCK_BYTES));
    assert_eq!(rank.sites.len() as u64, stacks + 1);
    daemon.stop().await.unwrap();
    finding.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_live_blocks_are_stored_judged_and_told() {
    let finding = found(5_000).await;
    let site = finding.site.as_ref().expect("the line that grows");
    assert_eq!((site.frame.function.as_str(), site.frame.line), ("keep", Some(7)), "{finding:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_beyond_those_that_are_told_apart_is_not_called_another() {
    let finding = found(memctl_analysis::judge::SITES_MAX as u64 + 1).await;
    assert!(finding.site.is_none(), "{finding:#?}");
}

/// With many blocks, keyframes are rare and chunks cut by time are many. Every block between two keyframes is
/// identified by the step that allocated it, regardless of the number of chunks before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_told_by_its_own_step_however_far_its_keyframe_is() {
    const LIVE: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&folder.path().join("memctl.db"), "a test").await.unwrap());
    let daemon = Embedded::start(store.clone()).await.unwrap();
    let linger = Some(Duration::from_millis(1));
    let config = AgentConfig { linger, ..AgentConfig::new(session(), Daemon::Connected(daemon.channel())) };
    let recorded = tokio::task::spawn_blocking(move || {
        let agent = Agent::start(config).unwrap();
        let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
        let (build, keep) = (agent.stack_waiting(&[frame(1)]).unwrap(), agent.stack_waiting(&[frame(2)]).unwrap());
        assert!(recorder.segment_alloc(BASE, 1 << 30, 0));
        for block in 0..LIVE {
            assert!(recorder.alloc(BASE + block * BLOCK_BYTES, BLOCK_BYTES, 0, build));
        }
        for step in 0..100 {
            assert!(agent.step_begin(step));
            assert!(recorder.alloc(BASE + (LIVE + step) * BLOCK_BYTES, BLOCK_BYTES, 0, keep));
            assert!(agent.step_end(step));
            std::thread::sleep(Duration::from_millis(5));
        }
        agent.stop(None, PATIENCE)
    });
    assert!(recorded.await.unwrap().delivered);
    let job = store.job(&Which::written("many"), None).await.unwrap().unwrap();
    let key = store.sessions(job.key).await.unwrap()[0].key;
    let chunks = store.chunks(key, 0, Selection::default()).await.unwrap();
    let last = chunks.last().unwrap().index;
    let end = last.first_event + last.count;
    let from = store.keyframe_before(key, 0, end).await.unwrap().map_or(0, |row| row.index.first_event);
    let behind = chunks.iter().filter(|chunk| chunk.index.first_event + chunk.index.count > from).count();
    assert!(behind > 17, "the chunks are cut by time: {behind}");

    let selection = Some(v1::Selection { job: "many".into(), ..v1::Selection::default() });
    let moment = Some(v1::ledger_request::Moment::End(true));
    let request = v1::LedgerRequest { selection, moment, blocks: true };
    let ledger = QueryClient::new(daemon.channel()).get_ledger(request).await.unwrap();
    let ledger: Ledger = from_wire(ledger.get_ref()).unwrap();
    let kept = BASE + LIVE * BLOCK_BYTES;
    let blocks = ledger.ranks[0].blocks.iter().flatten().filter(|block| block.address >= kept);
    let mut pairs: Vec<(u64, u64)> =
        blocks.map(|block| ((block.address - kept) / BLOCK_BYTES, block.birth_step)).collect();
    pairs.sort_unstable();
    assert_eq!(pairs, (0..100).map(|step| (step, step)).collect::<Vec<_>>());
    daemon.stop().await.unwrap();
}
