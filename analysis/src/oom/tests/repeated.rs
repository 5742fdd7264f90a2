//! Requests that fail again and again.

use super::*;

#[test]
fn failures_that_repeat_are_counted_from_the_first_on() {
    let begun = Some(memctl_model::Moment { epoch: Some(0), ..memctl_model::Moment::default() });
    let caught = Facts { went_on: true, failures: 10, first_failure: begun, ..facts(picture(0, 70), 4 * GIB, GIB) };
    let found = findings(&[explain(caught.clone())], 1).remove(0);
    assert!(
        found.title.starts_with(
            "Out of memory on rank 0 in epoch 2, step 117, which was caught (10 failed requests since epoch 0): "
        ),
        "{}",
        found.title
    );
    assert_eq!(found.first_seen.epoch, Some(0));
    let ended = findings(&[explain(Facts { went_on: false, ..caught.clone() })], 1).remove(0);
    assert_eq!(ended.first_seen.epoch, Some(2), "the one that ended the process");
    let once = |rank| explain(Facts { rank, failures: 1, first_failure: None, ..caught.clone() });
    let each = findings(&[once(0), once(1)], 2).remove(0);
    assert!(!each.title.contains("failed requests"), "{}", each.title);
}
