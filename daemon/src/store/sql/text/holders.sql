SELECT session_id, asked_ns, finding, site, unasked, says, counted_epoch, length(answer)::bigint, answer, checksum
FROM memctl.holders WHERE job_id = $1 AND session_id = $2 AND asked_ns = $3
