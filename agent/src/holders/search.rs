//! The worker's part in a request for holders. It selects the blocks, passes them to the trainer, and checks the
//! answer.
//!
//! Guarantees: the worker writes the request into the trainer's region and never waits for the trainer. When the caller
//! has stopped waiting, the request is withdrawn. Only the answer to the current request counts, and only once.
//! Searches take at most a hundredth of a training's time, regardless of how often they are requested.
//! Refuses: a request without blocks, because its empty answer would mean "nothing holds the memory".

use std::sync::Arc;
use std::time::{Duration, Instant};

use memctl_analysis::{LiveBlock, LiveSample};
use memctl_model::{MarkKind, StackId};
use memctl_proto::convert::holders::BLOCKS_MAX;
use memctl_proto::v1::HolderSearch;
use memctl_proto::v1::holders_answer::Body;

use super::allowance::Allowance;
use super::{Ask, Asks, parse};
use crate::region::Region;
use crate::source_paths::SourcePaths;

/// Interval between checks of whether any of a few blocks is still live. A tensor that each step replaces is a
/// different one by the time of the trainer's search.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Up to this many blocks count as few.
const FEW: usize = 32;
/// How often the blocks of a request are replaced by others, at most.
const RENEWALS_MAX: u8 = 16;
/// A search is not repeated with less remaining budget than this.
const BUDGET_MS_MIN: u32 = 5;

/// A request that the trainer has, or will get as soon as its region is free.
struct UnderWay {
    ask: Ask,
    /// Time that earlier searches took without a result.
    took: Duration,
    sample: LiveSample,
    is_handed: bool,
    looked: Instant,
    renewals: u8,
}

/// The requests of one session; see the module's documentation.
pub(crate) struct Search {
    asks: Arc<Asks>,
    region: Arc<Region>,
    paths: SourcePaths,
    under_way: Option<UnderWay>,
    allowance: Allowance,
    /// The trainer's epoch, if a mark has named one.
    epoch: Option<u32>,
}

/// Whether a trainer with this region can be asked for holders. Without a region there is no Python.
pub(crate) fn readiness(region: Option<&Region>, allowed: bool) -> HolderSearch {
    match region.filter(|region| region.python().is_some()) {
        None => HolderSearch::NotPython,
        Some(region) if !allowed || region.forbids_holders() => HolderSearch::Forbidden,
        Some(_) => HolderSearch::Ready,
    }
}

impl UnderWay {
    /// The remaining budget of the request.
    fn left_ms(&self) -> u32 {
        let took_ms = u32::try_from(self.took.as_millis()).unwrap_or(u32::MAX);
        self.ask.budget_ms.saturating_sub(took_ms).max(1)
    }

    /// If none of the request's blocks is live, replaces them by the blocks that are live now. Returns whether the
    /// trainer is to be asked about these.
    fn renew(&mut self, now: LiveSample) -> bool {
        let lives = |block: &LiveBlock| now.oldest.contains(block);
        let may = self.renewals < RENEWALS_MAX && self.left_ms() >= BUDGET_MS_MIN;
        let may = may && !now.oldest.is_empty() && !self.sample.oldest.iter().any(lives);
        if may {
            self.renewals += 1;
            (self.sample, self.is_handed) = (now, false);
        }
        may
    }
}

impl Search {
    pub(crate) fn new(asks: Arc<Asks>, region: Arc<Region>, paths: SourcePaths) -> Self {
        Self { asks, region, paths, under_way: None, allowance: Allowance::new(Instant::now()), epoch: None }
    }

    /// Takes a mark of the trainer. Later answers belong to the mark's epoch.
    pub(crate) fn passed(&mut self, mark: &MarkKind) {
        if let MarkKind::EpochBegin(epoch) | MarkKind::EpochEnd(epoch) = mark {
            self.epoch = Some(*epoch);
        }
    }

