-- What processes of a job were asked about the holders of tensors, and what came of it: `answer` is a memctl.v1.HoldersAsked,
-- `checksum` its CRC-32C, `asked_ns` when the answer came.
CREATE TABLE holders (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    asked_ns INTEGER NOT NULL,
    answer BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (job_id, session_id, asked_ns)
) STRICT, WITHOUT ROWID;
