//! `memctl demo`: a recorded 4-GPU training job passes through importer, daemon and store and is then queried.
//!
//! Guarantees: needs no GPU, no Python, no server and no network; its files are in a temporary folder, which is removed
//! at the end, also after a failure.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memctl_answers::jobs::Jobs;
use memctl_answers::sites::View;
use memctl_proto::v1;

use super::questions::plot_points;
use super::ui;
use crate::args::{self, Format, Global};
use crate::client::{self, course, live, report};
use crate::connect::{Connection, open_here};
use crate::exit::Failure;
use crate::hosting::{self, ImportRequest, import_files};
use crate::output::show;
use crate::page;
use crate::render::screen::{Screen, Tone};

/// Four ranks of a real job, in the binary so that the demo works wherever the binary is. On rank 0 a function keeps
/// tensors that it should release.
const RECORDING: [&[u8]; 4] = [
    include_bytes!("../../../tests/data/recordings/cnn_rank0_cache/rank0.pickle.zst"),
    include_bytes!("../../../tests/data/recordings/cnn_rank0_cache/rank1.pickle.zst"),
    include_bytes!("../../../tests/data/recordings/cnn_rank0_cache/rank2.pickle.zst"),
    include_bytes!("../../../tests/data/recordings/cnn_rank0_cache/rank3.pickle.zst"),
];
const JOB: &str = "demo";

/// See the module.
///
/// # Errors
/// The folder for temporary files cannot be written.
pub async fn run(
    args: &args::Demo,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if global.output != Format::Table {
        return Err(Failure::usage("the demo is a page to read; omit -o"));
    }
    let cannot = |error: std::io::Error| {
        Failure::unreachable(format!(
            "cannot write to the folder for temporary files: {error}; set TMPDIR to one that can be written"
        ))
    };
    let folder = tempfile::Builder::new().prefix("memctl-demo-").tempdir().map_err(cannot)?;
    let files = unpack(folder.path()).map_err(cannot)?;
    let mut connection = open_here(&folder.path().join("store")).await?;
    // The folder is removed before the page is read, so proposed commands must not contain flags that lead to it.
    let quiet = Global { quiet: true, ..global.clone() };
    let outcome = match store(&connection, files).await {
        Err(failure) => Err(failure),
        Ok(()) if args.ui => ui::serve(&mut connection, None, args.open, global, out).await,
        Ok(()) => tell(&mut connection, &quiet, screen, out).await,
    };
    connection.close().await;
    outcome?;
    folder.close().map_err(cannot)?;
    if global.quiet || args.ui {
        return Ok(());
    }
    out.write_all(next(screen).as_bytes()).map_err(|error| Failure::output("standard output", &error))
}

fn unpack(folder: &Path) -> std::io::Result<Vec<(u32, PathBuf)>> {
    RECORDING
        .iter()
        .zip(0_u32..)
        .map(|(bytes, rank)| {
            let file = folder.join(format!("rank{rank}.pickle.zst"));
            std::fs::write(&file, bytes)?;
            Ok((rank, file))
        })
        .collect()
}

async fn store(connection: &Connection, files: Vec<(u32, PathBuf)>) -> Result<(), Failure> {
    let request = ImportRequest {
        launch: memctl_model::Launch::default(),
        job: JOB.to_owned(),
        attempt: 0,
        labels: Vec::new(),
        source_paths: hosting::SourcePaths::default(),
        files,
        taker: (
            connection.place.to_string(),
            "make room in the folder for temporary files, or set TMPDIR to another one",
        ),
        silence_max: hosting::EMBEDDED_SILENCE_MAX,
        begun: Arc::default(),
    };
    import_files(connection.daemon(), request, Arc::new(|_| {})).await.map(drop)
}

async fn tell(
    connection: &mut Connection,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = |ranks: Vec<u32>| v1::Selection { job: JOB.to_owned(), ranks, ..v1::Selection::default() };

    say(out, screen, "A recorded training job: a CNN on 4 GPUs. Which jobs are there?", "memctl jobs")?;
    let request = v1::ListJobsRequest { judge: true, ..v1::ListJobsRequest::default() };
    let jobs = Jobs { now_ns: hosting::now_ns(), ..client::jobs(connection, request).await? };
    show(&jobs, global, screen, out)?;

    say(out, screen, "How did its memory develop?", "memctl timeline --job demo --rank 0-1")?;
    let timeline = course(connection, selection(vec![0, 1]), plot_points(screen), global).await?;
    show(&timeline, global, screen, out)?;

    say(out, screen, "Memory of rank 0 creeps up. What grew, and on which rank?", "memctl query --job demo")?;
    let report = report(connection, selection(Vec::new()), global).await?;
    show(&report, global, screen, out)?;

    let last = report.ranks.iter().flat_map(|rank| &rank.epoch_ends).map(|end| end.epoch).max().unwrap_or(0);
    let command = format!("memctl sites --job demo --rank 0 --epoch-end {last}");
    say(out, screen, "Whose memory is live on rank 0 when the last epoch ends?", &command)?;
    let at = v1::sites_request::Moment::EpochEnd(last);
    let request = v1::SitesRequest { selection: Some(selection(vec![0])), moment: Some(at) };
    let view = View { min_share: 0.02, chosen: true, moment: format!("at the end of epoch {last}"), ..View::default() };
    let sites = live(connection, request, view).await?;
    show(&sites, global, screen, out)
}

fn say(out: &mut dyn Write, screen: &Screen, text: &str, command: &str) -> Result<(), Failure> {
    let command = screen.paint(Tone::Good, &format!("$ {command}"));
    let text = format!("\n{}\n{command}\n\n", screen.paint(Tone::Strong, &format!("# {text}")));
    out.write_all(text.as_bytes()).map_err(|error| Failure::output("standard output", &error))
}

fn next(screen: &Screen) -> String {
    let commands = [
        ("memctl import FOLDER --job NAME".to_owned(), "your own snapshots (torch.cuda.memory._dump_snapshot)"),
        ("memctl query --job NAME".to_owned(), "what grew, where and on which rank"),
        ("memctl daemon".to_owned(), "a store for a team"),
        ("memctl --help".to_owned(), "everything else"),
    ];
    page::next(&commands, screen)
}
