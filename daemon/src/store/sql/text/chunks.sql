-- $3..$8: bounds of times, epochs and events. Both bounds of a pair are null if that range is not restricted.
SELECT
    seq, device, first_ns, last_ns, first_event, entries, first_epoch, last_epoch, first_step, last_step,
    allocated_end, reserved_end, allocated_min, allocated_max, reserved_max, ooms, dropped_before, exact, payload_bytes
FROM memctl.chunk
WHERE job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND session_id = $1 AND device = $2
    AND ($3::bigint IS NULL OR (first_ns <= $4 AND last_ns >= $3))
    AND ($5::bigint IS NULL OR (first_epoch <= $6 AND last_epoch >= $5))
    AND ($7::bigint IS NULL OR (first_event <= $8 AND first_event > $7 - greatest(entries, 1)))
ORDER BY seq