    /// Continues with the current request. `live` returns the oldest live blocks of some stacks. Takes one atomic load
    /// when there is no request.
    pub(crate) fn turn(&mut self, now: Instant, live: impl Fn(&[StackId], usize) -> LiveSample) {
        if let Some(ask) = self.asks.take() {
            self.begin(ask, now, &live);
        }
        let Some(under_way) = &mut self.under_way else { return };
        if now >= under_way.ask.until {
            self.region.withdraw_holders();
            self.under_way = None;
        } else if !under_way.is_handed {
            let budget_ms = under_way.left_ms();
            let UnderWay { ask, sample, is_handed, renewals, .. } = under_way;
            let blocks: Vec<(u64, u64)> = sample.oldest.iter().map(|block| (block.addr, block.size)).collect();
            // A trainer that is still reading the previous request will have finished by the next turn.
            *is_handed = self.region.ask_holders(ask.id, budget_ms, &blocks);
            if *is_handed && *renewals == 0 {
                self.allowance.spend(ask.budget(), now);
            }
        } else if under_way.sample.oldest.len() <= FEW && now >= under_way.looked + LOOK_AGAIN {
            under_way.looked = now;
            under_way.renew(live(&under_way.ask.stacks, BLOCKS_MAX));
        }
    }

    fn begin(&mut self, ask: Ask, now: Instant, live: impl Fn(&[StackId], usize) -> LiveSample) {
        self.region.withdraw_holders();
        self.under_way = None;
        if let Some(rest) = self.allowance.wait(now) {
            let words = format!(
                "searches may pause the process for at most a hundredth of its time; ask again in {} s",
                rest.as_secs() + 1
            );
            return self.asks.answer(ask.id, Body::Failure(words));
        }
        let sample = live(&ask.stacks, BLOCKS_MAX);
        if sample.oldest.is_empty() {
            let words = "no block of this site is live in the process now: its memory has been freed";
            return self.asks.answer(ask.id, Body::Failure(words.to_owned()));
        }
        let took = Duration::ZERO;
        self.under_way = Some(UnderWay { ask, took, sample, is_handed: false, looked: now, renewals: 0 });
    }

    /// Takes the trainer's answer. `live` is as in [`Self::turn`]: blocks that were freed during the search have no
    /// holders.
    pub(crate) fn answered(&mut self, id: u64, json: &[u8], live: impl FnOnce(&[StackId], usize) -> LiveSample) {
        let Some(mut under_way) = self.under_way.take_if(|under_way| under_way.ask.id == id) else {
            tracing::debug!(id, "an answer about holders without a request");
            return;
        };
        // A request with replacement blocks may be waiting. It is no longer needed.
        self.region.withdraw_holders();
        let (ask, sample) = (&under_way.ask, &under_way.sample);
        // Blocks that were the oldest at the request are still the oldest, if they are live. A block also counts as
        // live if another block of the site is at its address now. A site that replaces its tensor repeatedly looks
        // like this, and the search found the replacement. (Blocks younger than the last of `BLOCKS_MAX` are not known
        // here and count as live. Without steps, blocks are ordered by address instead of age.)
        let now = live(&ask.stacks, BLOCKS_MAX);
        let last = now.oldest.last().filter(|_| now.oldest.len() == BLOCKS_MAX);
        let size = |block: &LiveBlock| {
            let there = now.oldest.iter().find(|other| other.addr == block.addr).map(|other| other.size);
            there.or_else(|| last.is_some_and(|last| block > last).then_some(block.size))
        };
        let alive: Vec<Option<u64>> = sample.oldest.iter().map(size).collect();
        let is_freed = alive.iter().all(Option::is_none);
        let body = match parse::read(json, &alive, self.epoch, &self.paths) {
            Ok(mut found) => {
                under_way.took += Duration::from_micros(found.took_us);
                if found.holders.is_empty() && is_freed {
                    if under_way.renew(now) {
                        self.under_way = Some(under_way);
                        return;
                    }
                    Body::Failure("the blocks that it was asked about were freed meanwhile".to_owned())
                } else {
                    found.took_us = u64::try_from(under_way.took.as_micros()).unwrap_or(u64::MAX);
                    (found.live_blocks, found.live_bytes) = (now.blocks.max(found.asked_blocks.into()), now.bytes);
                    Body::Found(found)
                }
            }
            // The search may have failed because the blocks were replaced meanwhile.
            Err(_) if is_freed && under_way.renew(now) => {
                self.under_way = Some(under_way);
                return;
            }
            Err(failure) => Body::Failure(failure),
        };
        self.allowance.give_back(under_way.ask.budget().saturating_sub(under_way.took));
        self.asks.answer(id, body);
    }
}

#[cfg(test)]
mod tests {
    use memctl_proto::v1;

    use super::*;

