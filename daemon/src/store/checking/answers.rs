//! Checks every answer about holders: its checksum, and whether it decodes.
//!
//! Guarantees: one answer is in memory at a time; an unreadable one is a problem, and the check continues.

use memctl_proto::convert::holders::from_kept;
use memctl_proto::v1;
use prost::Message as _;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};

use super::{Checked, Problem};
use crate::store::plan::checksum;
use crate::store::row_reader::{Cells, Fault};
use crate::store::sqlite::fault::is_damage;

const LIST: &str = "SELECT job_id, session_id, asked_ns FROM memctl.holders ORDER BY 1, 2, 3";
const ONE: &str = "SELECT answer, checksum FROM memctl.holders WHERE job_id = $1 AND session_id = $2 AND asked_ns = $3";

/// Job, session and time of an answer.
type Key = (i64, i64, i64);

pub(super) async fn of_sqlite(
    connection: &mut SqliteConnection,
    options: &SqliteConnectOptions,
    checked: &mut Checked,
) -> Result<(), Fault> {
    let keys: Vec<Key> =
        match sqlx::query_as(AssertSqlSafe(LIST.replace("memctl.", ""))).fetch_all(&mut *connection).await {
            Ok(keys) => keys,
            // The check of the pages has reported this.
            Err(error) if is_damage(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
    let one = ONE.replace("memctl.", "");
    for (job, session, asked_ns) in keys {
        let query = sqlx::query(AssertSqlSafe(one.clone())).bind(job).bind(session).bind(asked_ns);
        match query.fetch_optional(&mut *connection).await {
            Ok(row) => look((job, session, asked_ns), row.as_ref(), checked)?,
            Err(error) if is_damage(&error) => {
                let what = format!("the answer about holders of {asked_ns} ns cannot be read: {error}");
                checked.add(Problem { session: Some(session), item: None, what });
                *connection = options.connect().await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) async fn of_postgres(connection: &mut PgConnection, checked: &mut Checked) -> Result<(), Fault> {
    let keys: Vec<Key> = sqlx::query_as(LIST).fetch_all(&mut *connection).await?;
    for (job, session, asked_ns) in keys {
        let query = sqlx::query(ONE).bind(job).bind(session).bind(asked_ns);
        look((job, session, asked_ns), query.fetch_optional(&mut *connection).await?.as_ref(), checked)?;
    }
    Ok(())
}

/// Checks an answer, unless it is gone by now.
fn look((_, session, asked_ns): Key, row: Option<&impl Cells>, checked: &mut Checked) -> Result<(), Fault> {
    let Some(row) = row else { return Ok(()) };
    let (answer, sum) = (row.blob(0)?, row.int(1)?);
    let wrong = if checksum(&answer) == sum {
        decoded(&answer, asked_ns.cast_unsigned()).err()
    } else {
        Some("its bytes are not those that were stored (checksum)".to_owned())
    };
    if let Some(what) = wrong {
        let what = format!("the answer about holders of {asked_ns} ns is damaged: {what}");
        checked.add(Problem { session: Some(session), item: None, what });
    }
    Ok(())
}

fn decoded(answer: &[u8], asked_ns: u64) -> Result<(), String> {
    let kept = v1::HoldersAsked::decode(answer).map_err(|error| error.to_string())?;
    from_kept(kept, (0, String::new()), asked_ns).map(drop).map_err(|error| error.to_string())
}
