//! Durable writes: 64-KiB chunks through each store, and rivals that store one row per event.
//!
//! Guarantees: every rate counts what is committed with the durability the daemon uses (SQLite `synchronous=FULL`,
//! Postgres `synchronous_commit=on`), index upkeep and checkpoints included, opening excluded. The written data is
//! counted in the store before a rate is reported. Payloads do not compress. A rival that was not run is not reported;
//! without a Postgres URL its lines state this.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use memctl_daemon::store::{Append, ChunkLevels, ItemIndex, NewItem, PostgresStore, SqliteStore, Store};
use memctl_model::{Dropped, SessionId, SessionInfo};
use memctl_proto::v1::ItemKind;
use sqlx::postgres::{PgConnection, PgPoolCopyExt, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor};

/// Size of a chunk's payload, which is noise; the codec benchmark measures the size of real chunks.
const PAYLOAD_BYTES: usize = 64 << 10;
/// Items of one transaction, as in a group commit.
const BATCH_ITEMS: u64 = 32;
/// The events of such a payload at one byte per event; real events take less.
const CHUNK_EVENTS: u64 = 65_536;
/// Rows of one transaction of the rivals.
const BATCH_ROWS: i64 = 50_000;

/// How much is written.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Chunks through each store.
    pub chunks: u64,
    /// Rows into each rival.
    pub rows: i64,
}

impl Default for Amount {
    fn default() -> Self {
        Self { chunks: 8_192, rows: 1_000_000 }
    }
}

/// One rate.
#[derive(Clone, Debug)]
pub struct Row {
    /// The data and the store.
    pub name: String,
    /// Chunks or rows.
    pub written: u64,
    /// The events that they represent.
    pub events: u64,
    /// Bytes on disk for one event.
    pub bytes_per_event: f64,
    /// Wall time.
    pub seconds: f64,
}

/// All rates, and why some are missing.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The rates.
    pub rows: Vec<Row>,
    /// What was left out.
    pub left_out: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| store | written | a second | events a second | MB a second | bytes an event |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for Row { name, written, events, bytes_per_event, seconds } in &self.rows {
            let megabytes = *events as f64 * bytes_per_event / 1e6 / seconds;
            writeln!(
                f,
                "| {name} | {written} | {:.0} | {:.2} M | {megabytes:.0} | {bytes_per_event:.2} |",
                *written as f64 / seconds,
                *events as f64 / seconds / 1e6,
            )?;
        }
        self.left_out.iter().try_for_each(|line| writeln!(f, "\nLeft out: {line}"))
    }
}

/// Runs everything in `folder` (made before, removed by the caller); `postgres` is an administrator's URL of a
/// throw-away cluster, in which databases are created and dropped.
///
/// # Errors
/// Any error of a store.
pub async fn run(folder: &Path, postgres: Option<&str>, amount: Amount) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::default();
    let path = folder.join("chunks.db");
    let store = SqliteStore::open(&path, "bench").await?;
    let row = chunks("chunks, SQLite", &store, amount).await?;
    store.close().await?;
    report.rows.push(row.on_disk(path.metadata()?.len()));
    report.rows.push(sqlite_rows(&folder.join("rows.db"), amount).await?);
    let Some(admin) = postgres else {
        report.left_out.push("Postgres, because MEMCTL_TEST_POSTGRES is not set (tests/postgres start DIR)".into());
        return Ok(report);
    };
    let url = fresh_database(admin).await?;
    let store = PostgresStore::open(&url).await?;
    let row = chunks("chunks, Postgres", &store, amount).await?;
    store.close().await?;
    report.rows.push(row.on_disk(tables_bytes(&url).await?));
    report.rows.push(postgres_rows(&url, amount).await?);
    drop_database(admin).await?;
    Ok(report)
}

impl Row {
    fn on_disk(self, bytes: u64) -> Self {
        Self { bytes_per_event: bytes as f64 / self.events.max(1) as f64, ..self }
    }
}

/// Bytes of all of memctl's tables and indexes.
async fn tables_bytes(url: &str) -> Result<u64, Box<dyn Error>> {
    let sum = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'memctl'::regnamespace AND relkind = 'r'";
    let bytes: i64 = sqlx::query_scalar(sum).fetch_one(&mut PgConnection::connect(url).await?).await?;
    Ok(bytes.max(0).cast_unsigned())
}

/// Chunks of one session, in transactions of [`BATCH_ITEMS`].
async fn chunks(name: &str, store: &dyn Store, amount: Amount) -> Result<Row, Box<dyn Error>> {
    let session = store.open_session(&session(), 1).await?.key;
    let payloads: Vec<Bytes> = (1..=16).map(noise).collect();
    let start = Instant::now();
    let mut seq = 0;
    while seq < amount.chunks {
        let last = (seq + BATCH_ITEMS).min(amount.chunks);
        let items = (seq + 1..=last).map(|seq| chunk(seq, payloads[(seq % 16) as usize].clone())).collect();
        store.append(vec![append(session, items, last)]).await?;
        seq = last;
    }
    let seconds = start.elapsed().as_secs_f64();
    let totals = store.totals().await?;
    if totals.stored_bytes != amount.chunks * PAYLOAD_BYTES as u64 {
        return Err(format!("{name}: {} bytes are stored", totals.stored_bytes).into());
    }
    Ok(Row { name: name.into(), written: amount.chunks, events: totals.events, bytes_per_event: 0.0, seconds })
}

