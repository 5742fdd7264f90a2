-- What the judge knows of a session after its items up to a number, so that it need not read them again. May be deleted at
-- any time. `form` names the program's form of it: others are not read.
CREATE TABLE watch (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    form TEXT NOT NULL,
    state BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (job_id, session_id)
) STRICT, WITHOUT ROWID;
