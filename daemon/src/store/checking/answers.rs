//! Checks every answer about holders: its checksum, and whether it decodes.
//!
//! Guarantees: one answer is in memory at a time. An unreadable answer counts as a problem, and the check continues.

use memctl_proto::convert::holders::from_kept;
use memctl_proto::v1;
use prost::Message as _;
use sqlx::{ConnectOptions, Connection};

use super::{Checked, Problem};
use crate::store::plan::checksum;
use crate::store::row_reader::{Cells, Fault};
use crate::store::sql::query::{Sql, SqlConnection, query};
use crate::store::sqlite::fault::is_damage;

const LIST: Sql = Sql::Both("SELECT job_id, session_id, asked_ns FROM memctl.holders ORDER BY 1, 2, 3");
const ONE: Sql =
    Sql::Both("SELECT answer, checksum FROM memctl.holders WHERE job_id = $1 AND session_id = $2 AND asked_ns = $3");

/// Checks all answers. If a damaged page of SQLite prevents reading the list, no answer is checked.
pub(super) async fn all<C: SqlConnection + Connection>(
    connection: &mut C,
    options: &C::Options,
    checked: &mut Checked,
) -> Result<(), Fault> {
    let keys = match connection.all(query(LIST)).await {
        Ok(keys) => keys,
        // The check of the pages has already reported this damage.
        Err(Fault::Sql(error)) if is_damage(&error) => return Ok(()),
        Err(fault) => return Err(fault),
    };
    for key in &keys {
        let (session, asked_ns) = (key.int(1)?, key.word(2)?);
        match connection.optional(query(ONE).bind(key.int(0)?).bind(session).bind(asked_ns)).await {
            Ok(row) => look(session, asked_ns, row.as_ref(), checked)?,
            Err(Fault::Sql(error)) if is_damage(&error) => {
                let what = format!("the answer about holders of {} ns cannot be read: {error}", asked_ns.cast_signed());
                checked.add(Problem { session: Some(session), item: None, what });
                *connection = options.connect().await?;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// Checks an answer, unless it has been removed since it was listed.
fn look(session: i64, asked_ns: u64, row: Option<&impl Cells>, checked: &mut Checked) -> Result<(), Fault> {
    let Some(row) = row else { return Ok(()) };
    let (answer, sum) = (row.blob(0)?, row.int(1)?);
    let wrong = if checksum(&answer) == sum {
        decoded(&answer, asked_ns).err()
    } else {
        Some("its bytes are not those that were stored (checksum)".to_owned())
    };
    if let Some(what) = wrong {
        let what = format!("the answer about holders of {} ns is damaged: {what}", asked_ns.cast_signed());
        checked.add(Problem { session: Some(session), item: None, what });
    }
    Ok(())
}

fn decoded(answer: &[u8], asked_ns: u64) -> Result<(), String> {
    let kept = v1::HoldersAsked::decode(answer).map_err(|error| error.to_string())?;
    from_kept(kept, (0, String::new()), asked_ns).map(drop).map_err(|error| error.to_string())
}
