//! Finds the Python object that holds the tensors of a site, by querying the running process over its own stream.
//!
//! Guarantees: one process is queried, and only a running one. If the request names no site, the site of the worst
//! growth is used. Every obstacle is reported with its remedy. The answer is stored with the job.
//! Refuses: a process that has ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use memctl_answers::SCHEMA;
use memctl_answers::holders::Holders;
use memctl_answers::naming::{is_named, shell_word};
use memctl_model::{Finding, Frame, MemoryKind, StackId, VerdictKind};
use memctl_proto::convert::holders::{BUDGET_MS, BUDGET_MS_MAX, STACKS_MAX, from_wire};
use memctl_proto::{StackDictionary, v1};

use super::answer;
use crate::job_data::error::ReadError;
use crate::job_data::job::{FoundJob, find, with_all_processes};
use crate::job_data::stacks::dictionary;
use crate::judge::holders::{concerns, keep, stacks_of};
use crate::judge::{Judge, Range};
use crate::server_requests::{AskError, Line};
use crate::store::{SessionRow, Store};
use crate::streams::Streams;

/// How long to wait for the last slice of a search, in addition to the slices themselves. Between slices the program
/// runs for several times as long, and a busy machine takes longer.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How long to wait for another query to the process, and how often to check.
const BUSY_MAX: Duration = Duration::from_secs(10);
const BUSY_LOOK: Duration = Duration::from_millis(50);
/// A search takes this many times as long as its slices.
const RESTS: u32 = 8;
/// The most processes whose stacks are searched for a site.
const PROCESSES_MAX: usize = 16;

/// The subject of the request.
enum Wanted {
    /// The text that the user gave.
    Named(String),
    /// A finding of growth with a site.
    Grown(Box<Finding>),
}

/// The process to query, and its stacks of the site.
struct Chosen<'a> {
    session: &'a SessionRow,
    line: Line,
    site: Frame,
    /// The lines of the site's function that the stacks are of, ascending.
    lines: Vec<u32>,
    stacks: Vec<u32>,
}

/// Answers a request about holders.
pub(super) async fn holders(
    store: &Arc<dyn Store>,
    streams: &Streams,
    judge: &Judge,
    request: v1::HoldersRequest,
) -> Result<Holders, ReadError> {
    let v1::HoldersRequest { selection, site, budget_ms } = request;
    let selection = selection.unwrap_or_default();
    let budget_ms = match budget_ms {
        0 => BUDGET_MS,
        given if given <= BUDGET_MS_MAX => given,
        _ => return Err(ReadError::Invalid(format!("a budget is at most {} s", BUDGET_MS_MAX / 1_000))),
    };
    if selection.ranks.len() > 1 {
        return Err(ReadError::Invalid("name one rank: each rank that is asked pauses for the search".to_owned()));
    }
    let found = Arc::new(find(&**store, &selection).await?);
    if !found.goes_on(streams) {
        return Err(ReadError::NotNow(format!(
            "job {} does not run any more, and only a running process can be asked; `memctl leaks --job {}` shows what was found while it ran",
            found.job.name,
            shell_word(&found.job.address().to_string())
        )));
    }
    let wanted = match site.as_str() {
        "" => worst(store, judge, &found, &selection).await?,
        words => Wanted::Named(words.to_owned()),
    };
    let Chosen { session, line, site, lines, stacks } = choose(&**store, streams, &found, &wanted).await?;
    let wait = WAIT_MAX + Duration::from_millis(budget_ms.into()) * RESTS;
    let process = found.process_name(session);
    let reported = asked(&line, &stacks, budget_ms, wait).await;
    let reported =
        reported.map_err(|error| ReadError::NotNow(format!("{process} of job {}: {error}", found.job.name)))?;
    let finding = match &wanted {
        Wanted::Grown(finding) => Some(finding.fingerprint(&found.job.name).to_string()),
        Wanted::Named(_) => None,
    };
    let asked = v1::HoldersAsked {
        function: site.function.to_string(),
        file: site.file.to_string(),
        line: site.line,
        lines,
        finding: finding.clone().unwrap_or_default(),
        unasked: false,
        budget_ms,
        outcome: Some(v1::holders_asked::Outcome::Found(reported.clone())),
    };
    if let Err(error) = keep(&**store, session.key, &asked).await {
        tracing::warn!(job = found.job.name, %error, "an answer about holders could not be stored");
    }
    let reported = from_wire(reported);
    Ok(Holders {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        rank: session.info.rank,
        process,
        site: (&site).into(),
        finding,
        live_blocks: reported.live_blocks,
        live_bytes: reported.live_bytes,
        asked_blocks: reported.asked_blocks,
        found_blocks: reported.found_blocks,
        holders: reported.holders.iter().map(Into::into).collect(),
        objects: reported.objects,
        took_seconds: reported.took_us as f64 / 1e6,
        budget_seconds: f64::from(budget_ms) / 1e3,
        slices: reported.slices,
        longest_seconds: reported.longest_us as f64 / 1e6,
        complete: reported.complete,
        not_looked_at: reported.not_looked_at,
        epoch: reported.epoch,
        hint: None,
    })
}

