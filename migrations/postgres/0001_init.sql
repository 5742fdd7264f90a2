-- Everything lies in the schema memctl, which exists already when this runs.

CREATE TABLE memctl.job (
    job_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    started_ns BIGINT NOT NULL,
    world_size BIGINT,
    labels BYTEA NOT NULL,
    UNIQUE (name, attempt)
);

CREATE INDEX job_started ON memctl.job (started_ns);

CREATE TABLE memctl.session (
    session_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id BIGINT NOT NULL REFERENCES memctl.job,
    id BYTEA NOT NULL UNIQUE,
    rank BIGINT NOT NULL,
    started_ns BIGINT NOT NULL,
    info BYTEA NOT NULL,
    durable_seq BIGINT NOT NULL DEFAULT 0,
    heard_ns BIGINT NOT NULL,
    last_word BYTEA,
    events BIGINT NOT NULL DEFAULT 0,
    stored_bytes BIGINT NOT NULL DEFAULT 0,
    dropped_ring_full BIGINT NOT NULL DEFAULT 0,
    dropped_spool_full BIGINT NOT NULL DEFAULT 0,
    dropped_shutdown BIGINT NOT NULL DEFAULT 0,
    expired_events BIGINT NOT NULL DEFAULT 0,
    duplicates BIGINT NOT NULL DEFAULT 0,
    missing_items BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX session_job ON memctl.session (job_id, rank, started_ns);

CREATE TABLE memctl.device (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    device BIGINT NOT NULL,
    info BYTEA NOT NULL,
    events BIGINT NOT NULL DEFAULT 0,
    ooms BIGINT NOT NULL DEFAULT 0,
    epochs BIGINT NOT NULL DEFAULT 0,
    steps BIGINT NOT NULL DEFAULT 0,
    latest BYTEA,
    device_used_bytes BIGINT,
    alloc_retries BIGINT,
    PRIMARY KEY (job_id, session_id, device)
);

CREATE TABLE memctl.payload (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    bytes BYTEA NOT NULL,
    PRIMARY KEY (job_id, session_id, seq)
);

-- Payloads are compressed already: stored out of line as they are, Postgres does not try again.
ALTER TABLE memctl.payload ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE memctl.chunk (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    device BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    first_ns BIGINT NOT NULL,
    last_ns BIGINT NOT NULL,
    first_event BIGINT NOT NULL,
    entries BIGINT NOT NULL,
    first_epoch BIGINT NOT NULL,
    last_epoch BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    last_step BIGINT NOT NULL,
    allocated_end BIGINT NOT NULL,
    reserved_end BIGINT NOT NULL,
    allocated_min BIGINT NOT NULL,
    allocated_max BIGINT NOT NULL,
    reserved_max BIGINT NOT NULL,
    ooms BIGINT NOT NULL,
    dropped_before BIGINT NOT NULL,
    exact BOOLEAN NOT NULL,
    payload_bytes BIGINT NOT NULL,
    PRIMARY KEY (job_id, session_id, device, seq)
);

-- Retention by bytes walks along this: the oldest first.
CREATE INDEX chunk_age ON memctl.chunk (last_ns, session_id, seq);

CREATE TABLE memctl.item (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    kind BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    device BIGINT,
    first_ns BIGINT NOT NULL,
    last_ns BIGINT NOT NULL,
    first_event BIGINT NOT NULL,
    entries BIGINT NOT NULL,
    first_epoch BIGINT NOT NULL,
    last_epoch BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    last_step BIGINT NOT NULL,
    unpacked_bytes BIGINT NOT NULL,
    payload_bytes BIGINT NOT NULL,
    PRIMARY KEY (job_id, session_id, kind, seq)
);

CREATE TABLE memctl.epoch_end (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    device BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    time_ns BIGINT NOT NULL,
    table_seq BIGINT NOT NULL,
    figures BYTEA NOT NULL,
    PRIMARY KEY (job_id, session_id, device, epoch)
);

CREATE TABLE memctl.gap (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    PRIMARY KEY (job_id, session_id, first_seq)
);

-- One row: what is remembered of jobs that are gone.
CREATE TABLE memctl.tally (
    only_row BIGINT PRIMARY KEY CHECK (only_row = 1),
    expired_events BIGINT NOT NULL
);

INSERT INTO memctl.tally (only_row, expired_events) VALUES (1, 0);
