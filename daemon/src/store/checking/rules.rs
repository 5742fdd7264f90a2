//! Invariants between the rows of a store, each as a query for rows that violate it.
//!
//! Guarantees: every query returns a session and two numbers, in SQL that both databases understand (for SQLite, the
//! schema's name is removed).

use super::{Checked, Problem};
use crate::store::row_reader::{Cells, Fault};
use crate::store::sql::query::{Sql, SqlConnection, query};

/// A rule.
pub(super) struct Rule {
    /// The problem, with `{a}` and `{b}` for the numbers.
    pub said: &'static str,
    /// Session (or 0), a, b.
    pub sql: &'static str,
}

/// All of them.
pub(super) const RULES: &[Rule] = &[
    Rule {
        said: "its row says that {a} items are stored, and {b} are",
        sql: "SELECT * FROM (
            SELECT s.session_id, s.stored_items AS a,
                (SELECT count(*) FROM memctl.payload AS p WHERE p.job_id = s.job_id AND p.session_id = s.session_id) AS b
            FROM memctl.session AS s) AS x WHERE a <> b",
    },
    Rule {
        said: "its row says that {a} bytes are stored, and its items are {b}",
        sql: "SELECT session_id, a, b FROM (
            SELECT s.session_id, s.stored_bytes AS a, CAST(
                (SELECT coalesce(sum(c.payload_bytes), 0) FROM memctl.chunk AS c
                    WHERE c.job_id = s.job_id AND c.session_id = s.session_id)
                + (SELECT coalesce(sum(i.payload_bytes), 0) FROM memctl.item AS i
                    WHERE i.job_id = s.job_id AND i.session_id = s.session_id) AS BIGINT) AS b
            FROM memctl.session AS s) AS x WHERE a <> b",
    },
    Rule {
        said: "its row says that {a} events are stored and not expired, and its chunks hold {b}",
        sql: "SELECT session_id, a, b FROM (
            SELECT s.session_id, s.events - s.expired_events AS a, CAST(
                (SELECT coalesce(sum(c.entries), 0) FROM memctl.chunk AS c
                    WHERE c.job_id = s.job_id AND c.session_id = s.session_id) AS BIGINT) AS b, s.events
            FROM memctl.session AS s) AS x WHERE a <> b AND events < 9223372036854775807",
    },
    Rule {
        said: "its items are acknowledged up to number {a}, and {b} are stored, expired or missing",
        sql: "SELECT session_id, a, b FROM (
            SELECT s.session_id, s.durable_seq AS a, s.stored_items + s.expired_items + s.missing_items AS b
            FROM memctl.session AS s) AS x WHERE a <> b",
    },
    Rule {
        said: "its row says that {a} items are missing, and its gaps are {b}",
        sql: "SELECT session_id, a, b FROM (
            SELECT s.session_id, s.missing_items AS a, CAST(
                (SELECT coalesce(sum(g.last_seq - g.first_seq + 1), 0) FROM memctl.gap AS g
                    WHERE g.job_id = s.job_id AND g.session_id = s.session_id) AS BIGINT) AS b
            FROM memctl.session AS s) AS x WHERE a <> b",
    },
    Rule {
        said: "{a} items are stored above number {b}, which is the last that was acknowledged",
        sql: "SELECT s.session_id, count(*), s.durable_seq
            FROM memctl.session AS s JOIN memctl.payload AS p ON p.job_id = s.job_id AND p.session_id = s.session_id
            WHERE p.seq > s.durable_seq GROUP BY s.session_id, s.durable_seq",
    },
    Rule {
        said: "{a} chunks have no payload",
        sql: "SELECT c.session_id, count(*), CAST(0 AS BIGINT)
            FROM memctl.chunk AS c LEFT JOIN memctl.payload AS p
                ON p.job_id = c.job_id AND p.session_id = c.session_id AND p.seq = c.seq
            WHERE p.seq IS NULL GROUP BY c.session_id",
    },
    Rule {
        said: "{a} items have no payload",
        sql: "SELECT i.session_id, count(*), CAST(0 AS BIGINT)
            FROM memctl.item AS i LEFT JOIN memctl.payload AS p
                ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
            WHERE p.seq IS NULL GROUP BY i.session_id",
    },
    Rule {
        said: "it has {a} payloads, and {b} chunks and items",
        sql: "SELECT session_id, a, b FROM (
            SELECT s.session_id,
                (SELECT count(*) FROM memctl.payload AS p WHERE p.job_id = s.job_id AND p.session_id = s.session_id) AS a,
                (SELECT count(*) FROM memctl.chunk AS c WHERE c.job_id = s.job_id AND c.session_id = s.session_id)
                + (SELECT count(*) FROM memctl.item AS i WHERE i.job_id = s.job_id AND i.session_id = s.session_id) AS b
            FROM memctl.session AS s) AS x WHERE a <> b",
    },
    Rule {
        said: "it belongs to job {a}, which does not exist",
        sql: "SELECT s.session_id, s.job_id, CAST(0 AS BIGINT) FROM memctl.session AS s
            WHERE NOT EXISTS (SELECT 1 FROM memctl.job AS j WHERE j.job_id = s.job_id)",
    },
    Rule {
        said: "{a} payloads belong to it, and it does not exist",
        sql: "SELECT x.session_id, count(*), CAST(0 AS BIGINT) FROM memctl.payload AS x WHERE NOT EXISTS (
            SELECT 1 FROM memctl.session AS s WHERE s.session_id = x.session_id AND s.job_id = x.job_id) GROUP BY x.session_id",
    },
    Rule {
        said: "{a} chunks belong to it, and it does not exist",
        sql: "SELECT x.session_id, count(*), CAST(0 AS BIGINT) FROM memctl.chunk AS x WHERE NOT EXISTS (
            SELECT 1 FROM memctl.session AS s WHERE s.session_id = x.session_id AND s.job_id = x.job_id) GROUP BY x.session_id",
    },
    Rule {
        said: "{a} items belong to it, and it does not exist",
        sql: "SELECT x.session_id, count(*), CAST(0 AS BIGINT) FROM memctl.item AS x WHERE NOT EXISTS (
            SELECT 1 FROM memctl.session AS s WHERE s.session_id = x.session_id AND s.job_id = x.job_id) GROUP BY x.session_id",
    },
    Rule {
        said: "{a} epoch ends belong to it, and it does not exist",
        sql: "SELECT x.session_id, count(*), CAST(0 AS BIGINT) FROM memctl.epoch_end AS x WHERE NOT EXISTS (
            SELECT 1 FROM memctl.session AS s WHERE s.session_id = x.session_id AND s.job_id = x.job_id) GROUP BY x.session_id",
    },
    Rule {
        said: "{a} devices belong to it, and it does not exist",
        sql: "SELECT x.session_id, count(*), CAST(0 AS BIGINT) FROM memctl.device AS x WHERE NOT EXISTS (
            SELECT 1 FROM memctl.session AS s WHERE s.session_id = x.session_id AND s.job_id = x.job_id) GROUP BY x.session_id",
    },
    Rule {
        said: "{a} answers about holders belong to it, and it does not exist",
        sql: "SELECT x.session_id, count(*), CAST(0 AS BIGINT) FROM memctl.holders AS x WHERE NOT EXISTS (
            SELECT 1 FROM memctl.session AS s WHERE s.session_id = x.session_id AND s.job_id = x.job_id) GROUP BY x.session_id",
    },
];

/// Turns the rows that violate a rule into problems. If a damaged page makes the query fail, that is a problem too.
pub(super) async fn judge<C: SqlConnection>(tx: &mut C, rule: &Rule, checked: &mut Checked) -> Result<(), Fault> {
    let rows = match tx.all(query(Sql::Both(rule.sql))).await {
        Ok(rows) => rows,
        Err(Fault::Sql(error)) if crate::store::sqlite::fault::is_damage(&error) => {
            let what = format!("a table cannot be read to its end: {error}");
            checked.add(Problem { session: None, item: None, what });
            return Ok(());
        }
        Err(fault) => return Err(fault),
    };
    for row in &rows {
        let (session, a, b) = (row.int(0)?, row.int(1)?, row.int(2)?);
        let what = rule.said.replace("{a}", &a.to_string()).replace("{b}", &b.to_string());
        checked.add(Problem { session: Some(session), item: None, what });
    }
    Ok(())
}
