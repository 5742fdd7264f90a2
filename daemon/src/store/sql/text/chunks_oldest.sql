-- A job's oldest chunks, those of ended sessions first. A running session's latest chunk of each device stays.
SELECT c.job_id, c.session_id, c.device, 1::bigint, c.seq, c.entries, c.payload_bytes
FROM memctl.chunk AS c JOIN memctl.session AS s ON s.session_id = c.session_id
WHERE c.job_id = $1 AND (s.last_word IS NOT NULL OR c.seq < (
    SELECT max(l.seq) FROM memctl.chunk AS l
    WHERE l.job_id = c.job_id AND l.session_id = c.session_id AND l.device = c.device
))
ORDER BY s.last_word IS NULL, c.last_ns, c.session_id, c.seq LIMIT $2