    fn live(count: u64) -> impl Fn(&[StackId], usize) -> LiveSample {
        move |stacks, most| {
            assert_eq!(stacks, [StackId(3)]);
            let block = |at| LiveBlock { birth_epoch: 0, birth_step: at, addr: (at + 1) << 20, size: 512 };
            let oldest = (0..count).take(most).map(block).collect();
            LiveSample { blocks: count, bytes: 512 * count, oldest }
        }
    }

    fn search() -> (Arc<Asks>, Arc<Region>, Search) {
        let (asks, region) = (Arc::new(Asks::default()), Region::create(1, 16).unwrap());
        let search = Search::new(asks.clone(), region.clone(), SourcePaths::default());
        (asks, region, search)
    }

    fn ask(id: u64) -> v1::HoldersAsk {
        v1::HoldersAsk { id, stacks: vec![3], budget_ms: 50, wait_ms: 60_000 }
    }

    fn json(asked: usize) -> Vec<u8> {
        format!(
            r#"{{"version":2,"slices":1,"longest_ms":1.0,"asked_blocks":{asked},"found_blocks":0,"objects":1,"took_ms":1.0,"complete":true,"not_looked_at":[],"has_epochs":true,"holders":[]}}"#
        )
        .into_bytes()
    }

    fn answer(asks: &Asks) -> Option<v1::HoldersAnswer> {
        asks.waiting().answer.take()
    }

    #[test]
    fn the_trainer_is_asked_and_its_answer_is_passed_on_once() {
        let (asks, region, mut search) = search();
        search.turn(Instant::now(), |_, _| panic!("nothing is asked"));
        asks.ask(ask(7));
        for mark in [MarkKind::EpochBegin(4), MarkKind::StepEnd(9)] {
            search.passed(&mark);
        }
        search.turn(Instant::now(), live(300));
        let asked = region.holders_asked().unwrap();
        assert_eq!((asked.ask, asked.budget_ms, asked.blocks.len(), asked.blocks[0]), (7, 50, 256, (1 << 20, 512)));
        search.answered(8, &json(256), live(300));
        assert_eq!(answer(&asks), None, "of another ask");
        search.answered(7, &json(256), live(300));
        let Some(v1::HoldersAnswer { id: 7, body: Some(Body::Found(found)) }) = answer(&asks) else { panic!() };
        assert_eq!((found.live_blocks, found.live_bytes, found.asked_blocks), (300, 300 * 512, 256));
        assert_eq!(found.epoch, Some(4));
        search.answered(7, &json(256), live(300));
        assert_eq!(answer(&asks), None, "a second time");
    }

    #[test]
    fn of_what_was_freed_meanwhile_no_holder_is_told() {
        let (asks, _region, mut search) = search();
        asks.ask(ask(7));
        search.turn(Instant::now(), live(4));
        search.answered(7, &json(4), live(1));
        let Some(v1::HoldersAnswer { body: Some(Body::Found(found)), .. }) = answer(&asks) else { panic!() };
        assert_eq!((found.live_blocks, found.live_bytes), (4, 512), "as of now");
        asks.ask(ask(8));
        search.turn(Instant::now(), live(4));
        search.answered(8, &json(4), live(0));
        let Some(v1::HoldersAnswer { body: Some(Body::Failure(words)), .. }) = answer(&asks) else { panic!() };
        assert!(words.contains("freed meanwhile"), "{words}");
    }

    /// A single block that each step replaces.
    fn of_step(step: u64) -> impl Fn(&[StackId], usize) -> LiveSample {
        move |_, _| {
            let block = LiveBlock { birth_epoch: 0, birth_step: step, addr: (step + 1) << 20, size: 512 };
            LiveSample { blocks: 1, bytes: 512, oldest: vec![block] }
        }
    }

