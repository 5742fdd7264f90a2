//! Tests of leakbench itself: its site tables equal those of the batch stage, added blocks cause no contradiction, and
//! the tables contain the added leaks.

use memctl_agent::internals::{BatchConfig, Batcher};
use memctl_model::{Boundary, SiteTable};
use memctl_proto::item::Content;

use super::base::{Base, Passing};
use super::causes::Cause;
use super::cuts::Cuts;
use super::overlay::Overlay;
use super::parts::{self, Part, View};
use super::replay::replay;
use super::stream::Stream;
use super::{Corpus, detect, long, long_stream, score, server_runs};

fn recorded() -> Base {
    Base::load(&crate::recordings::folder().join("gpt_clean/rank0.pickle.zst")).unwrap()
}

/// The tables that a live agent's batch stage makes for a base.
fn of_the_batch_stage(base: &Base) -> Vec<SiteTable> {
    let config = BatchConfig {
        resolution_ns: 1,
        settings: base.settings.clone(),
        devices: vec![base.start.device],
        linger: None,
        found: Vec::new(),
        source_paths: Default::default(),
    };
    let mut batcher = Batcher::new(config).unwrap();
    for stack in base.stacks.iter() {
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
    contents
        .flat_map(|content| if let Content::SiteTables(tables) = content { tables.all().unwrap() } else { Vec::new() })
        .collect()
}

#[test]
fn site_tables_are_those_of_the_batch_stage() {
    for base in [recorded(), Base::load(&super::folder().join("autoencoder.pickle.zst")).unwrap()] {
        let expected = of_the_batch_stage(&base);
        let found = replay(&base, Overlay::default(), &Cuts::Marks);
        assert!(expected.len() > 50);
        assert_eq!(found.tables.len(), expected.len());
        for (found, expected) in found.tables.iter().zip(&expected) {
            assert_eq!(found, expected);
        }
        assert_eq!(found.anomalies.contradictions, 0);
    }
}

fn corpus(view: View) -> Corpus {
    Corpus { part: Part::Tune2, view, trainings: parts::trainings(Part::Tune2).unwrap() }
}

/// Every `every`-th table of a rank.
fn tables(stream: &Stream, every: usize) -> Vec<SiteTable> {
    (0..stream.len()).step_by(every).map(|number| stream.table(number).unwrap().into_owned()).collect()
}

#[test]
fn runs_are_reproducible_and_consistent_and_contain_their_leaks() {
    let corpus = corpus(View::Marked);
    for number in 0..Cause::TRAINING.len() as u64 {
        let (run, again) = (corpus.make(true, number), corpus.make(true, number));
        assert!(run.streams.iter().zip(&again.streams).all(|(a, b)| tables(a, 1) == tables(b, 1)));
        let truth = run.truth.as_ref().unwrap();
        assert_eq!(truth.cause, Cause::TRAINING[number as usize]);
        assert!(truth.blocks.len() >= 5 && truth.blocks.is_sorted());
        for (rank, stream) in run.streams.iter().enumerate() {
            assert_eq!(stream.contradictions(), 0);
            let base = &run.bases[rank];
            let plain = replay(base, Overlay::default(), &Cuts::Marks);
            let until = base.steps.last().unwrap().end;
            let by_then = truth.blocks.iter().filter(|&&(at, _)| at <= until);
            let leaked: u64 = by_then.map(|&(_, bytes)| bytes).sum();
            // This is the end of the last step, before the training frees everything. With graphs, only the pools grow.
            let last = |tables: &[SiteTable]| {
                let table = tables.iter().rfind(|table| table.boundary == Boundary::StepEnd).unwrap();
                let graphs = truth.cause == Cause::GraphPerShape;
                if graphs { table.counters.reserved_bytes } else { table.counters.requested_bytes }
            };
            let more = last(&tables(stream, 1)).saturating_sub(last(&plain.tables));
            // The blocks of a chain are freed with their epoch. Ranks that draw independently leak other amounts.
            if truth.cause != Cause::HiddenChain && rank == truth.ranks[0] {
                assert!(more >= leaked * 9 / 10, "run {number}, rank {rank}: {more} of {leaked}");
            }
        }
    }
}

#[test]
fn a_clean_run_differs_from_its_training_only_by_benign_growth() {
    let corpus = corpus(View::Marked);
    let mut grew = 0;
    for number in 0..12 {
        let run = corpus.make(false, number);
        assert!(run.truth.is_none());
        for (rank, stream) in run.streams.iter().enumerate() {
            assert_eq!(stream.contradictions(), 0);
            let plain = replay(&run.bases[rank], Overlay::default(), &Cuts::Marks);
            let tables = tables(stream, 1);
            assert!(!run.benign.is_empty() || tables == plain.tables);
            grew += u32::from(tables != plain.tables);
        }
    }
    assert!(grew > 6);
}

#[test]
fn without_marks_nothing_of_them_is_left() {
    let corpus = corpus(View::Unmarked);
    let run = corpus.make(true, 0);
    let with_marks = Corpus { view: View::Marked, ..corpus }.make(true, 0);
    for (seen, known) in run.streams.iter().zip(&with_marks.streams) {
        let (seen, known) = (tables(seen, 1), tables(known, 1));
        assert!(seen.len() > 20);
        assert!(seen.iter().all(|table| table.found || table.boundary == Boundary::WindowEnd));
        let events = |tables: &[SiteTable]| tables.last().unwrap().at_event;
        assert!(events(&seen) >= events(&known), "everything is seen");
    }
}

#[test]
fn servers_leak_as_they_are_told_to() {
    for number in 0..Cause::SERVING.len() as u64 {
        let run = server_runs::make(Part::Tune2, true, number);
        let truth = run.truth.as_ref().unwrap();
        assert_eq!(truth.cause, Cause::SERVING[number as usize]);
        let stream = &run.streams[truth.ranks[0]];
        assert_eq!(stream.contradictions(), 0);
        let seen = tables(stream, 1);
        assert!(seen.len() > 100 && seen.iter().all(|table| table.boundary == Boundary::WindowEnd));
        let leaked: u64 = truth.blocks.iter().map(|&(_, bytes)| bytes).sum();
        let (first, last) = (seen.first().unwrap().counters, seen.last().unwrap().counters);
        assert!(last.reserved_bytes - first.reserved_bytes >= leaked / 2 || leaked < 1 << 20, "{:?}", truth.cause);
        let pools: u64 = seen.last().unwrap().private_pools.iter().map(|row| row.bytes).sum();
        assert!(truth.cause != Cause::GraphPerShape || pools > 0);
    }
}

#[test]
fn a_long_epoch_holds_what_it_leaks() {
    let corpus = corpus(View::Long);
    for number in 0..10 {
        let run = long::make(Part::Tune2, &corpus.trainings, true, number);
        let truth = run.truth.as_ref().unwrap();
        let leaked: u64 = truth.blocks.iter().map(|&(_, bytes)| bytes).sum();
        let added = |number: usize| {
            let table = run.streams[0].table(number).unwrap();
            let rows: u64 = table.rows.iter().map(|row| row.bytes).sum();
            assert_eq!(rows, table.counters.allocated_bytes, "{:?}", truth.cause);
            assert!(table.rows.is_sorted_by_key(|row| (row.stack, row.birth_phase)));
            rows + table.private_pools.iter().map(|row| row.bytes).sum::<u64>()
        };
        let grown = added(long_stream::STEPS - 1).saturating_sub(added(0));
        assert!(grown >= leaked * 8 / 10, "{:?}: {grown} of {leaked}", truth.cause);
        let times = truth.blocks.chunk_by(|a, b| a.0 == b.0).count();
        assert!((10..400).contains(&times), "{times}");
    }
}

#[test]
fn every_detector_is_heard_and_delays_count_from_the_first_block() {
    let corpus = corpus(View::Marked);
    let mut detectors = detect::all();
    let run = corpus.make(true, 0);
    let truth = run.truth.as_ref().unwrap();
    let outcomes = score::judge(&run, &mut detectors);
    assert_eq!(outcomes.len(), detectors.len());
    let leaked: u64 = truth.blocks.iter().map(|&(_, bytes)| bytes).sum();
    let delays: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.alarmed).collect();
    assert!(!delays.is_empty());
    assert!(delays.iter().all(|delay| delay.bytes <= leaked && delay.steps <= truth.step_ends.len() as u64));
    assert!(delays.iter().all(|delay| delay.times >= 1 && delay.seconds >= 0.0));
    let suspected_first = |outcome: &score::Outcome| match (outcome.suspected, outcome.alarmed) {
        (Some(suspected), Some(alarmed)) => suspected.steps <= alarmed.steps,
        (None, alarmed) => alarmed.is_none(),
        _ => true,
    };
    assert!(outcomes.iter().all(suspected_first));
}
