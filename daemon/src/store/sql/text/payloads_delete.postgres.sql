DELETE FROM memctl.payload AS p
USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS gone (job_id, session_id, seq)
WHERE p.job_id = gone.job_id AND p.session_id = gone.session_id AND p.seq = gone.seq
