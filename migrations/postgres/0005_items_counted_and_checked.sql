-- A checksum beside every payload (CRC-32C; NULL in rows of older versions), and how many items a session has here and
-- had: stored, expired and missing ones are all up to the durable one.
ALTER TABLE memctl.payload ADD COLUMN checksum BIGINT;

ALTER TABLE memctl.session ADD COLUMN stored_items BIGINT NOT NULL DEFAULT 0;
ALTER TABLE memctl.session ADD COLUMN expired_items BIGINT NOT NULL DEFAULT 0;

UPDATE memctl.session AS s SET stored_items = (
    SELECT count(*) FROM memctl.payload AS p WHERE p.job_id = s.job_id AND p.session_id = s.session_id
);

UPDATE memctl.session SET expired_items = greatest(durable_seq - missing_items - stored_items, 0);
