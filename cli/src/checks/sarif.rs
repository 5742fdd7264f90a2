//! SARIF 2.1.0, the format of static analysis results (an OASIS standard).
//!
//! Guarantees: every result has a location, because code hosts refuse a file with a result that has none. A problem
//! without a location is a notification of the run. What is inconclusive has the level `warning`. Nothing depends on the
//! job's name, which differs between pipelines: the code host names the series of results.

use memctl_answers::assert::{Outcome, Verdicts};
use serde_json::{Value, json};

use super::Problem;

/// The standard's schema.
const SCHEMA: &str = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";
/// The base of relative paths: the root of the checkout. Readers know this name.
const ROOT: &str = "%SRCROOT%";

/// The document.
pub fn document(verdicts: &Verdicts, problems: &[Problem]) -> String {
    let conditions: Vec<&str> = verdicts.conditions.iter().map(|checked| checked.condition.as_str()).collect();
    let rules: Vec<Value> = conditions
        .iter()
        .map(|condition| {
            json!({
                "id": condition,
                "shortDescription": { "text": format!("memctl assert {condition}") },
                "defaultConfiguration": { "level": "error" },
            })
        })
        .collect();
    let results: Vec<Value> = problems.iter().filter_map(|problem| result(problem, &conditions)).collect();
    let notes: Vec<Value> = problems.iter().filter_map(notification).collect();
    let document = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "memctl", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "results": results,
            "invocations": [{ "executionSuccessful": true, "toolExecutionNotifications": notes }],
        }],
    });
    format!("{document:#}\n")
}

/// What does not hold is an error, what is inconclusive a warning.
fn level(outcome: Outcome) -> &'static str {
    if outcome == Outcome::DoesNotHold { "error" } else { "warning" }
}

/// A problem with a location.
fn result(problem: &Problem, conditions: &[&str]) -> Option<Value> {
    let at = problem.location.as_ref()?;
    let index = conditions.iter().position(|condition| *condition == problem.condition)?;
    let mut result = json!({
        "ruleId": problem.condition,
        "ruleIndex": index,
        "level": level(problem.outcome),
        "message": { "text": problem.message },
        "locations": [{
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&at.path), "uriBaseId": ROOT },
                "region": { "startLine": at.line.max(1) },
            },
        }],
    });
    if let (Some(finding), Some(fields)) = (&problem.finding, result.as_object_mut()) {
        fields.insert("partialFingerprints".into(), json!({ "memctlFinding/v2": finding.to_string() }));
    }
    Some(result)
}

fn notification(problem: &Problem) -> Option<Value> {
    let text = format!("{} {}: {}", problem.condition, problem.outcome.words(), problem.message);
    problem.location.is_none().then(|| json!({ "level": level(problem.outcome), "message": { "text": text } }))
}

/// A relative path as a URI reference.
fn uri(path: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'_').remove(b'-').remove(b'~');
    utf8_percent_encode(path, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_is_a_warning_if_the_condition_is_inconclusive() {
        for (outcome, wanted) in [(Outcome::DoesNotHold, "error"), (Outcome::Inconclusive, "warning")] {
            let message = "no epoch has ended".to_owned();
            let problem = Problem { condition: "stable".into(), outcome, message, location: None, finding: None };
            let note = notification(&problem).unwrap();
            assert_eq!(note["level"], wanted);
            assert_eq!(note["message"]["text"], format!("stable {}: no epoch has ended", outcome.words()));
        }
    }
}
