INSERT INTO item (
    job_id, session_id, kind, seq, device, first_ns, last_ns, first_event, entries,
    first_epoch, last_epoch, first_step, last_step, unpacked_bytes, payload_bytes
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
