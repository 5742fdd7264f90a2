//! `memctl export --format perfetto`: the course of all selected ranks as one trace.

use std::io::Write;
use std::path::Path;

use memctl_proto::v1;

use super::stored::{StoredPart, failed, stream, whole, windows};
use crate::args::Global;
use crate::client::report;
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::perfetto::Perfetto;
use crate::output_file::Target;

pub(super) async fn perfetto(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &StoredPart,
    (file, global): (Option<&Path>, &Global),
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let findings = report(connection, whole(&selection), global).await?.findings;
    let windows = windows(connection, &selection).await?;
    let mut target = Target::open(file, out)?;
    let sink = Perfetto::new(target.writer(), windows, findings);
    let mut sink = sink.map_err(|error| failed(&error, connection, file))?;
    stream(connection, selection, &mut sink, (stored, file)).await?;
    drop(sink);
    target.keep()
}
