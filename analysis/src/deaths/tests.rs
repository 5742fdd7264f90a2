//! Tests that one incident gives one finding: which process died first, of which cause, and which followed.

use super::*;

const S: u64 = 1_000_000_000;

fn death(rank: u32, seconds: f64, failure: &str) -> Death {
    Death {
        rank,
        host: format!("node{}", rank / 4),
        time_ns: (seconds * S as f64) as u64,
        epoch: Some(1),
        step: Some(66),
        under_way: true,
        failure: Some(failure.to_owned()),
    }
}

/// The others were heard of long after the deaths of these tests.
const RUNNING: Others = Others::Running(10_000 * S);
const TERM: &str = "killed by signal 15 (SIGTERM)";
const KILL: &str = "killed by signal 9 (SIGKILL)";

/// A job of so many ranks, four on each host.
fn known(ranks: usize) -> SeenProcesses {
    let mut by_host = BTreeMap::new();
    for rank in 0..ranks {
        *by_host.entry(format!("node{}", rank / 4)).or_default() += 1;
    }
    SeenProcesses { processes: ranks, by_host }
}

fn tell(deaths: &[Death], ranks: usize, others: Others) -> Incidents {
    super::tell(deaths, &known(ranks), others)
}

fn titles(deaths: &[Death], known: usize, others: Others) -> Vec<String> {
    tell(deaths, known, others).findings.into_iter().map(|finding| finding.title).collect()
}

#[test]
fn a_rank_that_is_killed_takes_the_others_along_in_one_finding() {
    // The launcher's report about the other ranks may arrive before the dead rank's own.
    let deaths = [death(2, 10.0, TERM), death(0, 10.2, TERM), death(3, 10.1, KILL), death(1, 10.3, TERM)];
    let incidents = tell(&deaths, 4, Others::None);
    let [found] = incidents.findings.as_slice() else { panic!("{incidents:#?}") };
    assert_eq!(found.title, "Rank 3 died first, by SIGKILL, at step 66 (epoch 1); the others were stopped after it");
    assert_eq!((found.ranks.as_slice(), found.severity), (&[3][..], Severity::Critical));
    assert!(found.evidence.contains(&("end_2".into(), EvidenceValue::Text("SIGTERM: ranks 0-2".into()))), "{found:#?}");
}

#[test]
fn a_thousand_ranks_are_one_finding() {
    let mut deaths: Vec<Death> = (0..1024).rev().map(|rank| death(rank, 20.0, TERM)).collect();
    deaths[5].failure = Some("ValueError: no such file".into());
    let incidents = tell(&deaths, 1024, Others::None);
    assert_eq!(incidents.findings.len(), 1);
    assert_eq!(
        incidents.findings[0].title,
        "Rank 1018 died first, by ValueError: no such file, at step 66 (epoch 1); the others were stopped after it"
    );
    assert!(incidents.findings[0].evidence.len() < 12);
}

#[test]
fn peers_whose_collectives_failed_are_no_cause() {
    let gloo = "RuntimeError: [pair.cc:547] Connection closed by peer [127.0.0.1]:1234";
    let deaths = [death(0, 9.9, gloo), death(1, 10.0, "killed by signal 11 (SIGSEGV)"), death(2, 10.4, TERM)];
    assert_eq!(
        titles(&deaths, 4, RUNNING),
        [
            "Rank 1 died first, by SIGSEGV, at step 66 (epoch 1); rank 0 lost it as a peer and ended too; rank 2 was stopped after it"
        ]
    );
}

#[test]
fn the_same_end_on_all_ranks_is_told_once() {
    let deaths: Vec<Death> = (0..4).map(|rank| death(rank, 5.0 + f64::from(rank), "ValueError: shapes")).collect();
    assert_eq!(titles(&deaths, 4, Others::None), ["All 4 ranks failed with ValueError: shapes at step 66 (epoch 1)"]);
}

#[test]
fn a_job_that_was_stopped_from_outside_has_no_rank_to_blame() {
    let deaths: Vec<Death> = (0..4).map(|rank| death(rank, 5.0, TERM)).collect();
    let incidents = tell(&deaths, 4, Others::None);
    assert_eq!(incidents.findings[0].title, "All 4 ranks were stopped by SIGTERM at step 66 (epoch 1)");
    assert_eq!(incidents.findings[0].severity, Severity::Warning);
    assert!(!incidents.findings[0].advice.contains("dmesg"), "{}", incidents.findings[0].advice);
    let by_hand: Vec<Death> = (0..2).map(|rank| death(rank, 5.0, "KeyboardInterrupt")).collect();
    assert_eq!(tell(&by_hand, 2, Others::None).findings[0].severity, Severity::Info);
}

