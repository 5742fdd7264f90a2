//! A training that retains memory, stored step by step: which forecast is made, and when.

use memctl_analysis::judge::RankFacts;
use memctl_model::{
    Action, DeviceIndex, DeviceInfo, Dropped, FindingKind, Mark, PoolId, Rollup, SessionId, SessionInfo, Severity,
    SourceKind, StackId,
};
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::item::Packed;
use memctl_proto::v1;
use memctl_replay::{Allocator, BlockId};

use super::*;
use crate::ingest::prepare::{Scale, prepare};
use crate::job_data::find;
use crate::store::{Append, SqliteStore};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 512 * MIB;

/// A training that keeps 20 MiB per step, in the form that its agent would send.
struct Training {
    allocator: Allocator,
    store: SqliteStore,
    events: Vec<Event>,
    time_ns: u64,
    sent: (u64, u64),
    /// The stack of the last request.
    asked: StackId,
}

impl Training {
    fn event(&mut self, action: Action, addr: u64, size: u64, stack: u32) {
        self.time_ns += 1_000;
        let stack = StackId(stack);
        self.events.push(Event { time_ns: self.time_ns, action, addr, size, stack, ..Event::default() });
    }

    fn alloc(&mut self, size: u64, stack: u32) -> Option<BlockId> {
        self.asked = StackId(stack);
        let served = self.allocator.malloc(size, 0, PoolId::DEFAULT);
        let calls = self.allocator.calls().to_vec();
        self.allocator.forget_calls();
        calls.iter().for_each(|call| self.event(call.call.action(), call.addr, call.size, 0));
        let id = served.ok()?;
        self.event(Action::Alloc, self.allocator.address(id), size, stack);
        Some(id)
    }

    fn step(&mut self) -> Option<()> {
        let (one, two) = (self.alloc(64 * MIB, 1)?, self.alloc(32 * MIB, 2)?);
        self.alloc(20 * MIB, 3)?;
        for block in [one, two] {
            let addr = self.allocator.address(block);
            self.allocator.free_requested(block);
            self.allocator.free_completed(block);
            self.event(Action::FreeRequested, addr, 0, 0);
            self.event(Action::FreeCompleted, addr, 0, 0);
        }
        Some(())
    }

    /// Sends the events so far and the end of a step; later events are sent with the next one.
    async fn send(&mut self, step: u64) {
        self.time_ns += 1_000;
        let mark = Mark { time_ns: self.time_ns, kind: MarkKind::StepEnd(step) };
        let mut encoder = Encoder::new(1).unwrap();
        self.events.iter().for_each(|event| encoder.push(event).unwrap());
        let meta = ChunkMeta { device: DeviceIndex(0), first_event: self.sent.1, rollup: Rollup::default() };
        let items = [Packed::chunk(encoder.finish(&meta).unwrap().into()), Packed::marks(&[mark], 1)];
        self.sent.1 += self.events.len() as u64;
        self.events.clear();
        let key = self.store.open_session(&info(), 1).await.unwrap().key;
        let mut append = Append {
            session: key,
            items: Vec::new(),
            gaps: Vec::new(),
            durable_seq: self.sent.0 + items.len() as u64,
            duplicates: 0,
            heard_ns: 1,
            devices: Vec::new(),
            epoch_ends: Vec::new(),
            end: None,
            dropped: Dropped::default(),
        };
        for (seq, packed) in (self.sent.0 + 1..).zip(items) {
            let prepared = prepare(key, &[0], &packed.numbered(seq), &Scale::default()).unwrap();
            append.items.push(prepared.item);
            append.devices.extend(prepared.devices);
        }
        self.sent.0 = append.durable_seq;
        self.store.append(vec![append]).await.unwrap();
    }
}

fn info() -> SessionInfo {
    SessionInfo {
        source: SourceKind::Live,
        devices: vec![DeviceInfo::default()],
        resolution_ns: 1,
        ..SessionInfo::live(SessionId([7; 16]), "j", 1)
    }
}

