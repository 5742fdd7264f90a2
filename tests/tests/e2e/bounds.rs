//! The daemon's cost of a request about a job of many devices and many sites, also for many requests at once.

use std::time::{Duration, Instant};

use memctl_answers::sites::Sites;
use memctl_answers::wire::from_wire;
use memctl_model::{Action, DeviceIndex, DeviceInfo, Event, Rollup, SessionEnd, SessionId, SessionInfo, StackId};
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::item::Packed;
use memctl_proto::v1;
use memctl_proto::v1::query_client::QueryClient;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::{get, until};
use memctl_tests::raw::Stream;
use memctl_tests::stored::job;
use tonic::transport::{Channel, Endpoint};

/// The daemon's memory stays below this for any request.
const PEAK_MAX: u64 = 512 << 20;
/// Points of all devices in a response.
const POINTS_MAX: usize = 32_768;

/// Live blocks from many stacks, one after the other: `count` of them from number `first`.
fn allocations(first: u64, count: u64) -> Vec<Event> {
    (first..first + count)
        .map(|number| Event {
            time_ns: 1_000_000 + number * 1_000,
            addr: 0x7f00_0000_0000 + number * 512,
            size: 512,
            stack: StackId(number as u32 + 1),
            action: Action::Alloc,
            ..Event::default()
        })
        .collect()
}

fn chunk(first: u64, events: &[Event]) -> Packed {
    let mut encoder = Encoder::new(100).unwrap();
    let mut rollup = Rollup { first_ns: events[0].time_ns, exact: true, ..Rollup::default() };
    for event in events {
        encoder.push(event).unwrap();
        rollup.counts[event.action as usize] += 1;
        rollup.last_ns = event.time_ns;
        rollup.end.allocated_bytes += event.size;
    }
    rollup.end.allocated_bytes += first * 512;
    (rollup.end.reserved_bytes, rollup.end.active_bytes) = (rollup.end.allocated_bytes, rollup.end.allocated_bytes);
    rollup.max = rollup.end;
    Packed::chunk(encoder.finish(&ChunkMeta { device: DeviceIndex(0), first_event: first, rollup }).unwrap().into())
}

/// Stores a session in which every block has its own stack.
async fn store(channel: Channel, job: &str, rank: u32, blocks: u64) {
    let mut id = [7; 16];
    id[..4].copy_from_slice(&rank.to_le_bytes());
    let session =
        SessionInfo { rank, devices: vec![DeviceInfo::default()], ..SessionInfo::live(SessionId(id), job, 1) };
    let (mut stream, _) = Stream::welcome(channel, &session).await;
    let mut seq = 0;
    for first in (0..blocks).step_by(65_536) {
        seq += 1;
        let events = allocations(first, (blocks - first).min(65_536));
        stream.send(chunk(first, &events).numbered(seq)).await;
    }
    seq += 1;
    let end = SessionEnd { time_ns: 1_000_000 + blocks * 1_000, ..SessionEnd::default() };
    stream.send(Packed::end(&end).numbered(seq)).await;
    stream.until_durable(seq).await;
}

/// The processor time that a process has used, in ticks of the kernel (proc_pid_stat(5), fields 14 and 15).
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("its name");
    fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
}

async fn connected(url: &str) -> Channel {
    Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn questions_about_many_devices_have_a_budget() {
    const RANKS: u32 = 200;
    let folder = tempfile::tempdir().unwrap();
    let http = free_port();
    let daemon = DaemonProcess::sqlite_with(folder.path(), free_port(), &[&format!("--http-listen=127.0.0.1:{http}")]);
    let channel = connected(&daemon.url).await;
    for rank in 0..RANKS {
        store(channel.clone(), "wide", rank, 2_000).await;
    }
    let at = |path: &str| format!("http://127.0.0.1:{http}/api/v1/jobs/wide/{path}");
    let (status, text) = get(&at("timeline?points=10000")).expect("an answer");
    assert_eq!(status, 200, "{text}");
    let timeline: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ranks = timeline["ranks"].as_array().unwrap();
    let points: usize = ranks.iter().map(|rank| rank["points"].as_array().unwrap().len()).sum();
    assert_eq!(ranks.len(), RANKS as usize);
    assert!(points > 1_000 && points <= POINTS_MAX, "{points} points");
    assert_eq!(timeline["points"], POINTS_MAX as u64 / u64::from(RANKS));
    let (status, text) = get(&at("sites?at=end")).expect("an answer");
    assert_eq!(status, 200, "{text}");
    assert!(text.len() < 12 << 20, "{} bytes", text.len());
    let sites: serde_json::Value = serde_json::from_str(&text).unwrap();
    for rank in sites["ranks"].as_array().unwrap() {
        let shown: u64 =
            rank["sites"].as_array().unwrap().iter().map(|site| site["live_bytes"].as_u64().unwrap()).sum();
        let further = rank["further"]["live_bytes"].as_u64().expect("some are left out");
        assert_eq!(shown + further, 2_000 * 512, "what is left out is reported");
    }
    // Many concurrent requests wait for each other, and all get a response.
    let asked: Vec<_> = (0..12)
        .map(|number| {
            let at = at(if number % 2 == 0 { "timeline?points=10000" } else { "sites?at=peak" });
            std::thread::spawn(move || get(&at).map(|(status, _)| status))
        })
        .collect();
    let answers: Vec<Option<u16>> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
    assert!(answers.iter().all(|status| matches!(status, Some(200 | 503))), "{answers:?}");
    assert!(answers.contains(&Some(200)), "{answers:?}");
    let peak = daemon.peak_bytes();
    assert!(peak < PEAK_MAX, "{} MiB", peak >> 20);
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test]
async fn more_sites_than_are_counted_separately_are_answered_and_hold_up_no_one() {
    const BLOCKS: u64 = 400_000;
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let channel = connected(&daemon.url).await;
    store(channel.clone(), "many", 0, BLOCKS).await;
    let asked = || {
        let request = v1::SitesRequest { selection: job("many"), moment: Some(v1::sites_request::Moment::End(true)) };
        let mut client = QueryClient::new(channel.clone()).max_decoding_message_size(64 << 20);
        async move { client.get_sites(request).await.map(|answer| from_wire::<Sites>(answer.get_ref()).unwrap()) }
    };
    let sites = tokio::time::timeout(Duration::from_secs(60), asked()).await.expect("an answer in time").unwrap();
    let rank = &sites.ranks[0];
    assert!(rank.merged, "the answer says that not all are counted separately");
    let shown: u64 = rank.sites.iter().map(|site| site.live_bytes).sum();
    assert_eq!(shown + rank.further.map_or(0, |further| further.live_bytes), BLOCKS * 512);
    // The replays of disconnected clients stop, so the daemon ends at once.
    let asking: Vec<_> = (0..6).map(|_| tokio::spawn(asked())).collect();
    let (pid, before) = (daemon.pid(), cpu_ticks(daemon.pid()));
    until("a replay is under way", || cpu_ticks(pid) > before + 2).await;
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    store(channel.clone(), "other", 1, 1_000).await;
    let began = Instant::now();
    assert_eq!(daemon.terminate(), 0);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
