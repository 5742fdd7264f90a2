-- What processes of a job were asked about the holders of tensors, and what came of it: `answer` is a memctl.v1.HoldersAsked,
-- `checksum` its CRC-32C, `asked_ns` when the answer came: of a job every answer comes after those before it, whatever the
-- clock says. By the other columns it is known which answers have to be read: `finding` is the fingerprint of what was asked
-- about (NULL where a person named the site), `site` 8 bytes of a SHA-256 of its place, both bit-cast; `says` is 0 for no
-- answer, 1 for one without holders, 2 for one with holders; `counted_epoch` is the epoch in which it counted tensors.
CREATE TABLE memctl.holders (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    asked_ns BIGINT NOT NULL,
    finding BIGINT,
    site BIGINT NOT NULL,
    unasked BOOLEAN NOT NULL,
    says BIGINT NOT NULL,
    counted_epoch BIGINT,
    checksum BIGINT NOT NULL,
    answer BYTEA NOT NULL,
    PRIMARY KEY (job_id, session_id, asked_ns)
);