#[tokio::test]
async fn the_request_is_named_before_the_step_in_which_it_fails() {
    forecast_by_rounds_of(1).await;
}

#[tokio::test]
async fn several_short_steps_in_a_round_are_told_as_well() {
    // Nothing has arrived yet after the last step of a round.
    forecast_by_rounds_of(3).await;
}

/// Searches once every `steps` steps.
async fn forecast_by_rounds_of(steps: u64) {
    let limit = Limit::Device(LIMIT);
    let mut training = Training {
        allocator: Allocator::new(Conf::default(), limit),
        store: SqliteStore::in_memory().await.unwrap(),
        events: Vec::new(),
        time_ns: 1_780_000_000_000_000_000,
        sent: (0, 0),
        asked: StackId::NONE,
    };
    let place = Arc::new(Semaphore::new(1));
    let (mut look, mut forecasts, mut step) = (None::<Look>, Vec::new(), 0);
    while training.step().is_some() {
        step += 1;
        assert!(step < 100, "it never fails");
        training.send(step).await;
        if !step.is_multiple_of(steps) {
            continue;
        }
        let selection = v1::Selection { job: "j".into(), ..Default::default() };
        let found = find(&training.store, &selection).await.unwrap();
        let (session, row) = (&found.sessions[0], &found.devices[0]);
        if look.is_none() {
            let permit = place.clone().try_acquire_owned().unwrap();
            look = Some(Look::begin(&training.store, session, row, permit).await.unwrap());
        }
        let look = look.as_mut().unwrap();
        assert!(look.catch_up(&training.store, session, row, (limit, Foresight::AllSteps)).await.unwrap());
        forecasts.extend(
            look.forecast
                .as_ref()
                .map(|forecast| (step, Fails { steps: forecast.steps(look.ahead.steps_seen()), ..forecast.fails })),
        );
    }
    let (at, fails) = *forecasts.last().expect("nothing was foreseen");
    // The end of a step is known once an event follows it: here with the next step.
    assert!(at < step + 1, "{forecasts:?}, failed in {}", step + 1);
    assert_eq!((fails.stack, fails.shortage), (training.asked, Shortage::Capacity), "{forecasts:?}");
    // Searches from far away, which replayed nothing, did not delay a long search.
    assert!(steps > 1 || forecasts[0].1.steps > STEPS_AHEAD, "{forecasts:?}");
    // The forecast counts from the end of the step before the one that was running when it was made.
    assert_eq!(at - 1 + u64::from(fails.steps), step + 1, "{forecasts:?}");
    let watched = RankWatch::new(RankFacts::default());
    let look = look.unwrap();
    let finding = look.finding(
        look.forecast.as_ref().unwrap(),
        &watched,
        |_| ForecastRequest { bytes: 1, stack: Vec::new() },
        LIMIT,
    );
    assert!(finding.title.starts_with("Rank 0 will run out of memory in"), "{}", finding.title);
}

#[test]
fn what_grows_in_a_process_vouches_for_that_process() {
    let watched = RankWatch::new(RankFacts::default());
    let name = watched.who().name();
    let of = |kind, foresight: Foresight, process: &str| {
        let processes = vec![process.to_owned()];
        Finding { processes, foresight, ..Finding::new(kind, Severity::Info, 0.5, vec![0]) }
    };
    let leak = FindingKind::Leak;
    let found = [of(leak, Foresight::CertainStep, &name), of(leak, Foresight::NextStep, &name)];
    assert_eq!(foresight(&watched, &found), Foresight::NextStep);
    let others = [of(leak, Foresight::AllSteps, "rank 9"), of(FindingKind::RankSkew, Foresight::AllSteps, &name)];
    assert_eq!(foresight(&watched, &others), Foresight::Nothing);
    assert_eq!(foresight(&watched, &[Finding::new(leak, Severity::Warning, 0.9, vec![0])]), Foresight::Nothing);
}
