-- A checksum beside every payload (CRC-32C; NULL in rows of older versions), and how many items a session has here and
-- had: stored, expired and missing ones are all up to the durable one.
ALTER TABLE payload ADD COLUMN checksum INTEGER;

ALTER TABLE session ADD COLUMN stored_items INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN expired_items INTEGER NOT NULL DEFAULT 0;

UPDATE session SET stored_items = (
    SELECT count(*) FROM payload WHERE payload.job_id = session.job_id AND payload.session_id = session.session_id
);

UPDATE session SET expired_items = max(durable_seq - missing_items - stored_items, 0);
