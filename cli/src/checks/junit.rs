//! JUnit XML: a test case for each condition.
//!
//! Guarantees: well-formed for any names; characters that XML 1.0 forbids become U+FFFD. The elements and attributes are
//! those that Jenkins, GitLab and GitHub's readers share.

use std::fmt::Write as _;

use memctl_answers::assert::{Checked, Outcome, Verdicts};

use super::Problem;

/// The document.
pub fn document(verdicts: &Verdicts, problems: &[Problem]) -> String {
    let count = |outcome| verdicts.conditions.iter().filter(|checked| checked.verdict == outcome).count();
    let (job, tests) = (escaped(&verdicts.job.id), verdicts.conditions.len());
    let (failures, errors) = (count(Outcome::DoesNotHold), count(Outcome::Inconclusive));
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    let _ = writeln!(
        out,
        "  <testsuite name=\"memctl: {job}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"0\" time=\"0\">"
    );
    for checked in &verdicts.conditions {
        let of_it: Vec<&Problem> = problems.iter().filter(|problem| problem.condition == checked.condition).collect();
        out.push_str(&case(checked, &of_it));
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

/// A test case. Its name is the same in every pipeline, although the job's name differs, so readers can follow it.
fn case(checked: &Checked, problems: &[&Problem]) -> String {
    let head = format!("    <testcase classname=\"memctl\" name=\"{}\" time=\"0\"", escaped(&checked.condition));
    let (element, kind) = match checked.verdict {
        Outcome::Holds => return format!("{head}/>\n"),
        Outcome::DoesNotHold => ("failure", "does not hold"),
        Outcome::Inconclusive => ("error", "inconclusive"),
    };
    let because = escaped(&checked.because);
    let lines: Vec<String> = problems.iter().map(|problem| escaped(&line(problem))).collect();
    format!(
        "{head}>\n      <{element} type=\"{kind}\" message=\"{because}\">{}</{element}>\n    </testcase>\n",
        lines.join("\n")
    )
}

/// `train.py:16: Live memory grows …`, as compilers write it.
fn line(problem: &Problem) -> String {
    match &problem.location {
        Some(at) => format!("{}:{}: {}", at.path, at.line, problem.message),
        None => problem.message.clone(),
    }
}

/// Text for an element or an attribute.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // In an attribute a reader turns a plain line break into a space.
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_forbids_is_replaced_and_what_it_reads_is_escaped() {
        assert_eq!(escaped("a<b> & \"c\"\n\u{7}\u{ffff}é"), "a&lt;b&gt; &amp; &quot;c&quot;&#10;\u{fffd}\u{fffd}é");
    }
}
