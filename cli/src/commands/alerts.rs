//! `memctl alerts`: lists and silences alerts, tests receivers, shows the rules.
//!
//! Guarantees: `test` ends with exit code 1 when a receiver failed; the other verbs end like any query.

use std::io::Write;
use std::process::ExitCode;

use jiff::Timestamp;
use memctl_answers::access::Role;
use memctl_answers::alerts::{Alerts, Answers, RulesInForce, Silences, View, Watched};
use memctl_answers::format::time::Time;
use memctl_model::limits::JOBS_LISTED;
use memctl_proto::v1;
use memctl_proto::v1::alerts_client::AlertsClient;

use crate::args::alerts::{self, AlertsCommand};
use crate::args::{Format, Global};
use crate::client::{self, answered, asking, caller, hint};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::hosting::Asking;
use crate::output::show;
use crate::render::screen::Screen;
use crate::render::text::safe;

/// Bytes of a list with the maximum number of alerts.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &alerts::Alerts,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<ExitCode, Failure> {
    if args.firing && args.command.is_some() {
        return Err(Failure::usage("--firing applies to the list of alerts, not to its subcommands"));
    }
    match &args.command {
        None => list(args.firing, global, screen, now, out).await?,
        Some(AlertsCommand::Test { receiver }) => return test(receiver.clone(), global, screen, out).await,
        Some(AlertsCommand::Silence(args)) => silence(args, global, screen, now, out).await?,
        Some(AlertsCommand::Unsilence { id }) => unsilence(id, global).await?,
        Some(AlertsCommand::Silences) => silences(global, screen, now, out).await?,
        Some(AlertsCommand::Rules) => rules(global, screen, out).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn service(connection: &Connection) -> AlertsClient<Asking> {
    AlertsClient::new(connection.asking()).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// The time, as pages show it.
fn at(now: Timestamp) -> Time {
    Time(u64::try_from(now.as_nanosecond()).unwrap_or(0))
}

async fn list(
    firing_only: bool,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let answer = asking(global, async |connection| {
        let response = service(connection).list_alerts(v1::ListAlertsRequest { firing_only }).await;
        let alerts: Alerts = answered(response, connection)?;
        // The absence of an alert is meaningful only for jobs that were judged.
        let jobs = v1::ListJobsRequest { judge: true, limit: JOBS_LISTED, ..v1::ListJobsRequest::default() };
        let jobs = client::jobs(connection, jobs).await?.jobs;
        let hint = hint(connection, global);
        let may_silence = hint.is_none() || may_silence(connection).await;
        let view = View { now: at(now), hint, may_silence };
        Ok(Alerts { jobs: Some(Watched::new(&jobs)), view, ..alerts })
    });
    show(&answer.await?, global, screen, out)
}

/// Whether the caller may silence alerts. An older daemon does not report this; then its response to the request
/// decides.
async fn may_silence(connection: &Connection) -> bool {
    let caller = caller(connection).await.ok().flatten();
    !caller.is_some_and(|caller| matches!(caller.role, Role::Reader | Role::Agent))
}

async fn test(
    receiver: Option<String>,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<ExitCode, Failure> {
    let answer = asking(global, async |connection| {
        answered(service(connection).test_receivers(v1::TestReceiversRequest { receiver }).await, connection)
    });
    let answer: Answers = answer.await?;
    show(&answer, global, screen, out)?;
    Ok(if answer.receivers.iter().all(|receiver| receiver.delivered) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

async fn silence(
    args: &alerts::Silence,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let alerts::Silence { job, kind, rule, rank, labels, duration, comment, author } = args.clone();
    let silence = v1::Silence {
        job: job.unwrap_or_default(),
        kind: kind.unwrap_or_default(),
        rule: rule.unwrap_or_default(),
        ranks: rank.unwrap_or_default().0,
        labels: labels.into_iter().map(|label| v1::Label { key: label.0, value: label.1 }).collect(),
        comment,
        author,
        ..Default::default()
    };
    let request = v1::AddSilenceRequest { silence: Some(silence), for_ns: duration.0 };
    let answer =
        asking(global, async |connection| answered(service(connection).add_silence(request).await, connection));
    show(&Silences { now: at(now), ..answer.await? }, global, screen, out)
}

async fn unsilence(id: &str, global: &Global) -> Result<(), Failure> {
    let request = v1::RemoveSilenceRequest { id: id.to_owned() };
    let done = asking(global, async |connection| {
        let response = service(connection).remove_silence(request).await;
        response.map(drop).map_err(|status| connection.failure(&status))
    });
    done.await?;
    if !global.quiet {
        eprintln!("memctl: silence {} was removed", safe(id));
    }
    Ok(())
}

async fn silences(
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let answer = asking(global, async |connection| {
        answered(service(connection).list_silences(v1::ListSilencesRequest {}).await, connection)
    });
    show(&Silences { now: at(now), ..answer.await? }, global, screen, out)
}

async fn rules(global: &Global, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let answer = asking(global, async |connection| {
        answered(service(connection).get_rules(v1::GetRulesRequest {}).await, connection)
    });
    let RulesInForce { rules, toml } = answer.await?;
    if global.output == Format::Table {
        // The text is a file to be kept and edited: it stays unchanged except for control characters, which are
        // escaped.
        let lines = toml.lines().map(|line| format!("{}\n", safe(line))).collect::<String>();
        return out.write_all(lines.as_bytes()).map_err(|error| Failure::output("standard output", &error));
    }
    show(&rules, global, screen, out)
}
