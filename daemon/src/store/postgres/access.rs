//! Tokens and the audit log in Postgres.
//!
//! Guarantees: both stay within their limits; related writes are one transaction.

use sqlx::postgres::{PgConnection, PgPool};

use crate::store::access_rows::{AUDIT_DONE_MAX, AUDIT_REFUSED_MAX, AuditRow, TOKENS_MAX, TokenRow};
use crate::store::row_reader::{self, Fault};
use crate::store::tenant::Scope;

const TOKEN: &str =
    "SELECT id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns FROM memctl.access_token";

pub(super) async fn tokens(pool: &PgPool) -> Result<Vec<TokenRow>, Fault> {
    let sql = sqlx::AssertSqlSafe(format!("{TOKEN} ORDER BY name, created_ns, id"));
    sqlx::query(sql).fetch_all(pool).await?.iter().map(row_reader::token).collect()
}

pub(super) async fn token(pool: &PgPool, id: u64) -> Result<Option<TokenRow>, Fault> {
    let query = sqlx::query(sqlx::AssertSqlSafe(format!("{TOKEN} WHERE id = $1"))).bind(id.cast_signed());
    query.fetch_optional(pool).await?.as_ref().map(row_reader::token).transpose()
}

pub(super) async fn add_token(pool: &PgPool, token: &TokenRow) -> Result<bool, Fault> {
    let mut tx = pool.begin().await?;
    let added = add(&mut tx, token).await?;
    tx.commit().await?;
    Ok(added)
}

async fn add(tx: &mut PgConnection, token: &TokenRow) -> Result<bool, Fault> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM memctl.access_token").fetch_one(&mut *tx).await?;
    if count.cast_unsigned() >= TOKENS_MAX && !make_room(tx, token.created_ns).await? {
        return Ok(false);
    }
    let done = sqlx::query(
        "INSERT INTO memctl.access_token (id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING",
    )
    .bind(token.id.cast_signed())
    .bind(&token.name)
    .bind(&token.role)
    .bind(&token.tenant)
    .bind(&token.jobs)
    .bind(token.secret.to_vec())
    .bind(token.created_ns.cast_signed())
    .bind(token.expires_ns.map(u64::cast_signed))
    .bind(token.revoked_ns.map(u64::cast_signed))
    .execute(tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Removes the oldest token that is no longer valid.
async fn make_room(tx: &mut PgConnection, now_ns: u64) -> Result<bool, Fault> {
    let done = sqlx::query(
        "DELETE FROM memctl.access_token WHERE id = (SELECT id FROM memctl.access_token \
         WHERE revoked_ns IS NOT NULL OR expires_ns <= $1 ORDER BY created_ns, id LIMIT 1)",
    )
    .bind(now_ns.cast_signed())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn revoke_token(pool: &PgPool, id: u64, now_ns: u64) -> Result<bool, Fault> {
    let done = sqlx::query("UPDATE memctl.access_token SET revoked_ns = $2 WHERE id = $1 AND revoked_ns IS NULL")
        .bind(id.cast_signed())
        .bind(now_ns.cast_signed())
        .execute(pool)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn add_audit(pool: &PgPool, entry: &AuditRow) -> Result<(), Fault> {
    let mut tx = pool.begin().await?;
    insert_audit(&mut tx, entry).await?;
    tx.commit().await?;
    Ok(())
}

async fn insert_audit(tx: &mut PgConnection, entry: &AuditRow) -> Result<(), Fault> {
    sqlx::query(
        "INSERT INTO memctl.audit (time_ns, tenant, caller, peer, action, subject, refused, outcome) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(entry.time_ns.cast_signed())
    .bind(&entry.tenant)
    .bind(&entry.caller)
    .bind(&entry.peer)
    .bind(&entry.action)
    .bind(&entry.subject)
    .bind(entry.refused)
    .bind(&entry.outcome)
    .execute(&mut *tx)
    .await?;
    let most = if entry.refused { AUDIT_REFUSED_MAX } else { AUDIT_DONE_MAX };
    sqlx::query(
        "DELETE FROM memctl.audit WHERE refused = $1 AND audit_id <= (SELECT audit_id FROM memctl.audit \
         WHERE refused = $1 ORDER BY audit_id DESC LIMIT 1 OFFSET $2)",
    )
    .bind(entry.refused)
    .bind(most.cast_signed())
    .execute(tx)
    .await?;
    Ok(())
}

pub(super) async fn audit(pool: &PgPool, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, Fault> {
    let rows = sqlx::query(
        "SELECT audit_id, time_ns, tenant, caller, peer, action, subject, refused, outcome FROM memctl.audit \
         WHERE $1::text IS NULL OR tenant = $1 ORDER BY audit_id DESC LIMIT $2",
    )
    .bind(scope.name())
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    rows.iter().map(row_reader::audit).collect()
}
