-- What processes of a job were asked about the holders of tensors, and what came of it: `answer` is a memctl.v1.HoldersAsked,
-- `checksum` its CRC-32C, `asked_ns` when the answer came.
CREATE TABLE memctl.holders (
    job_id BIGINT NOT NULL,
    session_id BIGINT NOT NULL,
    asked_ns BIGINT NOT NULL,
    answer BYTEA NOT NULL,
    checksum BIGINT NOT NULL,
    PRIMARY KEY (job_id, session_id, asked_ns)
);
