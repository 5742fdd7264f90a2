INSERT INTO memctl.chunk (
    job_id, session_id, device, seq, first_ns, last_ns, first_event, entries,
    first_epoch, last_epoch, first_step, last_step,
    allocated_end, reserved_end, allocated_min, allocated_max, reserved_max, ooms, dropped_before, exact, payload_bytes
)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::boolean[], $21::bigint[]
)
