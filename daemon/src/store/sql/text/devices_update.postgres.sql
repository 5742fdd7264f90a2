-- Sums stop at 2^63 - 1 instead of failing.
INSERT INTO memctl.device AS d (
    job_id, session_id, device, info, events, ooms, epochs, steps, latest, device_used_bytes, alloc_retries
)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bytea[], $10::bigint[], $11::bigint[]
)
ON CONFLICT (job_id, session_id, device) DO UPDATE SET
    events = d.events + least(excluded.events, 9223372036854775807 - d.events),
    ooms = d.ooms + least(excluded.ooms, 9223372036854775807 - d.ooms),
    epochs = d.epochs + least(excluded.epochs, 9223372036854775807 - d.epochs),
    steps = d.steps + least(excluded.steps, 9223372036854775807 - d.steps),
    latest = coalesce(excluded.latest, d.latest),
    device_used_bytes = coalesce(excluded.device_used_bytes, d.device_used_bytes),
    alloc_retries = coalesce(excluded.alloc_retries, d.alloc_retries)