/// Sends the query once no other query is running; the daemon may have sent one without a request.
async fn asked(line: &Line, stacks: &[u32], budget_ms: u32, wait: Duration) -> Result<v1::HoldersFound, AskError> {
    let until = tokio::time::Instant::now() + BUSY_MAX;
    loop {
        match line.ask(stacks.to_vec(), budget_ms, wait).await {
            Err(AskError::Busy) if tokio::time::Instant::now() < until => tokio::time::sleep(BUSY_LOOK).await,
            outcome => return outcome,
        }
    }
}

/// The worst growth in the selection that has a site: that of a finding, otherwise that of the verdict, which is made
/// before there is enough for a finding.
async fn worst(
    store: &Arc<dyn Store>,
    judge: &Judge,
    found: &Arc<FoundJob>,
    selection: &v1::Selection,
) -> Result<Wanted, ReadError> {
    let whole_job = with_all_processes(&**store, found, selection).await?;
    let judgement = judge.judgement(&whole_job, found, Range::default(), false).await?;
    let verdict = judgement.verdict(judge.activity(found), found.has_failed());
    let of_asked = |finding: &Finding| found.sessions.iter().any(|session| concerns(finding, found, session));
    let mut grown =
        judgement.findings.into_iter().filter(|finding| finding.kind.is_leak() && of_asked(finding)).peekable();
    let name = &found.job.name;
    let why = match grown.peek() {
        None => "nothing was found to grow there so far",
        Some(_) => "what grows there has no site, because its stacks were not recorded",
    };
    if let Some(finding) = grown.find(|finding| finding.site.is_some()) {
        return Ok(Wanted::Grown(Box::new(finding)));
    }
    let is_growth = matches!(verdict.kind, VerdictKind::Growing | VerdictKind::Filling);
    match verdict.site.filter(|_| is_growth && verdict.memory == Some(MemoryKind::Device)) {
        Some(site) => Ok(Wanted::Named(format!("{}:{}", site.file, site.line))),
        None => Err(ReadError::NotNow(format!(
            "job {name}: {why}: name a site with --site FILE:LINE or --site FUNCTION; `memctl sites --job {name}` lists them"
        ))),
    }
}

