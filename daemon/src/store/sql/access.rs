//! Tokens and the audit log.
//!
//! Guarantees: both stay within their limits. Related writes are one transaction.

use super::query::{Sql, SqlConnection, query};
use crate::store::access_rows::{AUDIT_DONE_MAX, AUDIT_REFUSED_MAX, AuditRow, TOKENS_MAX, TokenRow};
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::tenant::Scope;

macro_rules! select_token {
    ($rest:literal) => {
        Sql::Both(concat!(
            "SELECT id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns FROM memctl.access_token ",
            $rest
        ))
    };
}

const ADD_TOKEN: Sql = Sql::Both(
    "INSERT INTO memctl.access_token (id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING",
);
/// Removes the oldest token that is no longer valid.
const MAKE_ROOM: Sql = Sql::Both(
    "DELETE FROM memctl.access_token WHERE id = (SELECT id FROM memctl.access_token \
     WHERE revoked_ns IS NOT NULL OR expires_ns <= $1 ORDER BY created_ns, id LIMIT 1)",
);
const REVOKE: Sql = Sql::Both("UPDATE memctl.access_token SET revoked_ns = $2 WHERE id = $1 AND revoked_ns IS NULL");
const ADD_AUDIT: Sql = Sql::Both(
    "INSERT INTO memctl.audit (time_ns, tenant, caller, peer, action, subject, refused, outcome) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
);
const TRIM_AUDIT: Sql = Sql::Both(
    "DELETE FROM memctl.audit WHERE refused = $1 AND audit_id <= (SELECT audit_id FROM memctl.audit \
     WHERE refused = $1 ORDER BY audit_id DESC LIMIT 1 OFFSET $2)",
);
const AUDIT: Sql = Sql::Both(
    "SELECT audit_id, time_ns, tenant, caller, peer, action, subject, refused, outcome FROM memctl.audit \
     WHERE $1::text IS NULL OR tenant = $1 ORDER BY audit_id DESC LIMIT $2",
);

pub(super) async fn tokens<C: SqlConnection>(db: &mut C) -> Result<Vec<TokenRow>, Fault> {
    db.all(query(select_token!("ORDER BY name, created_ns, id"))).await?.iter().map(row_reader::token).collect()
}

pub(super) async fn token<C: SqlConnection>(db: &mut C, id: u64) -> Result<Option<TokenRow>, Fault> {
    let row = db.optional(query(select_token!("WHERE id = $1")).bind(id)).await?;
    row.as_ref().map(row_reader::token).transpose()
}

pub(super) async fn add_token<C: SqlConnection>(tx: &mut C, token: &TokenRow) -> Result<bool, Fault> {
    let count = tx.one(query(Sql::Both("SELECT count(*) FROM memctl.access_token"))).await?.word(0)?;
    if count >= TOKENS_MAX && tx.run(query(MAKE_ROOM).bind(token.created_ns)).await? == 0 {
        return Ok(false);
    }
    let add = query(ADD_TOKEN)
        .bind(token.id)
        .bind(&token.name[..])
        .bind(&token.role[..])
        .bind(&token.tenant[..])
        .bind(&token.jobs[..])
        .bind(&token.secret[..])
        .bind(token.created_ns)
        .bind(token.expires_ns)
        .bind(token.revoked_ns);
    Ok(tx.run(add).await? > 0)
}

pub(super) async fn revoke_token<C: SqlConnection>(tx: &mut C, id: u64, now_ns: u64) -> Result<bool, Fault> {
    Ok(tx.run(query(REVOKE).bind(id).bind(now_ns)).await? > 0)
}

pub(super) async fn add_audit<C: SqlConnection>(tx: &mut C, entry: &AuditRow) -> Result<(), Fault> {
    let add = query(ADD_AUDIT)
        .bind(entry.time_ns)
        .bind(&entry.tenant[..])
        .bind(&entry.caller[..])
        .bind(&entry.peer[..])
        .bind(&entry.action[..])
        .bind(&entry.subject[..])
        .bind(entry.refused)
        .bind(&entry.outcome[..]);
    tx.run(add).await?;
    let most = if entry.refused { AUDIT_REFUSED_MAX } else { AUDIT_DONE_MAX };
    tx.run(query(TRIM_AUDIT).bind(entry.refused).bind(most)).await?;
    Ok(())
}

pub(super) async fn audit<C: SqlConnection>(db: &mut C, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, Fault> {
    db.all(query(AUDIT).bind(scope.name()).bind(limit)).await?.iter().map(row_reader::audit).collect()
}
