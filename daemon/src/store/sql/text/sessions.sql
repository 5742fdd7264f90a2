SELECT
    session_id, job_id, durable_seq, heard_ns, last_word, events, stored_bytes,
    dropped_ring_full, dropped_spool_full, dropped_shutdown, expired_events, duplicates, missing_items, stored_items,
    expandable, info
FROM memctl.session WHERE job_id = $1
ORDER BY rank, started_ns, session_id
