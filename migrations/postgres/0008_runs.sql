-- A job's name is a series of runs: what is launched together is one, restarts of it are its attempts. What was stored
-- before is the first run of its name.
ALTER TABLE memctl.job ADD COLUMN run BIGINT NOT NULL DEFAULT 1;
ALTER TABLE memctl.job ADD COLUMN launch_group TEXT NOT NULL DEFAULT '';
ALTER TABLE memctl.job ADD COLUMN arrived_ns BIGINT NOT NULL DEFAULT 0;
UPDATE memctl.job SET arrived_ns = started_ns;
ALTER TABLE memctl.job DROP CONSTRAINT job_tenant_name_attempt_key;
ALTER TABLE memctl.job ADD UNIQUE (tenant, name, run, attempt);

DROP INDEX memctl.job_tenant;
CREATE INDEX job_arrived ON memctl.job (arrived_ns);
CREATE INDEX job_tenant ON memctl.job (tenant, arrived_ns);

-- Whether the segments of a session are expandable, as its events show; NULL until they do, and in sessions of before.
ALTER TABLE memctl.session ADD COLUMN expandable BIGINT;

-- What started the process of a session, bit-cast.
ALTER TABLE memctl.session ADD COLUMN launcher BIGINT;
CREATE INDEX session_launcher ON memctl.session (launcher) WHERE launcher IS NOT NULL;
