-- Sums stop at 2^63 - 1, because beyond it SQLite would switch to floating point.
INSERT INTO device (
    job_id, session_id, device, info, events, ooms, epochs, steps, latest, device_used_bytes, alloc_retries
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (job_id, session_id, device) DO UPDATE SET
    events = events + min(excluded.events, 9223372036854775807 - events),
    ooms = ooms + min(excluded.ooms, 9223372036854775807 - ooms),
    epochs = epochs + min(excluded.epochs, 9223372036854775807 - epochs),
    steps = steps + min(excluded.steps, 9223372036854775807 - steps),
    latest = coalesce(excluded.latest, latest),
    device_used_bytes = coalesce(excluded.device_used_bytes, device_used_bytes),
    alloc_retries = coalesce(excluded.alloc_retries, alloc_retries)
