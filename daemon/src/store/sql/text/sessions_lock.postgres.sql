-- The order is the same everywhere, so that two transactions cannot deadlock.
SELECT
    session_id, job_id, durable_seq, heard_ns, last_word, events, stored_bytes,
    dropped_ring_full, dropped_spool_full, dropped_shutdown, expired_events, duplicates, missing_items, stored_items,
    expandable
FROM memctl.session WHERE session_id = ANY($1)
ORDER BY session_id FOR UPDATE
