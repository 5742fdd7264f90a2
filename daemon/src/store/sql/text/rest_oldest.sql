-- The oldest marks (2), site tables (4) and samples (6) of a job, except the last one of each kind in each session.
SELECT i.job_id, i.session_id, 0::bigint, i.kind, i.seq, 0::bigint, i.payload_bytes
FROM memctl.item AS i
WHERE i.job_id = $1 AND i.kind IN (2, 4, 6) AND i.seq < (
    SELECT max(l.seq) FROM memctl.item AS l WHERE l.job_id = i.job_id AND l.session_id = i.session_id AND l.kind = i.kind
)
ORDER BY i.last_ns, i.session_id, i.seq LIMIT $2
