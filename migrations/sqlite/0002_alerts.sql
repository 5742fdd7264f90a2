-- Alerts (kind 1) and silences (kind 2), each changed only by whoever knows its version.
CREATE TABLE alert_record (
    kind INTEGER NOT NULL,
    id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    job TEXT NOT NULL,
    due_ns INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX alert_record_job ON alert_record (job, kind);
CREATE INDEX alert_record_due ON alert_record (kind, due_ns);
