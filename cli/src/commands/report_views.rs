//! The requests for a report's views: the requests of the page for the rank of the verdict, the ranks in the findings,
//! the outliers, and the ranks with the fullest devices.
//!
//! Guarantees: the data behind the verdict comes first; a view that does not fit or has no response is reported as
//! missing. Computes nothing: the responses are those of `/api/v1`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use memctl_answers::dossier::{Dossier, drawn};
use memctl_answers::format::time;
use memctl_answers::report::{Rank, Report};
use memctl_proto::v1::page_client::PageClient;
use memctl_proto::v1::{self, PageQuestion};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::report_moments::{Compared, compared, row_of, since};
use crate::connect::{ANSWER_BYTES_MAX, Connection};
use crate::exit::{Failure, Outcome};
use crate::hosting::Asking;
use crate::page::html::Inlined;
use crate::render::text::plural;

/// Ranks whose curve and moments are in the file.
const RANKS_MOST: usize = 8;
/// Findings whose evidence is in the file, and findings that are kept if there are many.
const FINDINGS_MOST: usize = 20;
/// Numbers of rows that are tried if the rows of all ranks do not fit.
const FEWER: [usize; 4] = [1024, 256, 64, 8];
/// The divisor of the room for the rows of ranks.
const ROWS_PART: usize = 5;
/// Points of a curve, as in the page's request.
const POINTS: &str = "600";

struct Views<'c> {
    asking: PageClient<Asking>,
    connection: &'c Connection,
    selection: v1::Selection,
    inlined: Inlined,
}

/// Parameters of the views.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Bytes that the views may use.
    pub room: usize,
    /// The size that the job was recorded at.
    pub size: Option<u64>,
    /// Bytes that the process may reserve, for the forecast of other sizes.
    pub device_memory: Option<u64>,
    /// The current time.
    pub now: Timestamp,
}

/// Requests everything that the views show.
///
/// # Errors
/// The daemon does not respond, or is too old for this request.
pub async fn ask(
    connection: &Connection,
    selection: v1::Selection,
    dossier: &Dossier,
    Wanted { room, size, device_memory, now }: Wanted,
) -> Result<Inlined, Failure> {
    let report = &dossier.note.report;
    let asking = PageClient::new(connection.asking()).max_decoding_message_size(ANSWER_BYTES_MAX);
    let mut inlined = Inlined::new(room);
    (inlined.job, inlined.attempt) = (report.job.id.clone(), report.job.attempt);
    (inlined.size, inlined.device_memory) = (size, device_memory);
    inlined.written_at = time::rfc3339(u64::try_from(now.as_nanosecond()).unwrap_or(0));
    if selection.first_epoch.or(selection.last_epoch).is_some() {
        inlined.left_out.push("The views show all epochs, not only those that were asked for.".to_owned());
    }
    let mut views = Views { asking, connection, selection, inlined };
    let main = dossier.shown();
    views.rows("diagnose", report, room).await?;
    views.rows("query", report, room).await?;
    views.put("oom", &[]).await?;
    if report.ranks.len() > 1 {
        views.rows("heat", report, room).await?;
    }
    if let Some(main) = main {
        let row = report.ranks.iter().find(|row| row.rank == main.rank).unwrap_or(main);
        let both = compared(row, since(report));
        views.inlined.rank = Some(main.rank);
        (views.inlined.early, views.inlined.late) = (both.map(|(early, _)| early), both.map(|(_, late)| late));
        views.rank(report, row, true).await?;
        views.evidence(report).await?;
        let others: Vec<u32> = drawn(report, RANKS_MOST).into_iter().filter(|rank| *rank != main.rank).collect();
        for number in others {
            if let Some(row) = report.ranks.iter().find(|row| row.rank == number) {
                views.rank(report, row, false).await?;
            }
        }
        if report.ranks.len() > RANKS_MOST {
            let rest = plural((report.ranks.len() - RANKS_MOST) as u64, "other rank");
            views.inlined.left_out.push(format!("Courses and moments of {rest} are not in this file."));
        }
    }
    let Views { mut inlined, .. } = views;
    inlined.left_out.dedup();
    Ok(inlined)
}

