-- Alerts (kind 1) and silences (kind 2), each changed only by whoever knows its version.
CREATE TABLE memctl.alert_record (
    kind BIGINT NOT NULL,
    id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    job TEXT NOT NULL,
    due_ns BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (kind, id)
);

CREATE INDEX alert_record_job ON memctl.alert_record (job, kind);
CREATE INDEX alert_record_due ON memctl.alert_record (kind, due_ns);
