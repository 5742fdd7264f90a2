//! What leakbench stands on: its site tables are the batch stage's, what it adds contradicts nothing, and its truth is in them.

use memctl_agent::batch::{BatchConfig, Batcher};
use memctl_model::{Boundary, SiteTable};
use memctl_proto::item::Content;

use super::base::{Base, Passing};
use super::causes::Cause;
use super::detect;
use super::replay::{Overlay, replay};
use super::runs::{self, Part};
use super::score;

fn recorded() -> Base {
    Base::load(&crate::recordings::folder().join("gpt_clean/rank0.pickle.zst")).unwrap()
}

/// The tables that a live agent's batch stage makes of a base.
fn of_the_batch_stage(base: &Base) -> Vec<SiteTable> {
    let config = BatchConfig {
        resolution_ns: 1,
        settings: base.settings.clone(),
        devices: vec![base.start.device],
        linger: None,
    };
    let mut batcher = Batcher::new(config).unwrap();
    for stack in &base.stacks {
        batcher.stack(stack);
    }
    batcher.restore(0, base.start.clone());
    for moment in &base.moments {
        match moment {
            Passing::Event(event) => batcher.event(0, event),
            Passing::Mark(mark) => batcher.device_mark(0, mark),
        }
    }
    batcher.flush();
    let contents = batcher.take().into_iter().map(|item| item.packed.open().unwrap());
    contents.flat_map(|content| if let Content::SiteTables(tables) = content { tables } else { Vec::new() }).collect()
}

#[test]
fn site_tables_are_those_of_the_batch_stage() {
    for base in [recorded(), Base::load(&super::folder().join("autoencoder.pickle.zst")).unwrap()] {
        let expected = of_the_batch_stage(&base);
        let found = replay(&base, Overlay::default());
        assert!(expected.len() > 50);
        assert_eq!(found.tables.len(), expected.len());
        for (found, expected) in found.tables.iter().zip(&expected) {
            assert_eq!(found, expected);
        }
        assert_eq!(found.anomalies.contradictions, 0);
    }
}

#[test]
fn runs_repeat_contradict_nothing_and_hold_what_they_leak() {
    let trainings = runs::trainings(Part::Tune).unwrap();
    for number in 0..Cause::ALL.len() as u64 {
        let run = runs::make(Part::Tune, &trainings, true, number);
        let again = runs::make(Part::Tune, &trainings, true, number);
        assert!(run.streams.iter().zip(&again.streams).all(|(a, b)| a.tables == b.tables));
        let truth = run.truth.as_ref().unwrap();
        assert_eq!(truth.cause, Cause::ALL[number as usize]);
        assert!(truth.blocks.len() >= 5 && truth.blocks.is_sorted());
        for (rank, stream) in run.streams.iter().enumerate() {
            assert_eq!(stream.anomalies.contradictions, 0);
            let plain = replay(run.training.base(rank), Overlay::default());
            let until = run.training.base(rank).steps.last().unwrap().end;
            let by_then = truth.blocks.iter().filter(|&&(at, _)| at <= until);
            let leaked: u64 = by_then.map(|&(_, bytes)| bytes).sum();
            // Before a training ends and gives everything back.
            let last = |tables: &[SiteTable]| {
                tables.iter().rfind(|table| table.boundary == Boundary::StepEnd).unwrap().counters.requested_bytes
            };
            let more = last(&stream.tables).saturating_sub(last(&plain.tables));
            // A chain's blocks go with their epochs; ranks with dice of their own leak other amounts.
            if truth.cause != Cause::HiddenChain && rank == truth.ranks[0] {
                assert!(more >= leaked * 9 / 10, "run {number}, rank {rank}: {more} of {leaked}");
            }
        }
    }
}

#[test]
fn a_clean_run_differs_from_its_training_by_what_grows_alone() {
    let trainings = runs::trainings(Part::Tune).unwrap();
    let mut grew = 0;
    for number in 0..12 {
        let run = runs::make(Part::Tune, &trainings, false, number);
        assert!(run.truth.is_none());
        for (rank, stream) in run.streams.iter().enumerate() {
            assert_eq!(stream.anomalies.contradictions, 0);
            let plain = replay(run.training.base(rank), Overlay::default());
            assert!(!run.benign.is_empty() || stream.tables == plain.tables);
            grew += u32::from(stream.tables != plain.tables);
        }
    }
    assert!(grew > 6);
}

#[test]
fn every_detector_is_heard_and_delays_count_from_the_first_block() {
    let trainings = runs::trainings(Part::Tune).unwrap();
    let mut detectors = detect::all();
    let run = runs::make(Part::Tune, &trainings, true, 0);
    let truth = run.truth.as_ref().unwrap();
    let outcomes = score::judge(&run, &mut detectors);
    assert_eq!(outcomes.len(), detectors.len());
    let leaked: u64 = truth.blocks.iter().map(|&(_, bytes)| bytes).sum();
    let delays: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.alarmed).collect();
    assert!(!delays.is_empty());
    assert!(delays.iter().all(|delay| delay.bytes <= leaked && delay.steps <= run.training.base(0).steps.len() as u64));
    let suspected_first = |outcome: &score::Outcome| match (outcome.suspected, outcome.alarmed) {
        (Some(suspected), Some(alarmed)) => suspected.steps <= alarmed.steps,
        (None, alarmed) => alarmed.is_none(),
        _ => true,
    };
    assert!(outcomes.iter().all(suspected_first));
}
