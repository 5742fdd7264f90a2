//! `memctl doctor`: shows which daemon or store is used, whether it responds, and what to do.
//!
//! Guarantees: changes nothing, because it opens only an existing store. The exit code is 0 if queries can be answered
//! and no check failed, 6 if a token or a certificate is refused, else 3.

mod recording;

use std::io::Write;
use std::path::Path;

use memctl_answers::SCHEMA;
use memctl_answers::format::csv::{self, Cell};
use memctl_answers::format::{json, time};
use memctl_model::HumanBytes;
use memctl_proto::v1;
use serde::Serialize;

use crate::args::{Format, Global};
use crate::connect::{self, Connection, WhenMissing};
use crate::exit::{self, Failure};
use crate::hosting;
use crate::render::screen::{Screen, Tone};
use crate::render::text::{plural, safe};

/// Below this, the disk is almost full: a busy job writes this much in minutes.
const FREE_BYTES_LOW: u64 = 1 << 30;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Ok,
    Warning,
    Failed,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
struct Check {
    check: &'static str,
    verdict: Outcome,
    found: String,
    advice: Option<String>,
}

/// The whole response.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    version: &'static str,
    checks: &'a [Check],
}

/// See the module.
///
/// # Errors
/// No daemon or store responds, or a check failed ([`Failure::unreachable`]).
pub async fn run(global: &Global, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let mut checks = vec![ok("memctl", format!("version {}", env!("CARGO_PKG_VERSION")))];
    let unusable = match connect::connect(global, WhenMissing::Refuse).await {
        Ok(mut connection) => {
            let result = ask(&mut connection, &mut checks).await;
            connection.close().await;
            result.err()
        }
        Err(failure) => {
            let failure = without_itself(failure);
            checks.push(failed("connection", failure.to_string(), None));
            Some(failure)
        }
    };
    if global.daemon().is_none()
        && let Ok(dir) = global.data_dir.clone().map_or_else(connect::default_data_dir, Ok)
    {
        folder(&dir, &mut checks);
    }
    checks.extend(tokio::task::spawn_blocking(recording::checks).await.unwrap_or_default());
    print(&checks, global, screen, out).map_err(|error| Failure::output("standard output", &error))?;
    match unusable {
        // The page already shows the failure.
        Some(failure) if failure.outcome == exit::Outcome::NotAllowed => {
            Err(Failure::not_allowed(format!("questions cannot be answered: {failure}")))
        }
        Some(failure) => Err(Failure::unreachable(format!("questions cannot be answered: {failure}"))),
        None => all_hold(&checks),
    }
}

/// The failure without its hint at this command.
fn without_itself(failure: Failure) -> Failure {
    failure.without("; `memctl doctor` may show the reason")
}

/// Fails if a check failed, with the first such check.
fn all_hold(checks: &[Check]) -> Result<(), Failure> {
    match checks.iter().find(|check| check.verdict == Outcome::Failed) {
        Some(Check { check, found, .. }) => Err(Failure::unreachable(format!("the check of {check} failed: {found}"))),
        None => Ok(()),
    }
}

async fn ask(connection: &mut Connection, checks: &mut Vec<Check>) -> Result<(), Failure> {
    checks.push(ok("connection", format!("{} answers", connection.place)));
    let status = match connection.query.get_status(v1::StatusRequest {}).await {
        Ok(status) => status.into_inner(),
        Err(status) => {
            let failure = without_itself(connection.failure(&status));
            checks.push(failed("status", failure.to_string(), None));
            return Err(failure);
        }
    };
    checks.extend(of_status(&status));
    Ok(())
}

