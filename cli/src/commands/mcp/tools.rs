//! The tools: each sends one command's request, and returns that command's answer with its page.
//!
//! Guarantees: answers are the types that the commands print. Nothing is computed here.

use memctl_analysis::display_threshold::CHANGE_BYTES;
use memctl_answers::diff::Diff;
use memctl_answers::fit::Fit;
use memctl_answers::holders::Holders;
use memctl_answers::leaks::Leaks;
use memctl_answers::ranks::Ranks;
use memctl_answers::report::Report;
use memctl_answers::sites;
use memctl_answers::what_if::WhatIf;
use memctl_model::limits::JOBS_LISTED;
use memctl_proto::v1;
use serde_json::{Value, json};

use super::asked::{ToolCall, size};
use super::caller::Transport;
use super::catalogue::Tool;
use super::explain;
use super::next;
use super::said::ToolAnswer;
use crate::args::Global;
use crate::args::values::SizedJob;
use crate::client::{self, answered, course, diagnosis, live, report, streamed};
use crate::commands::diff::compared;
use crate::connect::Connection;
use crate::exit::Failure;
use crate::render::text::safe;

/// Points of a curve, if the call names no number.
const POINTS: u32 = 16;

/// Answers a call.
///
/// # Errors
/// See [`Failure`].
pub async fn answer(
    tool: Tool,
    asked: &ToolCall,
    connection: &mut Connection,
    global: &Global,
    transport: Transport,
) -> Result<ToolAnswer, Failure> {
    match tool {
        Tool::Jobs => jobs(asked, connection).await,
        Tool::Verdict => {
            let report = report(connection, asked.selection()?, global).await?;
            ToolAnswer::new(&report, next::after_report(&report))
        }
        Tool::Leaks => {
            let leaks = Leaks::new(report(connection, asked.selection()?, global).await?, asked.flag("all"));
            ToolAnswer::new(&leaks, next::after_leaks(&leaks.job, &leaks.findings))
        }
        Tool::Diagnose => {
            let note = diagnosis(connection, asked.selection()?).await?;
            ToolAnswer::new(&note, next::after_diagnosis(&note))
        }
        Tool::Ranks => {
            let ranks = Ranks::new(report(connection, asked.selection()?, global).await?);
            ToolAnswer::new(&ranks, next::after_ranks(&ranks))
        }
        Tool::Sites => sites(asked, connection).await,
        Tool::Timeline => {
            let points = asked.small("points").unwrap_or(POINTS);
            let timeline = course(connection, asked.selection()?, points, global).await?;
            let next = next::other_views(&timeline.job, Tool::Timeline);
            ToolAnswer::new(&timeline, next)
        }
        Tool::Ledger => ledger(asked, connection).await,
        Tool::Frag => {
            let frag = client::fragmentation(connection, asked.selection()?).await?;
            ToolAnswer::new(&frag, next::after_settings(&frag.job, Tool::Frag))
        }
        Tool::Oom => {
            let oom = client::oom(connection, asked.selection()?, true).await?;
            ToolAnswer::new(&oom, next::after_settings(&oom.job, Tool::Oom))
        }
        Tool::WhatIf => what_if(asked, connection).await,
        Tool::Fit => fit(asked, connection).await,
        Tool::Diff => diff(asked, connection, transport).await,
        Tool::Holders => {
            let report = report(connection, asked.selection()?, global).await?;
            Ok(stored_holders(&report))
        }
        Tool::SearchHolders => search_holders(asked, connection).await,
        Tool::Explain => explain::answer(asked, connection, global).await,
    }
}

async fn jobs(asked: &ToolCall, connection: &mut Connection) -> Result<ToolAnswer, Failure> {
    let limit = asked.small("limit").unwrap_or(JOBS_LISTED);
    let request = v1::ListJobsRequest { limit, judge: true, ..Default::default() };
    let jobs = client::jobs(connection, request).await?;
    let jobs = memctl_answers::jobs::Jobs { now_ns: crate::hosting::now_ns(), ..jobs };
    ToolAnswer::new(&jobs, next::after_jobs(&jobs))
}

async fn sites(asked: &ToolCall, connection: &mut Connection) -> Result<ToolAnswer, Failure> {
    use v1::sites_request::Moment;
    let selection = asked.selection()?;
    let (moment, words) = match (asked.text("at"), asked.small("epoch_end")) {
        (Some("peak"), _) => (Some(Moment::Peak(true)), "when most was allocated, on each rank".to_owned()),
        (Some("end"), _) => (Some(Moment::End(true)), "at the end of the recording".to_owned()),
        (_, Some(epoch)) => (Some(Moment::EpochEnd(epoch)), format!("at the end of epoch {epoch}")),
        _ => (None, "at the end of the last epoch".to_owned()),
    };
    let chosen = !selection.ranks.is_empty();
    let request = v1::SitesRequest { selection: Some(selection), moment };
    let view = sites::View { min_share: 0.01, chosen, moment: words, ..sites::View::default() };
    let sites = live(connection, request, view).await?;
    let next = next::other_views(&sites.job, Tool::Sites);
    ToolAnswer::new(&sites, next)
}

