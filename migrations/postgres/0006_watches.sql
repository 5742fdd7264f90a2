-- What the judge knows of a session after its items up to a number, so that it need not read them again. May be deleted at
-- any time. `form` names the program's form of it: others are not read.
CREATE TABLE memctl.watch (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    form TEXT NOT NULL,
    state BYTEA NOT NULL,
    checksum BIGINT NOT NULL,
    PRIMARY KEY (job_id, session_id)
);

ALTER TABLE memctl.watch ALTER COLUMN state SET STORAGE EXTERNAL;
