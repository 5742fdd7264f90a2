-- Payloads of tens of kilobytes lay in the tree of their own key. SQLite reads a whole row to compare its key in such a
-- tree, so finding one payload read a dozen. Now the keys have a small tree of their own.
CREATE TABLE payload_by_number (
    payload_id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    UNIQUE (job_id, session_id, seq)
) STRICT;

INSERT INTO payload_by_number (job_id, session_id, seq, bytes)
SELECT job_id, session_id, seq, bytes FROM payload;

DROP TABLE payload;

ALTER TABLE payload_by_number RENAME TO payload;