async fn ledger(asked: &ToolCall, connection: &mut Connection) -> Result<ToolAnswer, Failure> {
    use v1::ledger_request::Moment;
    let (moment, words) = match (asked.text("at"), asked.small("epoch_end")) {
        (Some("end"), _) => (Moment::End(true), "At the end of the recording".to_owned()),
        (Some("epoch_end") | None, Some(epoch)) => (Moment::EpochEnd(epoch), format!("At the end of epoch {epoch}")),
        _ => (Moment::Peak(true), "Each rank when most was allocated".to_owned()),
    };
    let request = v1::LedgerRequest { selection: Some(asked.selection()?), moment: Some(moment), blocks: false };
    let view = memctl_answers::ledger::View { moment: words, blocks: false, hint: None };
    let ledger = memctl_answers::ledger::Ledger { view, ..client::ledger(connection, request).await? };
    let next = next::other_views(&ledger.job, Tool::Ledger);
    ToolAnswer::new(&ledger, next)
}

async fn what_if(asked: &ToolCall, connection: &mut Connection) -> Result<ToolAnswer, Failure> {
    let limits = asked.texts("limits");
    let request = v1::WhatIfRequest {
        selection: Some(asked.selection()?),
        settings: asked.texts("settings"),
        limits: limits.iter().map(|text| size("limits", text)).collect::<Result<_, _>>()?,
        from: asked.number("from"),
        until: asked.number("until"),
    };
    let response = connection.query.get_what_if(request).await;
    let what_if: WhatIf = streamed(response, connection).await?;
    ToolAnswer::new(&what_if, next::after_settings(&what_if.job, Tool::WhatIf))
}

async fn fit(asked: &ToolCall, connection: &mut Connection) -> Result<ToolAnswer, Failure> {
    use v1::fit_request::Change;
    let recordings = asked.texts("recordings");
    let sized = recordings.iter().map(|text| text.parse());
    let jobs = sized.collect::<Result<Vec<SizedJob>, String>>();
    let jobs = jobs.map_err(|why| Failure::usage(format!("recordings: {why}")))?;
    let text = |name: &str| asked.text(name).map(str::to_owned);
    let under = asked.bytes("under")?.map(Change::Under);
    let change = text("without").map(Change::Without).or(text("checkpoint").map(Change::Checkpoint)).or(under);
    if asked.numbers("at").is_empty() && change.is_none() {
        return Err(Failure::usage("no forecast was requested; give `at`, `under`, `without` or `checkpoint`"));
    }
    let of = |SizedJob(job, size): &SizedJob| v1::SizedRecording {
        selection: Some(v1::Selection { job: job.clone(), ..v1::Selection::default() }),
        size: *size,
    };
    let request = v1::FitRequest {
        recordings: jobs.iter().map(of).collect(),
        rank: asked.small("rank"),
        at: asked.numbers("at"),
        device_memory: asked.bytes("device_memory")?,
        change,
    };
    let response = connection.query.get_fit(request).await;
    let fit: Fit = streamed(response, connection).await?;
    ToolAnswer::new(&fit, next::after_fit(&jobs, &recordings))
}

async fn diff(asked: &ToolCall, connection: &mut Connection, transport: Transport) -> Result<ToolAnswer, Failure> {
    let may_read = transport == Transport::Stdio;
    let ignored = asked.bytes("ignore")?.unwrap_or(CHANGE_BYTES);
    let runs = asked.texts("runs");
    if let [_, _, _, ..] = runs.as_slice() {
        return Err(Failure::usage("runs takes two runs at most"));
    }
    let (before, after) = compared(connection, &runs, may_read).await?;
    let diff = Diff::new((&before.0, &before.1), (&after.0, &after.1), ignored);
    // The run of a file may not be in the store.
    let is_stored = after.0 == after.1.job;
    ToolAnswer::new(&diff, next::after_diff(is_stored.then_some(&*after.0)))
}

/// The holders of each finding, as stored.
fn stored_holders(report: &Report) -> ToolAnswer {
    let searched = report.findings.iter().filter_map(|finding| Some((finding, finding.holders.as_ref()?)));
    let rows: Vec<Value> = searched
        .clone()
        .map(|(finding, holders)| json!({"id": finding.id, "title": finding.title, "holders": holders}))
        .collect();
    let sentences: Vec<&str> = searched.map(|(_, holders)| holders.sentence.as_str()).collect();
    let page = match sentences.is_empty() {
        true => "No result of a search for holders is stored with this job.".to_owned(),
        false => sentences.iter().map(|sentence| safe(sentence)).collect::<Vec<_>>().join("\n"),
    };
    let next = next::after_holders(&report.job, !rows.is_empty());
    ToolAnswer { page, data: json!({"job": report.job, "verdict": report.verdict, "findings": rows}), next }
}

async fn search_holders(asked: &ToolCall, connection: &mut Connection) -> Result<ToolAnswer, Failure> {
    let request = v1::HoldersRequest {
        selection: Some(v1::Selection {
            job: asked.job()?,
            attempt: asked.small("attempt"),
            ranks: asked.small("rank").into_iter().collect(),
            ..v1::Selection::default()
        }),
        site: asked.text("site").unwrap_or_default().to_owned(),
        budget_ms: asked.small("budget_ms").unwrap_or(1),
    };
    let response = connection.query.find_holders(request).await;
    let holders: Holders = answered(response, connection)?;
    ToolAnswer::new(&holders, next::after_holders(&holders.job, true))
}
