-- A job's name is a series of runs: what is launched together is one, restarts of it are its attempts. What was stored
-- before is the first run of its name. SQLite changes a constraint only with the whole table.
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
    run INTEGER NOT NULL DEFAULT 1,
    launch_group TEXT NOT NULL DEFAULT '',
    arrived_ns INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, name, run, attempt)
) STRICT;

INSERT INTO job (job_id, name, attempt, started_ns, world_size, labels, tenant, arrived_ns)
SELECT job_id, name, attempt, started_ns, world_size, labels, tenant, started_ns FROM job_before;

-- The key of a deleted job never comes back.
DELETE FROM sqlite_sequence WHERE name = 'job';
INSERT INTO sqlite_sequence (name, seq) SELECT 'job', seq FROM job_highest;

DROP TABLE job_before;
DROP TABLE job_highest;

CREATE INDEX job_started ON job (started_ns);
CREATE INDEX job_arrived ON job (arrived_ns);
CREATE INDEX job_tenant ON job (tenant, arrived_ns);
CREATE INDEX job_name ON job (name);

-- Whether the segments of a session are expandable, as its events show; NULL until they do, and in sessions of before.
ALTER TABLE session ADD COLUMN expandable INTEGER;

-- What started the process of a session, bit-cast.
ALTER TABLE session ADD COLUMN launcher INTEGER;
CREATE INDEX session_launcher ON session (launcher) WHERE launcher IS NOT NULL;
