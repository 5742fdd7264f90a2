UPDATE session SET
    durable_seq = $2, heard_ns = $3, last_word = $4, events = $5, stored_bytes = $6,
    dropped_ring_full = $7, dropped_spool_full = $8, dropped_shutdown = $9, duplicates = $10, missing_items = $11,
    stored_items = $12, expandable = $13
WHERE session_id = $1