    #[test]
    fn where_a_tensor_is_replaced_again_and_again_the_trainer_hears_of_the_latest() {
        let (asks, region, mut search) = search();
        let (now, mut asked) = (Instant::now(), Vec::new());
        asks.ask(ask(7));
        for step in 0..3 {
            // The next check is not yet due 1 ms after the previous one.
            for ms in [0, 30, 31] {
                search.turn(now + Duration::from_millis(100 * step + ms), of_step(step));
                asked.extend(region.holders_asked().map(|asked| (asked.ask, asked.blocks[0].0 >> 20)));
            }
        }
        assert_eq!(asked, [(7, 1), (7, 2), (7, 3)]);
        // An answer about a freed block does not count, but its time is spent.
        search.answered(7, &json(1), of_step(9));
        assert_eq!(answer(&asks), None);
        search.turn(now + Duration::from_millis(300), of_step(9));
        assert_eq!(region.holders_asked().map(|asked| (asked.budget_ms, asked.blocks[0].0 >> 20)), Some((49, 10)));
        search.answered(7, &json(1), of_step(9));
        let Some(v1::HoldersAnswer { body: Some(Body::Found(found)), .. }) = answer(&asks) else { panic!() };
        assert_eq!(found.took_us, 2_000);
    }

    #[test]
    fn it_is_not_told_of_others_for_ever() {
        let (asks, region, mut search) = search();
        asks.ask(ask(7));
        let mut handed = 0;
        for step in 0..100 {
            search.turn(Instant::now() + LOOK_AGAIN * step, of_step(step.into()));
            search.turn(Instant::now() + LOOK_AGAIN * step, of_step(step.into()));
            handed += u32::from(region.holders_asked().is_some());
        }
        assert_eq!(handed, u32::from(RENEWALS_MAX) + 1);
    }

    #[test]
    fn what_the_trainer_says_wrongly_is_told() {
        let (asks, _region, mut search) = search();
        asks.ask(ask(7));
        search.turn(Instant::now(), live(1));
        search.answered(7, b"<html>", live(1));
        let Some(v1::HoldersAnswer { body: Some(Body::Failure(words)), .. }) = answer(&asks) else { panic!() };
        assert!(words.contains("cannot be read"), "{words}");
    }

    #[test]
    fn an_ask_that_no_one_waits_for_is_taken_back() {
        let (asks, region, mut search) = search();
        asks.ask(v1::HoldersAsk { wait_ms: 10, ..ask(1) });
        search.turn(Instant::now(), live(1));
        search.turn(Instant::now() + Duration::from_secs(1), live(1));
        assert_eq!(region.holders_asked(), None);
        search.answered(1, &json(1), live(1));
        assert_eq!(answer(&asks), None);
    }

    #[test]
    fn an_endless_caller_learns_when_to_come_again() {
        let (asks, region, mut search) = search();
        let now = Instant::now();
        let (mut handed, mut refusal) = (0, None);
        for id in 1..100 {
            asks.ask(v1::HoldersAsk { budget_ms: 300, ..ask(id) });
            search.turn(now, live(1));
            handed += u32::from(region.holders_asked().is_some_and(|asked| asked.ask == id));
            if let Some(v1::HoldersAnswer { id: of, body: Some(Body::Failure(words)) }) = answer(&asks) {
                assert_eq!(of, id);
                refusal = Some(words);
            }
        }
        assert_eq!(handed, 4, "a second is saved, and the last one may take more");
        let words = refusal.unwrap();
        assert!(words.contains("a hundredth of its time; ask again in 21 s"), "{words}");
        asks.ask(v1::HoldersAsk { budget_ms: 300, ..ask(100) });
        search.turn(now + Duration::from_secs(22), live(1));
        assert_eq!(region.holders_asked().map(|asked| asked.ask), Some(100));
    }

    #[test]
    fn without_a_block_the_trainer_is_left_alone() {
        let (asks, region, mut search) = search();
        asks.ask(ask(1));
        search.turn(Instant::now(), live(1));
        asks.ask(ask(2));
        search.turn(Instant::now(), live(0));
        assert_eq!(region.holders_asked(), None, "the one before was taken back");
        assert!(matches!(answer(&asks), Some(v1::HoldersAnswer { id: 2, body: Some(Body::Failure(_)) })));
    }

    #[test]
    fn only_a_python_process_that_allows_it_is_ready() {
        let region = Region::create(1, 16).unwrap();
        assert_eq!(readiness(None, true), HolderSearch::NotPython);
        assert_eq!(readiness(Some(&region), true), HolderSearch::NotPython);
        region.set_python(3, 12);
        assert_eq!(readiness(Some(&region), true), HolderSearch::Ready);
        assert_eq!(readiness(Some(&region), false), HolderSearch::Forbidden);
        region.forbid_holders();
        assert_eq!(readiness(Some(&region), true), HolderSearch::Forbidden);
    }
}