fn of_status(status: &v1::Status) -> Vec<Check> {
    let mine = env!("CARGO_PKG_VERSION");
    let mut version = ok("daemon", format!("version {}, up since {}", status.version, time::date(status.started_ns)));
    if status.version != mine {
        version.verdict = Outcome::Warning;
        version.advice = Some(format!("this memctl is {mine}: upgrade the older one"));
    }
    let store = format!("{} {}, schema {}", status.store, status.store_version, status.schema_version);
    // Neither an older daemon nor one that shows only part of its store reports the size.
    let disk = match status.size_bytes {
        0 => String::new(),
        bytes => format!(" ({} on disk)", HumanBytes::of(bytes)),
    };
    let held = format!(
        "{}, {} in {}{disk}, {} streaming, {} queued",
        plural(status.jobs, "job"),
        plural(status.events_stored, "event"),
        HumanBytes::of(status.stored_bytes),
        plural(status.sessions_streaming, "session"),
        HumanBytes::of(status.queued_bytes)
    );
    let mut gaps = ok(
        "gaps",
        format!(
            "{} missing, {} expired, {} recognised",
            plural(status.gaps, "item"),
            plural(status.events_expired, "event"),
            plural(status.items_duplicate, "duplicate")
        ),
    );
    if status.gaps > 0 {
        gaps.verdict = Outcome::Warning;
        gaps.advice = Some(
            "items were lost on the way; `memctl query` says of which job, whose figures are then not exact".to_owned(),
        );
    }
    let store = match &status.write_failure {
        None => ok("store", store),
        Some(failure) => failed(
            "store",
            format!("{store}: the last write failed: {}", safe(failure)),
            Some("agents keep their data and send it again once the store takes it".to_owned()),
        ),
    };
    let mut checks = vec![version, store, ok("contents", held), gaps];
    checks.extend(damage(status.items_damaged));
    checks.extend(tasks(status));
    checks
}

/// Items that were found damaged when read; `None` if there are none.
fn damage(items: u64) -> Option<Check> {
    let advice = "answers are given without them; `memctl check --deep` reads everything and lists what is damaged";
    (items > 0).then(|| Check {
        verdict: Outcome::Warning,
        advice: Some(advice.to_owned()),
        ..ok(
            "damage",
            format!(
                "{} found that {} not what was stored",
                plural(items, "item"),
                if items == 1 { "is" } else { "are" }
            ),
        )
    })
}

/// The daemon's tasks; `None` for an older daemon, which does not report them.
fn tasks(status: &v1::Status) -> Option<Check> {
    let down: Vec<&str> = status.tasks.iter().filter(|task| !task.running).map(|task| task.name.as_str()).collect();
    let failed: Vec<String> = status.tasks.iter().filter(|task| task.restarts > 0).map(of_task).collect();
    let mut check = match (status.tasks.is_empty(), failed.as_slice()) {
        (true, _) => return None,
        (false, []) => ok("tasks", format!("all {} are running, none has failed", status.tasks.len())),
        (false, failed) => ok("tasks", failed.join("; ")),
    };
    if !down.is_empty() || !failed.is_empty() {
        check.verdict = if down.is_empty() { Outcome::Warning } else { Outcome::Failed };
        check.advice = Some("this is a fault of memctl: the daemon's log has the details".to_owned());
    }
    Some(check)
}

/// `committer was restarted 2 times, last because: …`
fn of_task(task: &v1::TaskStatus) -> String {
    let why = task.failure.as_deref().map_or_else(String::new, |why| format!(", last because: {}", safe(why)));
    let now = if task.running { "" } else { " and is down now" };
    format!("{} was restarted {}{now}{why}", safe(&task.name), plural(task.restarts, "time"))
}

/// Checks the folder of an embedded store: it exists, is writable, and has free space.
fn folder(dir: &Path, checks: &mut Vec<Check>) {
    if !dir.is_dir() {
        checks.push(Check {
            check: "folder",
            verdict: Outcome::Warning,
            found: format!("{} does not exist yet", dir.display()),
            advice: Some("the first import or daemon creates it".to_owned()),
        });
        return;
    }
    checks.push(match may_write(dir) {
        Ok(()) => ok("folder", format!("{} is writable", dir.display())),
        Err(error) => failed(
            "folder",
            format!("{} cannot be written: {error}", dir.display()),
            Some("change its permissions, or choose another folder with --data-dir".to_owned()),
        ),
    });
    if let Some(free) = free_bytes(dir) {
        let found = format!("{} free", HumanBytes::of(free));
        checks.push(if free < FREE_BYTES_LOW {
            let advice =
                "free disk space before the disk is full: deleting jobs (`memctl delete`) or old events (--retain-bytes) needs some as well";
            Check { check: "disk", verdict: Outcome::Warning, found, advice: Some(advice.to_owned()) }
        } else {
            ok("disk", found)
        });
    }
}

/// Whether a file can be created in the folder; the file is removed again.
fn may_write(dir: &Path) -> std::io::Result<()> {
    // This check needs no file and comes first, because the error of the next one does not name a path.
    hosting::private_files::writable(dir)?;
    tempfile::Builder::new().prefix(".memctl-doctor-").tempfile_in(dir).map(drop)
}

/// Bytes that an ordinary user may still write in the folder.
#[cfg(unix)]
// The fields are 64 bits wide here and 32 on other systems.
#[allow(clippy::useless_conversion)]
fn free_bytes(dir: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: all bits zero is a valid `statvfs`: it holds integers only.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a NUL and lives until the call returns; `stat` is ours and writable.
    let result = unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) };
    (result == 0).then(|| u64::from(stat.f_bavail).saturating_mul(u64::from(stat.f_frsize)))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

