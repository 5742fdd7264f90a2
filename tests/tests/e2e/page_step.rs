//! The memory within a step, as sent over HTTP, compared with an exact replay of the stored events: at every event of
//! every step of every bundled recording, the drawn blocks and the rest are what is allocated, and each block begins
//! and ends at its own events.

use std::collections::HashMap;

use memctl_model::{Action, Event, MarkKind};
use memctl_tests::https::Port;
use memctl_tests::recordings::NAMES;
use serde_json::Value;

use super::page::{JOB, get, import, json, served};
use super::page_truth::{Truth, truths};

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("no number: {of}"))
}

fn numbers(of: &Value) -> Vec<u64> {
    of.as_array().unwrap().iter().map(number).collect()
}

/// A block: its bytes, and the events behind which it is allocated and freed.
struct Block {
    bytes: u64,
    requested: u64,
    from: Option<u64>,
    to: Option<u64>,
}

fn blocks(answer: &Value) -> Vec<Block> {
    let columns = &answer["blocks"];
    let [bytes, requested] = ["bytes", "requested_bytes"].map(|name| numbers(&columns[name]));
    let block = |at: usize| Block {
        bytes: bytes[at],
        requested: requested[at],
        from: columns["from_event"][at].as_u64(),
        to: columns["to_event"][at].as_u64(),
    };
    (0..bytes.len()).map(block).collect()
}

/// What is allocated by these blocks after each event of the shown part, from their begins and ends alone.
fn drawn(blocks: &[Block], first: u64, last: u64) -> Vec<u64> {
    let mut changes = vec![0_i64; (last - first + 2) as usize];
    for block in blocks {
        changes[(block.from.unwrap_or(first) - first) as usize] += block.bytes as i64;
        changes[(block.to.unwrap_or(last + 1) - first) as usize] -= block.bytes as i64;
    }
    let mut sum = 0;
    let add = |change: &i64| {
        sum += change;
        u64::try_from(sum).unwrap()
    };
    changes[..changes.len() - 1].iter().map(add).collect()
}

/// The blocks and the rest are the replay's levels, event by event.
fn sums(answer: &Value, truth: &Truth, name: &str) {
    let [first, last] = ["first_event", "last_event"].map(|field| number(&answer[field]));
    let drawn = drawn(&blocks(answer), first, last);
    let points = &answer["points"];
    let [events, allocated, reserved, rest] =
        ["event", "allocated_bytes", "reserved_bytes", "rest_bytes"].map(|field| numbers(&points[field]));
    // A point is the highest event of its run; each run of a step is one event.
    let run = number(&answer["events_per_point"]);
    assert_eq!(events.len() as u64, (last - first + 1).div_ceil(run), "{name}");
    for (at, &event) in events.iter().enumerate() {
        let level = truth.levels[event as usize];
        assert_eq!((allocated[at], reserved[at]), (level.allocated, level.reserved), "{name}: after event {event}");
        assert_eq!(drawn[(event - first) as usize] + rest[at], level.allocated, "{name}: after event {event}");
        let from = first + at as u64 * run;
        assert!((from..from + run).contains(&event), "{name}: {event} in the run at {from}");
        let of_run = &truth.levels[from as usize..=(from + run - 1).min(last) as usize];
        assert_eq!(of_run.iter().map(|level| level.allocated).max(), Some(allocated[at]), "{name}: run at {from}");
    }
    let peak = truth.levels[first as usize..=last as usize].iter().map(|level| level.allocated).max();
    assert_eq!(answer["peak"]["allocated_bytes"].as_u64(), peak, "{name}");
    assert_eq!(
        number(&answer["peak"]["allocated_bytes"]),
        truth.levels[number(&answer["peak"]["event"]) as usize].allocated
    );
    for (side, event) in [("start", first), ("end", last)] {
        assert_eq!(number(&answer[side]["allocated_bytes"]), truth.levels[event as usize].allocated, "{name}: {side}");
    }
}

/// The event that frees what was allocated by each allocation, by numbers of events.
fn frees(events: &[Event]) -> HashMap<u64, u64> {
    let (mut living, mut found) = (HashMap::new(), HashMap::new());
    for (number, event) in (1..).zip(events) {
        match event.action {
            Action::Alloc => {
                living.insert(event.addr, number);
            }
            Action::FreeRequested | Action::FreeCompleted => {
                if let Some(from) = living.remove(&event.addr) {
                    found.insert(from, number);
                }
            }
            _ => {}
        }
    }
    found
}

