//! `memctl spool`: lists, delivers or discards sessions that wait on this disk because no daemon accepted them.
//!
//! Guarantees: listing starts nothing and changes nothing; sessions of running processes are neither delivered nor
//! discarded.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memctl_answers::SCHEMA;
use memctl_answers::format::{csv, json, time};
use memctl_model::HumanBytes;
use serde::Serialize;

use crate::args::spool::{Discard, ID_SHOWN, Spool, SpoolCommand};
use crate::args::{Format, Global};
use crate::confirm::confirmed;
use crate::connect::{WhenMissing, connect, default_data_dir};
use crate::exit::Failure;
use crate::hosting::{self, host};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{plural, safe};
use crate::unrecorded;

/// The longest time for a delivery; the rest stays in the spool.
const DELIVERING_MAX: Duration = Duration::from_secs(600);

/// One waiting session.
struct Row {
    destination: String,
    folder: PathBuf,
    waiting: host::Waiting,
}

/// The same session as data.
#[derive(Debug, Serialize)]
struct Data<'a> {
    session: String,
    job: &'a str,
    attempt: u32,
    rank: u32,
    /// The folder's name: `local`, or the address of the daemon that did not accept the session.
    destination: &'a str,
    started_at: String,
    bytes: u64,
    /// Whether a running process still records the session.
    recording: bool,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    schema: u32,
    sessions: Vec<Data<'a>>,
}

/// See the module.
///
/// # Errors
/// There is no folder, no daemon, or no session of that name.
pub async fn run(args: &Spool, global: &Global, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let data_dir = global.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    let rows = rows(&data_dir);
    match &args.command {
        None => list(&rows, global, screen, out),
        Some(SpoolCommand::Deliver { sessions }) => deliver(named(rows, sessions)?, global).await,
        Some(SpoolCommand::Discard(args)) => discard(&named(rows, &args.sessions)?, args, global),
    }
}

/// All waiting sessions, by destination.
fn rows(data_dir: &Path) -> Vec<Row> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(data_dir.join("spool")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let of_folder = |folder: PathBuf| {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let destination = name.strip_prefix("daemon-").unwrap_or(&name).to_owned();
        let row = |waiting| Row { destination: destination.clone(), folder: folder.clone(), waiting };
        host::waiting(&folder).into_iter().map(row).collect::<Vec<_>>()
    };
    folders.into_iter().flat_map(of_folder).collect()
}

/// The named sessions; all sessions if no name is given.
fn named(rows: Vec<Row>, names: &[String]) -> Result<Vec<Row>, Failure> {
    let is_it = |row: &Row, name: &String| {
        row.waiting.session.job == *name || (!name.is_empty() && row.waiting.session.id.to_string().starts_with(name))
    };
    if let Some(name) = names.iter().find(|name| !rows.iter().any(|row| is_it(row, name))) {
        return Err(Failure::input(format!(
            "no session in the spool is called {}; `memctl spool` lists them",
            safe(name)
        )));
    }
    Ok(rows.into_iter().filter(|row| names.is_empty() || names.iter().any(|name| is_it(row, name))).collect())
}

fn data(row: &Row) -> Data<'_> {
    let session = &row.waiting.session;
    Data {
        session: session.id.to_string(),
        job: &session.job,
        attempt: session.attempt,
        rank: session.rank,
        destination: &row.destination,
        started_at: time::rfc3339(session.started_ns),
        bytes: row.waiting.bytes,
        recording: row.waiting.is_recorded,
    }
}

fn list(rows: &[Row], global: &Global, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let sessions: Vec<Data<'_>> = rows.iter().map(data).collect();
    let written = match global.output {
        Format::Table => out.write_all(page(rows, screen).as_bytes()),
        Format::Json => json::pretty(out, &Listed { schema: SCHEMA, sessions }),
        Format::Ndjson => sessions.iter().try_for_each(|session| json::line(out, session)),
        Format::Csv => as_csv(&sessions, out),
    };
    written.map_err(|error| Failure::output("standard output", &error))
}

