-- Jobs belong to tenants, and a name is unique within its tenant alone.
ALTER TABLE memctl.job ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';
ALTER TABLE memctl.job DROP CONSTRAINT job_name_attempt_key;
ALTER TABLE memctl.job ADD UNIQUE (tenant, name, attempt);

CREATE INDEX job_tenant ON memctl.job (tenant, started_ns);
CREATE INDEX job_name ON memctl.job (name);

-- Who opened a session, and the hash of the secret that a later stream of it has to bring; without one, only the same
-- caller goes on with it.
ALTER TABLE memctl.session ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE memctl.session ADD COLUMN secret BYTEA;

ALTER TABLE memctl.alert_record ADD COLUMN tenant TEXT NOT NULL DEFAULT 'default';

-- Tokens: of the secret only its hash. Revoked ones stay for a while, so that it is known that there were any.
CREATE TABLE memctl.access_token (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    tenant TEXT NOT NULL,
    jobs TEXT NOT NULL,
    secret BYTEA NOT NULL,
    created_ns BIGINT NOT NULL,
    expires_ns BIGINT,
    revoked_ns BIGINT
);

-- Who did what.
CREATE TABLE memctl.audit (
    audit_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time_ns BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    caller TEXT NOT NULL,
    peer TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    refused BOOLEAN NOT NULL,
    outcome TEXT NOT NULL
);

CREATE INDEX audit_kept ON memctl.audit (refused, audit_id);
CREATE INDEX audit_tenant ON memctl.audit (tenant, audit_id);
