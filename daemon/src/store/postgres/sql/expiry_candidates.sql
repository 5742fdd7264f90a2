SELECT c.job_id, c.session_id, c.device, c.seq, c.entries, c.payload_bytes
FROM memctl.chunk AS c CROSS JOIN memctl.session AS s
WHERE s.session_id = c.session_id AND (s.last_word IS NOT NULL) = $1
ORDER BY c.last_ns, c.session_id, c.seq LIMIT $2