/// Each block begins with an allocation of its size and ends with the free of the same address.
fn lives(answer: &Value, truth: &Truth, frees: &HashMap<u64, u64>, name: &str) -> usize {
    let [first, last] = ["first_event", "last_event"].map(|field| number(&answer[field]));
    let all = blocks(answer);
    for block in &all {
        if let Some(to) = block.to {
            let event = truth.events[to as usize - 1];
            assert!((first + 1..=last).contains(&to), "{name}: freed at {to}");
            assert!(matches!(event.action, Action::FreeRequested | Action::FreeCompleted), "{name}: {event:?}");
        }
        let Some(from) = block.from else { continue };
        let event = truth.events[from as usize - 1];
        assert_eq!((event.action, event.size), (Action::Alloc, block.requested), "{name}: event {from}");
        assert!((first + 1..=last).contains(&from), "{name}: allocated at {from}");
        assert_eq!(block.to, frees.get(&from).copied().filter(|to| *to <= last), "{name}: allocated at {from}");
    }
    // Every allocation of the step is a block or in the rest.
    let begun = truth.events[first as usize..last as usize].iter().filter(|event| event.action == Action::Alloc);
    let drawn = all.iter().filter(|block| block.from.is_some()).count() as u64;
    assert!(drawn <= begun.clone().count() as u64 && begun.count() as u64 <= drawn + number(&answer["rest_blocks"]));
    all.len()
}

/// A step lies between its marks: an end is behind the events of its own time, and a begin before them.
fn bounds(answer: &Value, truth: &Truth, name: &str) {
    let step = number(&answer["of"]["step"]);
    let time_of =
        |is_it: &dyn Fn(&MarkKind) -> bool| truth.marks.iter().find(|mark| is_it(&mark.kind)).map(|mark| mark.time_ns);
    let events = &truth.levels[1..];
    if let Some(begin_ns) = time_of(&|kind| *kind == MarkKind::StepBegin(step)) {
        let before = events.partition_point(|level| level.time_ns < begin_ns) as u64;
        assert_eq!(number(&answer["of"]["first_event"]), before, "{name}: begin");
    }
    if let Some(end_ns) = time_of(&|kind| *kind == MarkKind::StepEnd(step)) {
        let behind = events.partition_point(|level| level.time_ns <= end_ns) as u64;
        assert_eq!(
            (number(&answer["of"]["last_event"]), &answer["of"]["ended"]),
            (behind, &true.into()),
            "{name}: end"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_every_step_add_up_to_what_is_allocated_at_every_event() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    for job in NAMES {
        import(job, &["--daemon", &daemon.url]);
    }
    let mut all = Vec::new();
    for job in NAMES {
        let steps = steps_of(&port, job);
        all.push((job, steps));
    }
    assert_eq!(daemon.terminate(), 0);
    for (job, answers) in all {
        let truths = truths(home.path(), job).await;
        for (rank, answers) in answers {
            let truth = truths.iter().find(|truth| truth.rank == rank).unwrap();
            let (frees, mut blocks) = (frees(&truth.events), 0);
            for answer in &answers {
                let name = format!("{job} rank {rank} {}", answer["of"]);
                assert_eq!(answer["exact"], true, "{name}");
                sums(answer, truth, &name);
                blocks += lives(answer, truth, &frees, &name);
                if answer["of"]["kind"] == "step" {
                    assert_eq!(answer["events_per_point"], 1, "{name}");
                    bounds(answer, truth, &name);
                }
            }
            // The last one is the whole recording, in which most blocks are in the rest.
            let whole = answers.last().unwrap();
            assert_eq!(number(&whole["last_event"]) as usize, truth.events.len(), "{job}");
            if truth.events.len() > 20_000 {
                assert!(number(&whole["events_per_point"]) > 1 && number(&whole["rest_blocks"]) > 1_000, "{job}");
            }
            let marked = truth.marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepBegin(_))).count();
            assert_eq!(answers.len() - 1, marked.max(1), "{job} rank {rank}: a step for each mark");
            assert!(blocks > 500, "{job} rank {rank}: {blocks}");
        }
    }
}

