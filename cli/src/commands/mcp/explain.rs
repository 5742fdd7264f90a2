//! `explain`: the meaning of a term, of a field or of a kind of finding, and a finding of a job in full.
//!
//! Guarantees: meanings are those of docs/glossary.md and docs/json.md, which are part of the program.

use memctl_answers::finding::Finding;
use memctl_model::FindingKind;
use serde_json::{Value, json};

use super::asked::ToolCall;
use super::catalogue::Tool;
use super::next::{self, Next};
use super::said::ToolAnswer;
use crate::args::Global;
use crate::client::report;
use crate::connect::Connection;
use crate::exit::Failure;
use crate::render::text::safe;

/// The definitions of terms.
const GLOSSARY: &str = include_str!("../../../../docs/glossary.md");
/// The fields of answers.
const FIELDS: &str = include_str!("../../../../docs/json.md");
/// The most meanings of one term.
const MEANINGS_MAX: usize = 12;

/// A row of a table of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meaning {
    /// The word of the first column.
    term: &'static str,
    /// The object that has this field; `None` for a term of the glossary.
    object: Option<&'static str>,
    /// The last column.
    meaning: &'static str,
}

impl Meaning {
    fn shown(&self) -> Value {
        json!({"term": self.term, "field_of": self.object, "meaning": self.meaning})
    }

    fn line(&self) -> String {
        let object = self.object.map_or_else(String::new, |object| format!(" (field of {object})"));
        format!("{}{object}: {}", self.term, self.meaning)
    }
}

/// The answer to a call that needs no job: the meaning of a term. `None` for every other call.
///
/// # Errors
/// The term is unknown, or neither a term nor a finding is given.
pub fn without_a_job(tool: Tool, asked: &ToolCall) -> Result<Option<ToolAnswer>, Failure> {
    match (tool, asked.text("finding"), asked.text("term")) {
        (Tool::Explain, None, Some(term)) => term_of(term).map(Some),
        (Tool::Explain, None, None) => Err(Failure::usage("give a term, or a finding of a job: its id or its kind")),
        _ => Ok(None),
    }
}

/// A finding of a job.
///
/// # Errors
/// The job has no such finding.
pub async fn answer(asked: &ToolCall, connection: &mut Connection, global: &Global) -> Result<ToolAnswer, Failure> {
    let wanted = asked.text("finding").unwrap_or_default();
    let report = report(connection, asked.selection()?, global).await?;
    let Some(found) = report.findings.iter().find(|finding| finding.id == wanted || finding.kind == wanted) else {
        let known: Vec<String> =
            report.findings.iter().map(|finding| format!("{} ({})", finding.id, finding.kind)).collect();
        let known = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
        return Err(Failure::usage(format!("job {} has no finding `{wanted}`: {known}", report.job.id)));
    };
    let Finding { title, explanation, advice, .. } = found;
    let page = [title, explanation, advice].map(|text| safe(text).into_owned()).join("\n");
    let rows: Vec<Value> = [Some(&found.kind), found.pattern.as_ref()]
        .into_iter()
        .flatten()
        .flat_map(|name| meanings(name))
        .map(|meaning| meaning.shown())
        .collect();
    let job = &report.job;
    let next = vec![
        Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"),
        Next::of(Tool::Holders, job, "which Python objects hold the growing memory"),
    ];
    let area = found.known_kind().map(FindingKind::subject);
    let data = json!({"job": job, "finding": found, "about": area, "meanings": rows});
    Ok(ToolAnswer { page, data, next })
}

fn term_of(term: &str) -> Result<ToolAnswer, Failure> {
    let found = meanings(term);
    if found.is_empty() {
        return Err(Failure::usage(format!(
            "`{term}` is not a term of memctl; the resource {} lists the documents",
            super::resources::LLMS_URI
        )));
    }
    let page = found.iter().map(Meaning::line).collect::<Vec<_>>().join("\n");
    let rows: Vec<Value> = found.iter().map(Meaning::shown).collect();
    Ok(ToolAnswer { page, data: json!({"term": term, "meanings": rows}), next: next::from_the_list() })
}

/// The meanings of a term: those of the glossary first.
fn meanings(term: &str) -> Vec<Meaning> {
    let term = term.trim().trim_matches('`');
    let is_meant = |row: &Meaning| row.term.eq_ignore_ascii_case(term);
    let exact = rows(GLOSSARY).chain(rows(FIELDS)).filter(is_meant);
    // A value such as a kind of finding is named within the meaning of its field.
    let quoted = format!("`{term}`");
    let named = rows(FIELDS).filter(|row| row.meaning.contains(&quoted));
    let mut found: Vec<Meaning> = Vec::new();
    for row in exact.chain(named) {
        if found.len() < MEANINGS_MAX && !found.iter().any(|known| known.meaning == row.meaning) {
            found.push(row);
        }
    }
    found
}

/// The rows of all tables of a document with a column for the term, and the meaning in the last column.
fn rows(text: &'static str) -> impl Iterator<Item = Meaning> {
    let mut object = None;
    text.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix("**").and_then(|rest| rest.strip_suffix("**")) {
            object = Some(name);
        }
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let (term, meaning) = (cells.first()?.trim_matches('`'), *cells.last()?);
        let is_heading = matches!(term, "term" | "field" | "word");
        (!is_heading && cells.len() > 1).then_some(Meaning { term, object, meaning })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_fields_and_kinds_have_meanings() {
        let first = |term: &str| meanings(term).first().copied();
        let reserved = first("Reserved").unwrap();
        assert_eq!(reserved.object, None);
        assert!(reserved.meaning.contains("memory_reserved"));
        assert_eq!(first("bound_bytes").unwrap().object, Some("JobVerdict"));
        for kind in FindingKind::ALL {
            assert!(first(kind.name()).is_some(), "{}", kind.name());
        }
        assert_eq!(first("no such thing"), None);
    }
}