/// One row per event: seven integers, two indexes.
async fn sqlite_rows(path: &Path, amount: Amount) -> Result<Row, Box<dyn Error>> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    connection.execute("CREATE TABLE event (session INTEGER, seq INTEGER, time_ns INTEGER, action INTEGER, addr INTEGER, size INTEGER, stack INTEGER)").await?;
    connection.execute("CREATE INDEX event_time ON event (session, time_ns)").await?;
    connection.execute("CREATE INDEX event_addr ON event (session, addr)").await?;
    let start = Instant::now();
    for first in (0..amount.rows).step_by(BATCH_ROWS as usize) {
        // SQLite generates the rows itself. Otherwise the benchmark would measure the driver, which sends row by row.
        let insert = "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
            INSERT INTO event SELECT 1, i, 1780000000000000000 + i * 20000, i % 3, (i * 7919) % 100003 * 512, i % 1009 * 512, i % 997 FROM n";
        sqlx::query(insert).bind(first).bind((first + BATCH_ROWS).min(amount.rows)).execute(&mut connection).await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM event").fetch_one(&mut connection).await?;
    let bytes: i64 = sqlx::query_scalar("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(rows_row("one row an event, SQLite", count, bytes, seconds))
}

/// The same rows by COPY.
async fn postgres_rows(url: &str, amount: Amount) -> Result<Row, Box<dyn Error>> {
    let pool = PgPoolOptions::new().max_connections(1).connect(url).await?;
    pool.execute("CREATE TABLE event (session bigint, seq bigint, time_ns bigint, action bigint, addr bigint, size bigint, stack bigint)").await?;
    pool.execute("CREATE INDEX event_time ON event (session, time_ns)").await?;
    pool.execute("CREATE INDEX event_addr ON event (session, addr)").await?;
    let start = Instant::now();
    for first in (0..amount.rows).step_by(BATCH_ROWS as usize) {
        let rows = copy_rows(first, (first + BATCH_ROWS).min(amount.rows));
        let mut copy = pool.copy_in_raw("COPY event FROM STDIN (FORMAT binary)").await?;
        copy.send(rows).await?;
        copy.finish().await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM event").fetch_one(&pool).await?;
    let bytes: i64 = sqlx::query_scalar("SELECT pg_total_relation_size('event')").fetch_one(&pool).await?;
    pool.close().await;
    Ok(rows_row("one row an event, Postgres COPY", count, bytes, seconds))
}

/// Rows in the form of <https://www.postgresql.org/docs/current/sql-copy.html>, "Binary Format".
fn copy_rows(from: i64, to: i64) -> Vec<u8> {
    let mut out = b"PGCOPY\n\xff\r\n\0".to_vec();
    out.extend([0; 8]);
    for i in from..to {
        out.extend(7_i16.to_be_bytes());
        let columns =
            [1, i, 1_780_000_000_000_000_000 + i * 20_000, i % 3, (i * 7919) % 100_003 * 512, i % 1009 * 512, i % 997];
        for value in columns {
            out.extend(8_i32.to_be_bytes());
            out.extend(value.to_be_bytes());
        }
    }
    out.extend((-1_i16).to_be_bytes());
    out
}

fn rows_row(name: &str, count: i64, bytes: i64, seconds: f64) -> Row {
    let events = count.max(0).cast_unsigned();
    Row { name: name.into(), written: events, events, bytes_per_event: bytes as f64 / events.max(1) as f64, seconds }
}

const DATABASE: &str = "memctl_bench";

async fn fresh_database(admin: &str) -> Result<String, Box<dyn Error>> {
    drop_database(admin).await?;
    let mut connection = PgConnection::connect(admin).await?;
    connection.execute("CREATE DATABASE memctl_bench").await?;
    let options: sqlx::postgres::PgConnectOptions = admin.parse()?;
    Ok(options.database(DATABASE).to_url_lossy().to_string())
}

async fn drop_database(admin: &str) -> Result<(), Box<dyn Error>> {
    let mut connection = PgConnection::connect(admin).await?;
    connection.execute("DROP DATABASE IF EXISTS memctl_bench WITH (FORCE)").await?;
    Ok(())
}

fn session() -> SessionInfo {
    SessionInfo::live(SessionId([1; 16]), "bench", 1)
}

fn append(session: i64, items: Vec<NewItem>, durable_seq: u64) -> Append {
    Append {
        session,
        items,
        gaps: Vec::new(),
        durable_seq,
        duplicates: 0,
        heard_ns: 1,
        devices: Vec::new(),
        epoch_ends: Vec::new(),
        end: None,
        dropped: Dropped::default(),
    }
}

fn chunk(seq: u64, payload: Bytes) -> NewItem {
    let first_ns = 1_780_000_000_000_000_000 + seq * 1_000_000_000;
    NewItem {
        seq,
        kind: ItemKind::Chunk,
        payload,
        unpacked_bytes: 0,
        index: ItemIndex {
            device: Some(0),
            first_ns,
            last_ns: first_ns + 999_999_999,
            first_event: (seq - 1) * CHUNK_EVENTS,
            count: CHUNK_EVENTS,
            first_epoch: 0,
            last_epoch: 0,
            first_step: seq,
            last_step: seq,
        },
        levels: Some(ChunkLevels { allocated_end: seq << 30, reserved_end: seq << 31, ..ChunkLevels::default() }),
    }
}

/// Bytes that do not compress.
fn noise(seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..PAYLOAD_BYTES)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
