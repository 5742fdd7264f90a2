//! `memctl export --format parquet`: a job as a folder of tables.
//!
//! Guarantees: the folder appears whole or not at all; a folder that has files is not touched.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use memctl_answers::sites::View;
use memctl_proto::v1;

use super::at_end;
use super::stored::{StoredPart, failed, stream, whole, windows};
use crate::args::Global;
use crate::client::{live, report};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::parquet::table::{Column, Table};
use crate::export::parquet::{answers, stream as rows};
use crate::output_file::name_of;

type FileTable = Table<BufWriter<File>>;

/// `events`: whether the events are written as well.
pub(super) async fn parquet(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &StoredPart,
    (file, events, global): (Option<&Path>, bool, &Global),
) -> Result<(), Failure> {
    let folder = file.ok_or_else(|| Failure::usage("parquet is a folder of files; name it with -f DIR"))?;
    let cannot = |error: io::Error| Failure::output(&name_of(file), &error);
    let is_taken = folder.exists() && std::fs::read_dir(folder).map_err(cannot)?.next().is_some();
    if is_taken {
        let folder = folder.display();
        return Err(Failure::usage(format!("{folder} is not empty; remove it, or name another folder with -f")));
    }
    let beside = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new().prefix(".memctl-").tempdir_in(beside).map_err(cannot)?;
    // The folder inside has the permissions of any new folder.
    let made = temporary.path().join("tables");
    std::fs::create_dir(&made).map_err(cannot)?;
    let table = |name: &str, columns: &[Column]| -> io::Result<FileTable> {
        Table::new(BufWriter::new(File::create(made.join(name))?), columns)
    };

    let counters = table("counters.parquet", &rows::COUNTERS).map_err(cannot)?;
    let events = events.then(|| table("events.parquet", &rows::EVENTS)).transpose().map_err(cannot)?;
    let windows = windows(connection, &selection).await?;
    let sink = rows::Stream::new(&stored.job, windows, counters, events);
    let mut sink = sink.map_err(|error| failed(&error, connection, file))?;
    stream(connection, selection.clone(), &mut sink, (stored, file)).await?;
    drop(sink);

    let mut sites = table("sites.parquet", &answers::SITES).map_err(cannot)?;
    for &rank in &stored.ranks {
        let of_rank = v1::Selection { ranks: vec![rank], ..selection.clone() };
        let of_rank = live(connection, at_end(of_rank), View::default()).await?;
        for device in &of_rank.ranks {
            answers::sites(&mut sites, &stored.job, device).map_err(cannot)?;
        }
    }
    sites.finish().map_err(cannot)?;
    let report = report(connection, whole(&selection), global).await?;
    let mut epochs = table("epochs.parquet", &answers::EPOCHS).map_err(cannot)?;
    answers::epochs(&mut epochs, &report, &selection).and_then(|()| epochs.finish()).map_err(cannot)?;
    let mut findings = table("findings.parquet", &answers::FINDINGS).map_err(cannot)?;
    answers::findings(&mut findings, &report).and_then(|()| findings.finish()).map_err(cannot)?;
    std::fs::rename(&made, folder).map_err(cannot)
}
