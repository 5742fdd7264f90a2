//! The data of the page's views for thirty generated jobs and one job of 256 ranks, as sent over HTTP, compared with an
//! exact replay of the stored events: timelines, floors, differences, ledgers, classes and counts.

use memctl_tests::made::{Course, GeneratedJob};
use serde_json::Value;

use super::page::served;
use super::page_truth::{JobAnswers, Truth, classes, differences, floors, ledgers, number, rows, time_ns, truths};

const JOBS: u32 = 30;
/// Devices of a job that are compared. The others were made by the same code.
const COMPARED: usize = 3;

/// Every point of the course has the levels of its stretch of time.
fn course(asked: &JobAnswers<'_>, truth: &Truth) {
    let answer = asked.view(&format!("timeline?{}&points=300", truth.selection()));
    let points = rows(&answer["ranks"][0]["points"]);
    let name = format!("{} {}", asked.job, truth.selection());
    assert!(!points.is_empty() && rows(&answer["ranks"]).len() == 1, "{name}");
    let mut begin = 1;
    for point in points {
        let [first, last] = ["first_at", "last_at"].map(|name| time_ns(&point[name]));
        let end = truth.levels.partition_point(|level| level.time_ns <= last);
        let own = &truth.levels[begin..end];
        assert!(own.iter().all(|level| level.time_ns >= first), "{name} {point}: stretches follow each other");
        // A stretch begins with the level before it, except the first, before which nothing is recorded.
        let within = if begin > 1 { &truth.levels[begin - 1..end] } else { own };
        let levels = [
            ("allocated_bytes", within.last().map(|level| level.allocated)),
            ("reserved_bytes", within.last().map(|level| level.reserved)),
            ("peak_allocated_bytes", within.iter().map(|level| level.allocated).max()),
            ("peak_reserved_bytes", within.iter().map(|level| level.reserved).max()),
            ("min_allocated_bytes", within.iter().map(|level| level.allocated).min()),
        ];
        for (field, exact) in levels {
            assert_eq!(point[field].as_u64(), exact, "{name} {field} {point}");
        }
        begin = end;
    }
    assert_eq!(begin, truth.levels.len(), "{name}: the last stretch ends with the recording");
}

/// Asserts that the overview has a row for each device, the exact level at each epoch end, and the number of failed
/// requests.
fn counts(asked: &JobAnswers<'_>, truths: &[Truth], made: &GeneratedJob) {
    let report = asked.view("query");
    let ranks = rows(&report["ranks"]);
    assert_eq!(ranks.len(), truths.len(), "{}: a row for each device", made.name);
    for truth in truths {
        let is_it = |row: &&Value| number(&row["rank"]) == u64::from(truth.rank) && row["device"] == truth.device;
        let row = ranks.iter().find(is_it).unwrap_or_else(|| panic!("{} {}", made.name, truth.selection()));
        let ends: Vec<(u64, u64)> = rows(&row["epoch_ends"])
            .iter()
            .map(|end| (number(&end["epoch"]), number(&end["allocated_bytes"])))
            .collect();
        let exact: Vec<(u64, u64)> =
            truth.ends.iter().map(|end| (u64::from(end.epoch), end.counters.allocated_bytes)).collect();
        assert_eq!(ends, exact, "{} {}", made.name, truth.selection());
    }
    let failures = number(&asked.view("oom")["failed"]);
    let expected = if made.course == Course::OutOfMemory { u64::from(made.ranks) } else { 0 };
    assert_eq!(failures, expected, "{}", made.name);
}

/// Asserts that each failed request is shown with the levels that the device had at the time of the failure.
fn failures(asked: &JobAnswers<'_>, truths: &[Truth]) {
    for failure in rows(&asked.view("oom")["failures"]) {
        let rank = number(&failure["rank"]);
        let truth = truths.iter().find(|truth| u64::from(truth.rank) == rank && truth.device == 0).unwrap();
        let level = truth.at(time_ns(&failure["at"]));
        assert_eq!(number(&failure["allocated_bytes"]), level.allocated, "{} {failure}", asked.job);
        assert_eq!(number(&failure["reserved_bytes"]), level.reserved, "{} {failure}", asked.job);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_picture_of_thirty_made_jobs_says_what_the_stored_events_say() {
    let home = tempfile::tempdir().unwrap();
    let jobs: Vec<GeneratedJob> = (0..JOBS).map(GeneratedJob::of).chain([GeneratedJob::wide()]).collect();
    let (daemon, _port) = served(home.path(), &[]);
    for job in &jobs {
        let (job, url) = (job.clone(), daemon.url.clone());
        tokio::task::spawn_blocking(move || job.record(&url)).await.unwrap();
    }
    assert_eq!(daemon.terminate(), 0);
    let mut exact = Vec::new();
    for job in &jobs {
        exact.push(truths(home.path(), &job.name).await);
    }
    let (daemon, port) = served(home.path(), &[]);
    for (made, truths) in jobs.iter().zip(exact) {
        let asked = JobAnswers { port: &port, job: &made.name };
        assert_eq!(truths.len(), made.ranks as usize * usize::from(made.devices), "{made:?}");
        counts(&asked, &truths, made);
        failures(&asked, &truths);
        for truth in truths.iter().take(COMPARED) {
            course(&asked, truth);
            ledgers(&asked, truth);
            classes(&asked, truth);
            if !truth.ends.is_empty() {
                floors(&asked, truth);
                differences(&asked, truth);
            }
        }
    }
    assert_eq!(daemon.terminate(), 0);
}
