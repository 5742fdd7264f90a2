-- $4..$9: bounds of times, epochs and events. Both bounds of a pair are null if that range is not restricted.
SELECT
    i.seq, i.device, i.first_ns, i.last_ns, i.first_event, i.entries, i.first_epoch, i.last_epoch, i.first_step, i.last_step,
    i.kind, i.unpacked_bytes, p.bytes, p.checksum
FROM memctl.item AS i JOIN memctl.payload AS p ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
WHERE i.job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND i.session_id = $1 AND i.kind = $2
    AND ($3::bigint IS NULL OR i.device = $3)
    AND ($4::bigint IS NULL OR (i.first_ns <= $5 AND i.last_ns >= $4))
    AND ($6::bigint IS NULL OR (i.first_epoch <= $7 AND i.last_epoch >= $6))
    AND ($8::bigint IS NULL OR i.device IS NULL OR (i.first_event <= $9 AND i.first_event >= $8))
ORDER BY i.seq