/// The first process that streams to this daemon and has the site.
async fn choose<'a>(
    store: &dyn Store,
    streams: &Streams,
    found: &'a FoundJob,
    wanted: &Wanted,
) -> Result<Chosen<'a>, ReadError> {
    let concerned = |session: &&SessionRow| match wanted {
        Wanted::Named(_) => true,
        Wanted::Grown(finding) => concerns(finding, found, session),
    };
    let mut asked = Vec::new();
    let there =
        found.sessions.iter().filter(concerned).filter_map(|session| Some((session, streams.line(session.key)?)));
    for (session, line) in there.take(PROCESSES_MAX) {
        let dictionary = dictionary(store, session.key).await?;
        let (site, lines, stacks) = stacks(&dictionary, session.info.rank, wanted);
        match site {
            Some(site) if !stacks.is_empty() => return Ok(Chosen { session, line, site, lines, stacks }),
            _ => asked.push(found.process_name(session)),
        }
    }
    let name = &found.job.name;
    Err(ReadError::NotNow(match (asked.as_slice(), wanted) {
        ([], _) => format!(
            "the selected processes of job {name} do not stream to this daemon: use the daemon that they stream to (--daemon URL), or another rank (--rank)"
        ),
        (asked, Wanted::Named(words)) => format!(
            "{} of job {name} allocated nothing at {words:?}; `memctl sites --job {name}` lists the sites",
            asked.join(", ")
        ),
        (asked, Wanted::Grown(_)) => format!(
            "the stacks of the growing site on {} of job {name} are not stored yet: try again in a moment",
            asked.join(", ")
        ),
    }))
}

/// The site, the lines of its function that are meant, and a process's stacks of them.
fn stacks(dictionary: &StackDictionary, rank: u32, wanted: &Wanted) -> (Option<Frame>, Vec<u32>, Vec<u32>) {
    let words = match wanted {
        Wanted::Named(words) => words,
        Wanted::Grown(finding) => {
            return (finding.site.clone(), finding.all_lines(), stacks_of(dictionary, rank, finding));
        }
    };
    let is_meant = |frame: &Frame| is_named(&frame.into(), words);
    let of_sites = matching(dictionary, &|id| dictionary.site(id).filter(|frame| is_meant(frame)).cloned());
    // A verdict may name a call through which all of the memory was allocated.
    let by_calls =
        || matching(dictionary, &|id| dictionary.stack(id).calls().iter().find(|frame| is_meant(frame)).cloned());
    if of_sites.2.is_empty() { by_calls() } else { of_sites }
}

/// The stacks with a frame that is meant: the first such frame, the lines of all, and the stacks.
fn matching(
    dictionary: &StackDictionary,
    meant: &dyn Fn(StackId) -> Option<Frame>,
) -> (Option<Frame>, Vec<u32>, Vec<u32>) {
    let (mut site, mut lines, mut stacks): (Option<Frame>, BTreeSet<u32>, Vec<u32>) = Default::default();
    for id in (1..=dictionary.len()).filter_map(|id| u32::try_from(id).ok()) {
        if stacks.len() == STACKS_MAX {
            break;
        }
        let Some(frame) = meant(StackId(id)) else { continue };
        stacks.push(id);
        lines.insert(frame.line);
        site.get_or_insert(frame);
    }
    (site, lines.into_iter().collect(), stacks)
}

#[cfg(test)]
mod tests {
    use memctl_proto::StackSender;

    use super::*;

    #[test]
    fn a_line_names_its_own_allocations_or_those_of_its_calls() {
        let frame = |function: &str, line| Frame { function: function.into(), file: "/home/me/train.py".into(), line };
        let mut sender = StackSender::default();
        sender.add(&[frame("forward", 11), frame("main", 19)]);
        sender.add(&[frame("forward", 12), frame("main", 19)]);
        sender.add(&[frame("main", 20)]);
        let mut dictionary = StackDictionary::default();
        dictionary.add(&sender.take().unwrap()).unwrap();
        let found = |words: &str| {
            let (site, lines, found) = stacks(&dictionary, 0, &Wanted::Named(words.to_owned()));
            (site.map(|site| site.line), lines, found)
        };
        assert_eq!(found("train.py:11"), (Some(11), vec![11], vec![1]));
        assert_eq!(found("train.py:19"), (Some(19), vec![19], vec![1, 2]));
        assert_eq!(found("main"), (Some(20), vec![20], vec![3]), "what it allocates itself comes first");
        assert_eq!(found("train.py:7"), (None, vec![], vec![]));
    }
}
