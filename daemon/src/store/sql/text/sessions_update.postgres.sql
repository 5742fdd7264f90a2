UPDATE memctl.session AS s SET
    durable_seq = n.durable_seq, heard_ns = n.heard_ns, last_word = n.last_word, events = n.events,
    stored_bytes = n.stored_bytes, dropped_ring_full = n.dropped_ring_full, dropped_spool_full = n.dropped_spool_full,
    dropped_shutdown = n.dropped_shutdown, duplicates = n.duplicates, missing_items = n.missing_items,
    stored_items = n.stored_items, expandable = n.expandable
FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]
) AS n (
    session_id, durable_seq, heard_ns, last_word, events, stored_bytes, dropped_ring_full, dropped_spool_full,
    dropped_shutdown, duplicates, missing_items, stored_items, expandable
)
WHERE s.session_id = n.session_id
