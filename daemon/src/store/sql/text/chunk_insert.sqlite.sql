INSERT INTO chunk (
    job_id, session_id, device, seq, first_ns, last_ns, first_event, entries,
    first_epoch, last_epoch, first_step, last_step,
    allocated_end, reserved_end, allocated_min, allocated_max, reserved_max, ooms, dropped_before, exact, payload_bytes
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