fn as_csv(sessions: &[Data<'_>], out: &mut (dyn Write + Send)) -> std::io::Result<()> {
    use csv::Cell;
    let names = ["session", "job", "attempt", "rank", "destination", "started_at", "bytes", "recording"];
    csv::header(out, &names)?;
    sessions.iter().try_for_each(|row| {
        let cells = [
            Cell::plain(&row.session),
            Cell::text(row.job),
            Cell::plain(row.attempt),
            Cell::plain(row.rank),
            Cell::text(row.destination),
            Cell::plain(&row.started_at),
            Cell::plain(row.bytes),
            Cell::plain(row.recording),
        ];
        csv::record(out, &cells)
    })
}

fn page(rows: &[Row], screen: &Screen) -> String {
    if rows.is_empty() {
        return "Nothing waits: everything that was recorded here is in a store.\n".to_owned();
    }
    let columns = [
        left("SESSION", 0),
        left("JOB", 0),
        right("RANK", 1),
        left("FOR", 1),
        right("BYTES", 0),
        right("AGE", 2),
        left("STATE", 2),
    ];
    let mut table = Table::new(&columns);
    let now_ns = hosting::now_ns();
    for Row { destination, waiting, .. } in rows {
        let session = &waiting.session;
        let mut id = session.id.to_string();
        id.truncate(ID_SHOWN);
        let state = if waiting.is_recorded { "recording" } else { "waiting" };
        table.toned(vec![
            (id, None),
            (session.job.clone(), Some(Tone::Strong)),
            (session.rank.to_string(), None),
            (destination.clone(), None),
            (HumanBytes::of(waiting.bytes).to_string(), None),
            (time::age(now_ns.saturating_sub(session.started_ns)), None),
            (state.to_owned(), None),
        ]);
    }
    let mut text = table.show(screen);
    let _ = write!(
        text,
        "\n`memctl spool deliver` stores them here, or with --daemon URL there; `memctl spool discard SESSION` removes one.\n"
    );
    text
}

async fn deliver(rows: Vec<Row>, global: &Global) -> Result<(), Failure> {
    let rows: Vec<Row> = rows.into_iter().filter(|row| !row.waiting.is_recorded).collect();
    let say = |line: String| {
        if !global.quiet {
            eprintln!("memctl: {line}");
        }
    };
    if rows.is_empty() {
        say("nothing waits".to_owned());
        return Ok(());
    }
    let connection = connect(global, WhenMissing::Make).await?;
    let (daemon, place) = (connection.daemon(), connection.place.to_string());
    let end = Instant::now() + DELIVERING_MAX;
    let sessions: Vec<host::Waiting> = rows.iter().map(|row| row.waiting.clone()).collect();
    let work = move || {
        for session in &sessions {
            session.deliver(&daemon, hosting::backoff(), &|| Instant::now() >= end);
        }
    };
    // A panic in the thread was logged there; undelivered sessions stay in the spool.
    let _ = tokio::task::spawn_blocking(work).await;
    connection.close().await;
    let left = |row: &&Row| host::waiting(&row.folder).iter().any(|it| it.session.id == row.waiting.session.id);
    let left: Vec<&Row> = rows.iter().filter(left).collect();
    for row in rows.iter().filter(|row| !left.iter().any(|other| std::ptr::eq(*other, *row))) {
        unrecorded::forget(global, &row.waiting.session.job);
    }
    say(format!("{} delivered to {place}", plural((rows.len() - left.len()) as u64, "session")));
    match left.first() {
        None => Ok(()),
        Some(row) => Err(Failure::not_allowed(format!(
            "{place} did not take {} (such as job {}): may this token write it? `memctl spool` lists what is left",
            plural(left.len() as u64, "session"),
            safe(&row.waiting.session.job),
        ))),
    }
}

fn discard(rows: &[Row], args: &Discard, global: &Global) -> Result<(), Failure> {
    let (recorded, rows): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.waiting.is_recorded);
    let bytes = HumanBytes::of(rows.iter().map(|row| row.waiting.bytes).sum());
    let what = plural(rows.len() as u64, "session");
    if !args.yes && !rows.is_empty() && !confirmed("discarding", &format!("Discard {what} ({bytes})?"))? {
        eprintln!("memctl: nothing was discarded");
        return Ok(());
    }
    for row in &rows {
        row.waiting.discard().map_err(|error| Failure::output(&row.folder.display().to_string(), &error))?;
    }
    if !global.quiet {
        eprintln!("memctl: discarded {what}, {bytes}");
        if !recorded.is_empty() {
            eprintln!("memctl: {} is being recorded and stays", plural(recorded.len() as u64, "session"));
        }
    }
    Ok(())
}
