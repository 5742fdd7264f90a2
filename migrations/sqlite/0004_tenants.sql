-- Jobs belong to tenants, and a name is unique within its tenant alone. SQLite changes a constraint only with the whole
-- table. Sessions refer to it: what is said of them is checked at the end of the transaction.
PRAGMA defer_foreign_keys = ON;

CREATE TABLE job_before AS SELECT * FROM job;

CREATE TABLE job_highest AS
SELECT coalesce(max(seq), 0) AS seq FROM sqlite_sequence WHERE name = 'job';

DROP TABLE job;

CREATE TABLE job (
    job_id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    started_ns INTEGER NOT NULL,
    world_size INTEGER,
    labels BLOB NOT NULL,
    tenant TEXT NOT NULL DEFAULT 'default',
    UNIQUE (tenant, name, attempt)
) STRICT;

INSERT INTO job (job_id, name, attempt, started_ns, world_size, labels)
SELECT job_id, name, attempt, started_ns, world_size, labels FROM job_before;

-- The key of a deleted job never comes back.
DELETE FROM sqlite_sequence WHERE name = 'job';
INSERT INTO sqlite_sequence (name, seq) SELECT 'job', seq FROM job_highest;

DROP TABLE job_before;
DROP TABLE job_highest;

CREATE INDEX job_started ON job (started_ns);
CREATE INDEX job_tenant ON job (tenant, started_ns);
CREATE INDEX job_name ON job (name);

-- Who opened a session, and the hash of the secret that a later stream of it has to bring; without one, only the same
-- caller goes on with it.
ALTER TABLE session ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN secret BLOB;

ALTER TABLE alert_record ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';

-- Tokens: of the secret only its hash. Revoked ones stay for a while, so that it is known that there were any.
CREATE TABLE access_token (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    tenant TEXT NOT NULL,
    jobs TEXT NOT NULL,
    secret BLOB NOT NULL,
    created_ns INTEGER NOT NULL,
    expires_ns INTEGER,
    revoked_ns INTEGER
) STRICT;

-- Who did what.
CREATE TABLE audit (
    audit_id INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ns INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    caller TEXT NOT NULL,
    peer TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    refused INTEGER NOT NULL,
    outcome TEXT NOT NULL
) STRICT;

CREATE INDEX audit_kept ON audit (refused, audit_id);
CREATE INDEX audit_tenant ON audit (tenant, audit_id);
