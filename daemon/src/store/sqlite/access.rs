//! Tokens and the audit log in SQLite.
//!
//! Guarantees: both stay within their limits; related writes are one transaction.

use sqlx::sqlite::{SqliteConnection, SqlitePool};

use crate::store::access_rows::{AUDIT_DONE_MAX, AUDIT_REFUSED_MAX, AuditRow, TOKENS_MAX, TokenRow};
use crate::store::row_reader::{self, Fault};
use crate::store::tenant::Scope;

const TOKEN: &str = "SELECT id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns FROM access_token";

pub(super) async fn tokens(pool: &SqlitePool) -> Result<Vec<TokenRow>, Fault> {
    let sql = sqlx::AssertSqlSafe(format!("{TOKEN} ORDER BY name, created_ns, id"));
    sqlx::query(sql).fetch_all(pool).await?.iter().map(row_reader::token).collect()
}

pub(super) async fn token(pool: &SqlitePool, id: u64) -> Result<Option<TokenRow>, Fault> {
    let query = sqlx::query(sqlx::AssertSqlSafe(format!("{TOKEN} WHERE id = ?1"))).bind(id.cast_signed());
    query.fetch_optional(pool).await?.as_ref().map(row_reader::token).transpose()
}

pub(super) async fn add_token(tx: &mut SqliteConnection, token: &TokenRow) -> Result<bool, Fault> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM access_token").fetch_one(&mut *tx).await?;
    if count.cast_unsigned() >= TOKENS_MAX && !make_room(tx, token.created_ns).await? {
        return Ok(false);
    }
    let done = sqlx::query(
        "INSERT INTO access_token (id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO NOTHING",
    )
    .bind(token.id.cast_signed())
    .bind(token.name.clone())
    .bind(token.role.clone())
    .bind(token.tenant.clone())
    .bind(token.jobs.clone())
    .bind(token.secret.to_vec())
    .bind(token.created_ns.cast_signed())
    .bind(token.expires_ns.map(u64::cast_signed))
    .bind(token.revoked_ns.map(u64::cast_signed))
    .execute(tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Removes the oldest token that is no longer valid.
async fn make_room(tx: &mut SqliteConnection, now_ns: u64) -> Result<bool, Fault> {
    let done = sqlx::query(
        "DELETE FROM access_token WHERE id = (SELECT id FROM access_token \
         WHERE revoked_ns IS NOT NULL OR expires_ns <= ?1 ORDER BY created_ns, id LIMIT 1)",
    )
    .bind(now_ns.cast_signed())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn revoke_token(tx: &mut SqliteConnection, id: u64, now_ns: u64) -> Result<bool, Fault> {
    let done = sqlx::query("UPDATE access_token SET revoked_ns = ?2 WHERE id = ?1 AND revoked_ns IS NULL")
        .bind(id.cast_signed())
        .bind(now_ns.cast_signed())
        .execute(tx)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn add_audit(tx: &mut SqliteConnection, entry: &AuditRow) -> Result<(), Fault> {
    sqlx::query(
        "INSERT INTO audit (time_ns, tenant, caller, peer, action, subject, refused, outcome) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )
    .bind(entry.time_ns.cast_signed())
    .bind(entry.tenant.clone())
    .bind(entry.caller.clone())
    .bind(entry.peer.clone())
    .bind(entry.action.clone())
    .bind(entry.subject.clone())
    .bind(entry.refused)
    .bind(entry.outcome.clone())
    .execute(&mut *tx)
    .await?;
    let most = if entry.refused { AUDIT_REFUSED_MAX } else { AUDIT_DONE_MAX };
    sqlx::query(
        "DELETE FROM audit WHERE refused = ?1 AND audit_id <= (SELECT audit_id FROM audit \
         WHERE refused = ?1 ORDER BY audit_id DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(entry.refused)
    .bind(most.cast_signed())
    .execute(tx)
    .await?;
    Ok(())
}

pub(super) async fn audit(pool: &SqlitePool, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, Fault> {
    let rows = sqlx::query(
        "SELECT audit_id, time_ns, tenant, caller, peer, action, subject, refused, outcome FROM audit \
         WHERE ?1 IS NULL OR tenant = ?1 ORDER BY audit_id DESC LIMIT ?2",
    )
    .bind(scope.name().map(str::to_owned))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    rows.iter().map(row_reader::audit).collect()
}
