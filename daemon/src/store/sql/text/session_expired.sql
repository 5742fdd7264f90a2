UPDATE memctl.session SET
    stored_bytes = greatest(stored_bytes - $2, 0),
    stored_items = greatest(stored_items - $4, 0),
    expired_items = expired_items + $4,
    expired_events = expired_events + least($3, 9223372036854775807 - expired_events)
WHERE session_id = $1
