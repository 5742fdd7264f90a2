//! The resources: documents that are part of the program, and each job's report as a page.
//!
//! Guarantees: a report is the file that `memctl report` writes. It loads nothing from any server.

use jiff::Timestamp;
use memctl_proto::v1;
use percent_encoding::percent_decode_str;
use rmcp::model::{ReadResourceResult, Resource as Listed, ResourceContents, ResourceTemplate};

use crate::args::Global;
use crate::args::values::known_job;
use crate::commands::report::html;
use crate::connect::Connection;
use crate::exit::Failure;

/// The address of the list of documents.
pub const LLMS_URI: &str = "memctl://docs/llms.txt";
/// The address of a report, before the job.
const REPORTS: &str = "ui://memctl/report/";
/// The kind of a page that a host shows in a frame of its own.
const PAGE_KIND: &str = "text/html;profile=mcp-app";

/// Documents: address, name, description, text.
const DOCUMENTS: [(&str, &str, &str, &str); 3] = [
    (LLMS_URI, "llms.txt", "A short list of memctl's documents.", include_str!("../../../../docs/llms.txt")),
    (
        "memctl://docs/glossary.md",
        "glossary.md",
        "The definitions of all terms.",
        include_str!("../../../../docs/glossary.md"),
    ),
    ("memctl://docs/json.md", "json.md", "Every field of every answer.", include_str!("../../../../docs/json.md")),
];

/// A resource that an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A document.
    Document(&'static str),
    /// The report of this job.
    Report(String),
}

/// The resource at an address.
#[must_use]
pub fn named(uri: &str) -> Option<Resource> {
    if let Some((.., text)) = DOCUMENTS.iter().find(|(known, ..)| *known == uri) {
        return Some(Resource::Document(text));
    }
    let job = percent_decode_str(uri.strip_prefix(REPORTS)?).decode_utf8().ok()?;
    (!job.is_empty()).then(|| Resource::Report(job.into_owned()))
}

/// The documents.
#[must_use]
pub fn listed() -> Vec<Listed> {
    let of = |(uri, name, says, text): (&str, &str, &str, &str)| {
        Listed::new(uri, name).with_description(says).with_mime_type(kind(uri)).with_size(text.len() as u64)
    };
    let newest = Listed::new(format!("{REPORTS}latest"), "report")
        .with_description("The report of the newest job as a page that works offline.")
        .with_mime_type(PAGE_KIND);
    DOCUMENTS.into_iter().map(of).chain([newest]).collect()
}

/// The reports.
#[must_use]
pub fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new(format!("{REPORTS}{{job}}"), "report")
        .with_description("The report of a job as a page that works offline: verdict, timelines, flame graphs, blocks.")
        .with_mime_type(PAGE_KIND);
    vec![template]
}

fn kind(uri: &str) -> &'static str {
    if uri.ends_with(".md") { "text/markdown" } else { "text/plain" }
}

/// A document as contents.
#[must_use]
pub fn document(uri: &str, text: &str) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(kind(uri))
}

/// A page as contents.
#[must_use]
pub fn page(uri: &str, text: String) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(PAGE_KIND)
}

/// One resource's contents as a result.
#[must_use]
pub fn read(contents: ResourceContents) -> ReadResourceResult {
    ReadResourceResult::new(vec![contents])
}

/// The report of a job.
///
/// # Errors
/// See [`Failure`].
pub async fn report(job: &str, connection: &mut Connection, global: &Global) -> Result<String, Failure> {
    let job = known_job(job).map_err(Failure::usage)?;
    html(connection, v1::Selection { job, ..v1::Selection::default() }, global, Timestamp::now()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_documents_and_jobs() {
        assert!(matches!(named(LLMS_URI), Some(Resource::Document(text)) if text.contains("glossary")));
        assert_eq!(named("ui://memctl/report/a%233"), Some(Resource::Report("a#3".to_owned())));
        assert_eq!(named("ui://memctl/report/team/a"), Some(Resource::Report("team/a".to_owned())));
        for none in
            ["ui://memctl/report/", "ui://memctl/report/%ff", "memctl://docs/../Cargo.toml", "file:///etc/passwd"]
        {
            assert_eq!(named(none), None, "{none}");
        }
    }
}
