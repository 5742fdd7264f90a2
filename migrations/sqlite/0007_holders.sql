-- What processes of a job were asked about the holders of tensors, and what came of it: `answer` is a memctl.v1.HoldersAsked,
-- `checksum` its CRC-32C, `asked_ns` when the answer came: of a job every answer comes after those before it, whatever the
-- clock says. By the other columns it is known which answers have to be read: `finding` is the fingerprint of what was asked
-- about (NULL where a person named the site), `site` 8 bytes of a SHA-256 of its place, both bit-cast; `says` is 0 for no
-- answer, 1 for one without holders, 2 for one with holders; `counted_epoch` is the epoch in which it counted tensors.
CREATE TABLE holders (
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    asked_ns INTEGER NOT NULL,
    finding INTEGER,
    site INTEGER NOT NULL,
    unasked INTEGER NOT NULL,
    says INTEGER NOT NULL,
    counted_epoch INTEGER,
    checksum INTEGER NOT NULL,
    answer BLOB NOT NULL,
    PRIMARY KEY (job_id, session_id, asked_ns)
) STRICT, WITHOUT ROWID;
