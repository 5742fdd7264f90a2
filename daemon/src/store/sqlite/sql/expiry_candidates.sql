-- CROSS JOIN keeps this order of the tables: along chunk_age, so that the oldest are found without sorting.
SELECT c.job_id, c.session_id, c.device, c.seq, c.entries, c.payload_bytes
FROM chunk AS c CROSS JOIN session AS s
WHERE s.session_id = c.session_id AND (s.last_word IS NOT NULL) = ?1
ORDER BY c.last_ns, c.session_id, c.seq LIMIT ?2