#[test]
fn who_ran_out_of_memory_is_told_elsewhere_with_what_followed() {
    let oom = "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB";
    let incidents = tell(&[death(1, 5.0, oom), death(0, 5.1, TERM), death(2, 5.2, TERM)], 3, Others::None);
    assert!(incidents.findings.is_empty(), "{incidents:#?}");
    assert_eq!(
        incidents.after_oom,
        [AfterOom { rank: 1, sentence: "Consequences: the others were stopped after it.".into() }]
    );
    // An illegal access is not an out of memory.
    let incidents = tell(
        &[death(0, 5.0, "AcceleratorError: CUDA error: an illegal memory access was encountered")],
        1,
        Others::None,
    );
    assert_eq!(incidents.findings.len(), 1);
}

#[test]
fn what_is_far_apart_is_two_incidents() {
    let deaths = [death(3, 10.0, KILL), death(1, 4000.0, "ValueError: x")];
    assert_eq!(
        titles(&deaths, 4, RUNNING),
        [
            "Rank 3 ended by SIGKILL at step 66 (epoch 1); the others continued",
            "Rank 1 failed with ValueError: x at step 66 (epoch 1); the others continued"
        ]
    );
    let found = tell(&deaths, 4, RUNNING).findings;
    assert_ne!(found[0].fingerprint("job"), found[1].fingerprint("job"));
}

#[test]
fn whether_the_others_continue_is_known_only_later() {
    let first = death(1, 10.0, KILL);
    let only = |others| tell(std::slice::from_ref(&first), 2, others).findings.remove(0);
    let at_once = only(Others::Running(10 * S));
    assert_eq!(at_once.title, "Rank 1 ended by SIGKILL at step 66 (epoch 1); the others were still running then");
    assert_eq!(
        only(Others::Running(200 * S)).title,
        "Rank 1 ended by SIGKILL at step 66 (epoch 1); the others continued"
    );
    assert_eq!(only(Others::Finished).title, "Rank 1 ended by SIGKILL at step 66 (epoch 1); the others finished");
    // When the launcher has stopped the other one, the same finding reports this.
    let later = tell(&[first.clone(), death(0, 10.1, TERM)], 2, Others::None).findings.remove(0);
    assert_eq!(later.title, "Rank 1 died first, by SIGKILL, at step 66 (epoch 1); rank 0 was stopped after it");
    assert_eq!(later.fingerprint("job"), at_once.fingerprint("job"));
}

#[test]
fn the_command_of_the_advice_selects_the_job() {
    let mut found = tell(&[death(1, 10.0, KILL)], 2, RUNNING).findings.remove(0);
    found.name_job("'vit#2'");
    let command = "`memctl sites --job 'vit#2' --rank 1 --end`";
    assert!(found.advice.contains(command), "{}", found.advice);
}

#[test]
fn a_node_that_is_lost_is_one_finding_about_the_node() {
    let silent = |ranks: std::ops::Range<u32>| -> Vec<Death> {
        ranks.map(|rank| Death { failure: None, ..death(rank, 10.0 + f64::from(rank) / 100.0, "") }).collect()
    };
    let end = "; the others continued";
    assert_eq!(
        titles(&silent(4..8), 16, RUNNING),
        [format!("Node node1 was lost at step 66 (epoch 1): ranks 4-7 of it sent nothing more{end}")]
    );
    assert_eq!(
        titles(&silent(4..12), 16, RUNNING),
        [format!("Nodes node1, node2 were lost at step 66 (epoch 1): ranks 4-11 of them sent nothing more{end}")]
    );
    let part = &titles(&silent(4..7), 16, RUNNING)[0];
    assert!(part.starts_with("Ranks 4-6 ended without notice"), "a rank of the node is left: {part}");
    // The last data of two processes says nothing about which ended first.
    assert_eq!(
        titles(&silent(0..4), 4, Others::None),
        ["All 4 ranks ended without notice at step 66 (epoch 1): they sent nothing more"]
    );
}
