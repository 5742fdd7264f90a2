//! Checks every stored item: its size, its checksum, and whether it decodes.
//!
//! Guarantees: few items are in memory at a time, none larger than ingest accepts. An unreadable item counts as a
//! problem, and the check continues.

use memctl_proto::chunk::Decoder;
use memctl_proto::item::{Content, Packed};
use memctl_proto::v1::{Item, ItemKind};
use sqlx::{ConnectOptions, Connection};

use super::{Checked, Depth, Problem};
use crate::store::plan::checksum;
use crate::store::row_reader::{Cells, Fault};
use crate::store::sql::query::{Sql, SqlConnection, query};
use crate::store::sqlite::fault::is_damage;

/// Items read at once.
const BATCH: i64 = 16;

const LISTS: Sql = Sql::Both(
    "SELECT DISTINCT job_id, session_id, device, CAST(1 AS BIGINT) FROM memctl.chunk
    UNION ALL SELECT DISTINCT job_id, session_id, CAST(0 AS BIGINT), kind FROM memctl.item ORDER BY 1, 2, 4, 3",
);
const CHUNKS: Sql = Sql::Both(
    "SELECT c.seq, p.bytes, p.checksum, c.payload_bytes, c.entries, CAST(0 AS BIGINT)
    FROM memctl.chunk AS c JOIN memctl.payload AS p
        ON p.job_id = c.job_id AND p.session_id = c.session_id AND p.seq = c.seq
    WHERE c.job_id = $1 AND c.session_id = $2 AND c.device = $3 AND c.seq > $4 ORDER BY c.seq LIMIT $5",
);
const ITEMS: Sql = Sql::Both(
    "SELECT i.seq, p.bytes, p.checksum, i.payload_bytes, i.entries, i.unpacked_bytes
    FROM memctl.item AS i JOIN memctl.payload AS p
        ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
    WHERE i.job_id = $1 AND i.session_id = $2 AND i.kind = $3 AND i.seq > $4 ORDER BY i.seq LIMIT $5",
);

/// Items of one kind (and device) of a session.
#[derive(Clone, Copy)]
struct List {
    job: i64,
    session: i64,
    device: i64,
    kind: i64,
}

impl List {
    fn of(row: &impl Cells) -> Result<Self, Fault> {
        Ok(Self { job: row.int(0)?, session: row.int(1)?, device: row.int(2)?, kind: row.int(3)? })
    }

    fn is_chunks(&self) -> bool {
        self.kind == i64::from(ItemKind::Chunk as i32)
    }

    fn question(&self) -> (Sql, i64) {
        if self.is_chunks() { (CHUNKS, self.device) } else { (ITEMS, self.kind) }
    }
}

/// Checks all items. If a damaged page of SQLite prevents reading a list of items, the rest of that list is not
/// checked. The check of the pages reports the damage.
pub(super) async fn all<C: SqlConnection + Connection>(
    connection: &mut C,
    options: &C::Options,
    depth: Depth,
    checked: &mut Checked,
) -> Result<(), Fault> {
    let lists = match connection.all(query(LISTS)).await {
        Ok(rows) => rows.iter().map(List::of).collect::<Result<Vec<_>, _>>()?,
        Err(Fault::Sql(error)) if is_damage(&error) => return Ok(()),
        Err(fault) => return Err(fault),
    };
    let mut reader = Reader::new(depth)?;
    for list in lists {
        let (sql, part) = list.question();
        let (mut after, mut limit) = (0, BATCH);
        loop {
            let query = query(sql).bind(list.job).bind(list.session).bind(part).bind(after).bind(limit);
            match connection.all(query).await {
                Ok(rows) if rows.is_empty() => break,
                Ok(rows) => {
                    for row in &rows {
                        after = reader.item(list, row, checked)?;
                    }
                    limit = BATCH;
                }
                // Reads one item at a time, up to the unreadable one. The items after it are not checked.
                Err(Fault::Sql(error)) if is_damage(&error) && limit > 1 => {
                    limit = 1;
                    *connection = options.connect().await?;
                }
                Err(Fault::Sql(error)) if is_damage(&error) => {
                    let what = format!("the items behind number {after} cannot be read: {error}");
                    checked.add(Problem { session: Some(list.session), item: None, what });
                    *connection = options.connect().await?;
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
    }
    connection.ping().await?;
    Ok(())
}

struct Reader {
    depth: Depth,
    decoder: Decoder,
    events: Vec<memctl_model::Event>,
}

impl Reader {
    fn new(depth: Depth) -> Result<Self, Fault> {
        let decoder = Decoder::new().map_err(|error| Fault::Damaged(error.to_string()))?;
        Ok(Self { depth, decoder, events: Vec::new() })
    }

    /// Checks an item; returns its number.
    fn item(&mut self, list: List, row: &impl Cells, checked: &mut Checked) -> Result<i64, Fault> {
        let (seq, payload, sum) = (row.int(0)?, row.blob(1)?, row.int_or_null(2)?);
        let (bytes, entries, unpacked_bytes) = (row.int(3)?, row.word(4)?, row.small::<u32>(5)?);
        checked.items_read += 1;
        checked.items_without_checksum += u64::from(sum.is_none());
        let wrong = if sum.is_some_and(|sum| sum != checksum(&payload)) {
            Some("its bytes are not those that were stored (checksum)".to_owned())
        } else if payload.len() as i64 != bytes {
            Some(format!("it has {} bytes, and {bytes} were stored", payload.len()))
        } else if self.depth < Depth::Decoded {
            None
        } else if list.is_chunks() {
            self.chunk(&payload, entries)
        } else {
            self.other(list.kind, payload, unpacked_bytes)
        };
        if let Some(what) = wrong {
            let what = format!("is damaged: {what}");
            checked.add(Problem { session: Some(list.session), item: Some(seq.cast_unsigned()), what });
        }
        Ok(seq)
    }

    fn chunk(&mut self, payload: &[u8], entries: u64) -> Option<String> {
        match self.decoder.decode(payload, &mut self.events) {
            Ok(header) if u64::from(header.events) == entries => None,
            Ok(header) => Some(format!("it holds {} events, and {entries} were stored", header.events)),
            Err(error) => Some(error.to_string()),
        }
    }

    fn other(&mut self, kind: i64, payload: Vec<u8>, unpacked_bytes: u32) -> Option<String> {
        let kind = i32::try_from(kind).unwrap_or(0);
        let item = Item { seq: 0, kind, payload: payload.into(), unpacked_bytes };
        let content = match Packed::from_item(&item).and_then(|packed| packed.open()) {
            Ok(content) => content,
            Err(error) => return Some(error.to_string()),
        };
        match content {
            Content::SiteTables(tables) => tables.each(|_| {}).err().map(|error| error.to_string()),
            _ => None,
        }
    }
}