fn ok(check: &'static str, found: String) -> Check {
    Check { check, verdict: Outcome::Ok, found, advice: None }
}

fn failed(check: &'static str, found: String, advice: Option<String>) -> Check {
    Check { check, verdict: Outcome::Failed, found, advice }
}

fn print(checks: &[Check], global: &Global, screen: &Screen, out: &mut dyn Write) -> std::io::Result<()> {
    match global.output {
        Format::Table => out.write_all(page(checks, screen).as_bytes()),
        Format::Json => json::pretty(out, &Diagnosis { schema: SCHEMA, version: env!("CARGO_PKG_VERSION"), checks }),
        Format::Ndjson => checks.iter().try_for_each(|check| json::line(out, check)),
        Format::Csv => {
            csv::header(out, &["check", "verdict", "found", "advice"])?;
            checks.iter().try_for_each(|Check { check, verdict, found, advice }| {
                let verdict = match verdict {
                    Outcome::Ok => "ok",
                    Outcome::Warning => "warning",
                    Outcome::Failed => "failed",
                };
                let cells =
                    [Cell::plain(check), Cell::plain(verdict), Cell::text(found), Cell::maybe_text(advice.as_deref())];
                csv::record(out, &cells)
            })
        }
    }
}

fn page(checks: &[Check], screen: &Screen) -> String {
    let mut out = String::new();
    let below = "ok    connection  ".len();
    for Check { check, verdict, found, advice } in checks {
        let (word, tone) = match verdict {
            Outcome::Ok => ("ok", Tone::Good),
            Outcome::Warning => ("note", Tone::Strong),
            Outcome::Failed => ("FAIL", Tone::Alert),
        };
        // Never cut, because the user needs the whole sentence.
        out.push_str(&format!(
            "{}  {check:<10}  {}\n",
            screen.paint(tone, &format!("{word:<4}")),
            screen.wrapped(&safe(found), below)
        ));
        if let Some(advice) = advice {
            out.push_str(&format!("{:below$}{}\n", "", screen.wrapped(&safe(advice), below)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page() {
        let status = v1::Status {
            version: "0.0.1".into(),
            store: "sqlite".into(),
            store_version: "3.51.3".into(),
            schema_version: 1,
            jobs: 2,
            events_stored: 12_345,
            stored_bytes: 9 << 20,
            size_bytes: 12 << 20,
            items_damaged: 3,
            gaps: 1,
            ..Default::default()
        };
        let mut checks = of_status(&status);
        checks.push(failed("folder", "/x\u{1b}[2J cannot be written".into(), Some("choose another".into())));
        let screen = Screen { columns: Some(80), unicode: true, colour: false };
        let shown = page(&checks, &screen).replace(env!("CARGO_PKG_VERSION"), "VERSION");
        insta::assert_snapshot!(shown, @r"
        note  daemon      version 0.0.1, up since 1970-01-01 00:00:00 UTC
                          this memctl is VERSION: upgrade the older one
        ok    store       sqlite 3.51.3, schema 1
        ok    contents    2 jobs, 12,345 events in 9.00 MiB (12.0 MiB on disk), 0
                          sessions streaming, 0 B queued
        note  gaps        1 item missing, 0 events expired, 0 duplicates recognised
                          items were lost on the way; `memctl query` says of which job,
                          whose figures are then not exact
        note  damage      3 items found that are not what was stored
                          answers are given without them; `memctl check --deep` reads
                          everything and lists what is damaged
        FAIL  folder      /x\u{1b}[2J cannot be written
                          choose another
        ");
    }

    #[test]
    fn a_check_that_failed_is_a_failure() {
        let mut checks = vec![ok("memctl", "version 1".into()), ok("disk", "1 GiB free".into())];
        assert!(all_hold(&checks).is_ok());
        checks[1].verdict = Outcome::Warning;
        assert!(all_hold(&checks).is_ok(), "a note is not a failure");
        checks.push(failed("folder", "/x cannot be written".into(), None));
        let failure = all_hold(&checks).unwrap_err();
        assert_eq!(failure.outcome, exit::Outcome::Unreachable);
        assert_eq!(failure.to_string(), "the check of folder failed: /x cannot be written");
    }

    #[test]
    fn the_disk_has_a_size() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).is_some_and(|free| free > 0));
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")), None);
    }
}
