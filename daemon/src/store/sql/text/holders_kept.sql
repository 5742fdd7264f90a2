-- The indexes of a job's answers, oldest first.
SELECT session_id, asked_ns, finding, site, unasked, says, counted_epoch, length(answer)::bigint
FROM memctl.holders WHERE job_id = $1 ORDER BY asked_ns, session_id
