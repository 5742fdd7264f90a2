SELECT p.seq, p.bytes, wanted.place
FROM unnest($2::bigint[]) WITH ORDINALITY AS wanted (seq, place)
JOIN memctl.payload AS p ON p.seq = wanted.seq
WHERE p.job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND p.session_id = $1