impl Views<'_> {
    /// Requests everything that is shown of a rank: its curve, the peak and the change. For the most important rank it
    /// also requests the blocks.
    async fn rank(&mut self, report: &Report, row: &Rank, matters: bool) -> Result<(), Failure> {
        let rank = row.rank.to_string();
        self.put("timeline", &[("rank", &rank), ("points", POINTS), ("floor", "true")]).await?;
        if let Some(compared) = Compared::ends(compared(row, since(report))) {
            self.change(report, row, &compared).await?;
        }
        self.moment(report, row, "peak").await?;
        if matters {
            self.of("anatomy", report, row, &[]).await?;
            self.of("what-if", report, row, &[]).await?;
            self.sizes(report, row).await?;
            self.of("classes", report, row, &[]).await?;
            self.of("blocks", report, row, &[("at", "peak")]).await?;
            self.moment(report, row, "end").await?;
        }
        Ok(())
    }

    /// Requests the forecast for other sizes, if the recorded size was given.
    async fn sizes(&mut self, report: &Report, row: &Rank) -> Result<(), Failure> {
        let Some(size) = self.inlined.size.map(|size| size.to_string()) else { return Ok(()) };
        let memory = self.inlined.device_memory.map(|bytes| bytes.to_string());
        let asked = [Some(("size", size.as_str())), memory.as_deref().map(|bytes| ("limit", bytes))];
        self.of("fit", report, row, &asked.into_iter().flatten().collect::<Vec<_>>()).await
    }

    /// Requests the targets of the findings' links: see `words/evidence.ts` of the page.
    async fn evidence(&mut self, report: &Report) -> Result<(), Failure> {
        let failures = self.failures().await?;
        for finding in report.findings.iter().take(FINDINGS_MOST) {
            let Some(row) = row_of(finding, report) else { continue };
            let failed = failures.get(&(row.rank, row.process.clone(), row.device));
            if let ("oom" | "fragmentation", Some(at)) = (finding.kind.as_str(), failed) {
                for verb in ["flame", "sites", "ledger", "blocks"] {
                    self.of(verb, report, row, &[("at", at)]).await?;
                }
                continue;
            }
            match Compared::of(finding, row) {
                Some(compared) => self.change(report, row, &compared).await?,
                None => self.moment(report, row, "peak").await?,
            }
        }
        Ok(())
    }

    /// The time of the first failed request of each device.
    async fn failures(&mut self) -> Result<Failures, Failure> {
        let Ok(content) = self.answer("oom", &[]).await? else { return Ok(BTreeMap::new()) };
        let answer: Value = serde_json::from_slice(&content).unwrap_or_default();
        let mut failures = BTreeMap::new();
        for failure in answer["failures"].as_array().into_iter().flatten() {
            let number = |name: &str| failure[name].as_u64().and_then(|number| u32::try_from(number).ok());
            let (process, at) = (failure["process"].as_str(), failure["at"].as_str());
            if let (Some(rank), Some(process), Some(device), Some(at)) = (number("rank"), process, number("device"), at)
            {
                failures.entry((rank, process.to_owned(), device)).or_insert_with(|| at.to_owned());
            }
        }
        Ok(failures)
    }

    async fn change(&mut self, report: &Report, row: &Rank, Compared { from, at }: &Compared) -> Result<(), Failure> {
        self.of("flame", report, row, &[("from", from), ("at", at)]).await?;
        self.of("sites", report, row, &[("at", from)]).await?;
        self.of("sites", report, row, &[("at", at)]).await?;
        self.of("ledger", report, row, &[("at", at)]).await
    }

    async fn moment(&mut self, report: &Report, row: &Rank, at: &str) -> Result<(), Failure> {
        for verb in ["flame", "sites", "ledger"] {
            self.of(verb, report, row, &[("at", at)]).await?;
        }
        Ok(())
    }

    /// A request about one device. It names the process if the rank has several, and the device's index if the process
    /// has several.
    async fn of(&mut self, verb: &str, report: &Report, row: &Rank, more: &[(&str, &str)]) -> Result<(), Failure> {
        let (rank, device) = (row.rank.to_string(), row.device.to_string());
        let own = || report.ranks.iter().filter(|known| known.rank == row.rank);
        let mut asked = vec![("rank", rank.as_str())];
        if own().any(|known| known.process != row.process) {
            asked.push(("process", row.process.as_str()));
        }
        if own().any(|known| known.process == row.process && known.device != row.device) {
            asked.push(("device", device.as_str()));
        }
        self.put(verb, &[&asked[..], more].concat()).await
    }

    async fn put(&mut self, verb: &str, asked: &[(&str, &str)]) -> Result<(), Failure> {
        let key = key(verb, asked);
        if self.inlined.knows(&key) {
            return Ok(());
        }
        match self.answer(verb, asked).await? {
            Ok(content) if !self.inlined.take(&key, &content) => {
                self.inlined.left_out.push("More ranks and moments would have made this file larger than 3 MB.".into());
            }
            Ok(_) => {}
            Err(reason) => self.inlined.refuse(&key, &reason),
        }
        Ok(())
    }

    /// Requests a response with a row for each rank: of all ranks if they fit, else of the outliers and the fullest.
    async fn rows(&mut self, verb: &str, report: &Report, room: usize) -> Result<(), Failure> {
        let content = match self.answer(verb, &[]).await? {
            Ok(content) => content,
            Err(reason) => {
                self.inlined.refuse(verb, &reason);
                return Ok(());
            }
        };
        let mut part = Inlined::new(room / ROWS_PART);
        if part.take(verb, &content) && self.inlined.take(verb, &content) {
            return Ok(());
        }
        let order = by_interest(report);
        for most in FEWER {
            let kept = fewer(&content, &order[..most.min(order.len())]);
            let mut part = Inlined::new(room / ROWS_PART);
            if part.take(verb, &kept) && self.inlined.take(verb, &kept) {
                let of = report.ranks.len();
                self.inlined.left_out.push(format!(
                    "This file lists {} of {}: those that stand out and those with the highest peaks.",
                    most.min(order.len()),
                    plural(of as u64, "rank")
                ));
                return Ok(());
            }
        }
        self.inlined.refuse(verb, "it has no room in a file of 3 MB");
        Ok(())
    }

    /// A response, or the reason why there is none.
    async fn answer(&mut self, verb: &str, asked: &[(&str, &str)]) -> Result<Result<Vec<u8>, String>, Failure> {
        let narrowed = narrowed(&self.selection);
        let common = narrowed.iter().filter(|(name, _)| !asked.iter().any(|(known, _)| known == name));
        let pairs = asked.iter().map(|(name, value)| (*name, *value));
        let pairs = pairs.chain(common.map(|(name, value)| (*name, value.as_str())));
        let encoded: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let question = format!("{verb}?{}", encoded.join("&"));
        let asked = PageQuestion { job: self.selection.job.clone(), question };
        match self.asking.ask(asked).await {
            Ok(answer) => Ok(Ok(answer.into_inner().content)),
            Err(status) => {
                let said = status.message().to_owned();
                match self.connection.failure(&status) {
                    failure if matches!(failure.outcome, Outcome::Unreachable | Outcome::NotAllowed) => Err(failure),
                    _ => Ok(Err(said)),
                }
            }
        }
    }
}

