DELETE FROM memctl.holders WHERE job_id = $1 AND session_id = $2 AND asked_ns = $3
