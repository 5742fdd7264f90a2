SELECT p.session_id, p.seq
FROM memctl.payload AS p
JOIN memctl.session AS s ON s.job_id = p.job_id AND s.session_id = p.session_id
WHERE s.session_id = ANY($1) AND p.seq > s.durable_seq