/// The time of the first failed request, by rank, process and device.
type Failures = BTreeMap<(u32, String, u32), String>;

/// A request's key in the file, in the form that the page uses.
fn key(verb: &str, asked: &[(&str, &str)]) -> String {
    let pairs: BTreeMap<&str, &str> = asked.iter().copied().collect();
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { verb.to_owned() } else { format!("{verb}?{}", pairs.join("&")) }
}

/// The parameters with which every request is narrowed.
fn narrowed(of: &v1::Selection) -> Vec<(&'static str, String)> {
    let numbers = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let all = [
        ("attempt", of.attempt.map(|attempt| attempt.to_string())),
        ("rank", Some(numbers(&of.ranks))),
        ("process", Some(of.processes.join(","))),
        ("device", Some(numbers(&of.devices))),
        ("since", of.since_ns.map(time::rfc3339)),
        ("until", of.until_ns.map(time::rfc3339)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?))).collect()
}

/// Text encoded for an address.
fn encoded(text: &str) -> String {
    const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':').remove(b',');
    utf8_percent_encode(text, &PLAIN).to_string()
}

/// Ranks in the order of interest: outliers first, then the fullest.
fn by_interest(report: &Report) -> Vec<u32> {
    let mut rows: Vec<&Rank> = report.ranks.iter().collect();
    let is_odd =
        |row: &Rank| !row.stands_out.is_empty() || !row.findings.is_empty() || row.failure.is_some() || row.ooms > 0;
    rows.sort_by_key(|row| (!is_odd(row), Reverse(row.peak_allocated_bytes), row.rank));
    let main = memctl_answers::diagnose::rank_of(report).map(|rank| rank.rank);
    let mut order: Vec<u32> = main.into_iter().collect();
    rows.iter().filter(|row| Some(row.rank) != main).for_each(|row| order.push(row.rank));
    order
}

/// The response with only the rows of these ranks and the first findings.
fn fewer(content: &[u8], ranks: &[u32]) -> Vec<u8> {
    let Ok(mut answer) = serde_json::from_slice::<Value>(content) else { return content.to_vec() };
    if let Some(Value::Array(rows)) = answer.get_mut("ranks") {
        let is_kept = |row: &Value| ranks.iter().any(|rank| row["rank"].as_u64() == Some(u64::from(*rank)));
        rows.retain(is_kept);
    }
    if let Some(Value::Array(findings)) = answer.get_mut("findings") {
        findings.truncate(FINDINGS_MOST);
    }
    serde_json::to_vec(&answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_named_as_the_page_names_it() {
        assert_eq!(key("query", &[]), "query");
        assert_eq!(
            key("flame", &[("rank", "0"), ("from", "epoch:0"), ("at", "epoch:3")]),
            "flame?at=epoch:3&from=epoch:0&rank=0"
        );
        assert_eq!(encoded("a b&c=ü"), "a%20b%26c%3D%C3%BC");
    }

    #[test]
    fn rows_of_other_ranks_go() {
        let answer = br#"{"ranks":[{"rank":0},{"rank":7,"address":18446744073709551615}],"findings":[]}"#;
        assert_eq!(
            String::from_utf8(fewer(answer, &[7])).unwrap(),
            r#"{"findings":[],"ranks":[{"address":18446744073709551615,"rank":7}]}"#
        );
    }
}