/// Every step of rank 0, and of rank 1 of one job, from the first one to the last by the names in each answer, and the whole recording.
fn steps_of(port: &Port, job: &str) -> Vec<(u32, Vec<Value>)> {
    let step = |rank: u32, asked: &str| json(&get(port, &format!("/api/v1/jobs/{job}/step?rank={rank}&{asked}")));
    let of = |rank: u32| {
        let mut all = vec![step(rank, "event=0")];
        assert_eq!(all[0]["previous"], Value::Null);
        while let Some(next) = all.last().unwrap()["next"]["step"].as_u64() {
            let answer = step(rank, &format!("step={next}"));
            assert_eq!(answer["previous"]["step"], all.last().unwrap()["of"]["step"], "{job} step {next}");
            assert_eq!(answer["of"]["step"], next);
            all.push(answer);
        }
        all.push(step(rank, "first=0"));
        (rank, all)
    };
    // (A request takes a tenth of a second. The ranks of a recording differ little.)
    (0..if job == JOB { 2 } else { 1 }).map(of).collect()
}

#[test]
fn a_step_is_found_by_its_number_by_a_moment_and_by_events() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    let path = |asked: &str| format!("/api/v1/jobs/{JOB}/step?rank=0{asked}");
    let step = |asked: &str| json(&get(&port, &path(asked)));
    // Without a moment it is the step of the peak.
    let peak = step("");
    let ledger = json(&get(&port, &format!("/api/v1/jobs/{JOB}/ledger?rank=0")));
    assert_eq!(peak["peak"]["allocated_bytes"], ledger["ranks"][0]["allocated_bytes"]);
    assert_eq!(peak["of"]["step"], ledger["ranks"][0]["step"]);
    let number_of = number(&peak["of"]["step"]);
    let without_job = |mut answer: Value| {
        answer["job"] = Value::Null;
        answer
    };
    let event = number(&peak["peak"]["event"]);
    for asked in [format!("&step={number_of}"), format!("&event={event}"), "&at=peak".to_owned()] {
        assert_eq!(without_job(step(&asked)), without_job(peak.clone()), "{asked}");
    }
    // Its classes at the peak are those of the ledger, as far as blocks are drawn.
    let classes = peak["classes"].as_array().unwrap();
    for class in ledger["ranks"][0]["classes"].as_array().unwrap() {
        let columns = &peak["blocks"];
        let is_live = |at: &usize| {
            columns["from_event"][at].as_u64().is_none_or(|from| from <= event)
                && columns["to_event"][at].as_u64().is_none_or(|to| event < to)
        };
        let of_class = |at: &usize| classes[number(&columns["class"][at]) as usize] == class["class"];
        let all = (0..columns["bytes"].as_array().unwrap().len()).filter(|at| is_live(at) && of_class(at));
        let sum: u64 = all.map(|at| number(&columns["bytes"][at])).sum();
        let rest = numbers(&peak["points"]["rest_bytes"]).into_iter().max().unwrap();
        let live = number(&class["live_bytes"]);
        assert!(sum <= live && live - sum <= rest, "{class}: {sum} drawn, {rest} in the rest");
    }
    // A part of a step, and a range of events without a step.
    let (first, last) = (number(&peak["first_event"]) + 5, number(&peak["last_event"]) - 5);
    let part = step(&format!("&step={number_of}&first={first}&last={last}"));
    assert_eq!((number(&part["first_event"]), number(&part["last_event"])), (first, last));
    assert_eq!((&part["of"], &part["next"]), (&peak["of"], &peak["next"]));
    let range = step(&format!("&first={first}&last={last}"));
    assert_eq!((&range["of"]["kind"], &range["blocks"]), (&"events".into(), &part["blocks"]));
    for asked in
        ["&step=x", "&step=1&at=peak", "&step=999999", "&event=1&at=peak", "&since=2026-01-01T00:00:00Z", "&n=1"]
    {
        let answer = get(&port, &path(asked));
        assert_eq!(answer.status, 400, "{asked}: {}", answer.body);
    }
    let of_all = get(&port, &format!("/api/v1/jobs/{JOB}/step"));
    assert!(of_all.status == 400 && of_all.body.contains("give rank=N"), "{}", of_all.body);
    assert_eq!(daemon.terminate(), 0);
}
