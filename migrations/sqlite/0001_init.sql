-- 'memc': says that this file is memctl's.
PRAGMA application_id = 1835363683;

-- AUTOINCREMENT: the key of a deleted job or session never comes back under another name.
CREATE TABLE job (
    job_id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    started_ns INTEGER NOT NULL,
    world_size INTEGER,
    labels BLOB NOT NULL,
    UNIQUE (name, attempt)
) STRICT;

CREATE INDEX job_started ON job (started_ns);

CREATE TABLE session (
    session_id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES job,
    id BLOB NOT NULL UNIQUE,
    rank INTEGER NOT NULL,
    started_ns INTEGER NOT NULL,
    info BLOB NOT NULL,
    durable_seq INTEGER NOT NULL DEFAULT 0,
    heard_ns INTEGER NOT NULL,
    last_word BLOB,
    events INTEGER NOT NULL DEFAULT 0,
    stored_bytes INTEGER NOT NULL DEFAULT 0,
    dropped_ring_full INTEGER NOT NULL DEFAULT 0,
    dropped_spool_full INTEGER NOT NULL DEFAULT 0,
    dropped_shutdown INTEGER NOT NULL DEFAULT 0,
    expired_events INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    missing_items INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX session_job ON session (job_id, rank, started_ns);

CREATE TABLE device (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    device INTEGER NOT NULL,
    info BLOB NOT NULL,
    events INTEGER NOT NULL DEFAULT 0,
    ooms INTEGER NOT NULL DEFAULT 0,
    epochs INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL DEFAULT 0,
    latest BLOB,
    device_used_bytes INTEGER,
    alloc_retries INTEGER,
    PRIMARY KEY (job_id, session_id, device)
) STRICT, WITHOUT ROWID;

CREATE TABLE payload (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (job_id, session_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE chunk (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    device INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,
    first_event INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    first_epoch INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    first_step INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    allocated_end INTEGER NOT NULL,
    reserved_end INTEGER NOT NULL,
    allocated_min INTEGER NOT NULL,
    allocated_max INTEGER NOT NULL,
    reserved_max INTEGER NOT NULL,
    ooms INTEGER NOT NULL,
    dropped_before INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    PRIMARY KEY (job_id, session_id, device, seq)
) STRICT, WITHOUT ROWID;

-- Retention by bytes walks along this: the oldest first.
CREATE INDEX chunk_age ON chunk (last_ns, session_id, seq);

CREATE TABLE item (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    device INTEGER,
    first_ns INTEGER NOT NULL,
    last_ns INTEGER NOT NULL,
    first_event INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    first_epoch INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    first_step INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    unpacked_bytes INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    PRIMARY KEY (job_id, session_id, kind, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE epoch_end (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    device INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    table_seq INTEGER NOT NULL,
    figures BLOB NOT NULL,
    PRIMARY KEY (job_id, session_id, device, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE gap (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (job_id, session_id, first_seq)
) STRICT, WITHOUT ROWID;

-- One row: what is remembered of jobs that are gone.
CREATE TABLE tally (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    expired_events INTEGER NOT NULL
) STRICT;

INSERT INTO tally (only_row, expired_events) VALUES (1, 0);
