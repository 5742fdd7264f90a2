DELETE FROM chunk WHERE job_id = $1 AND session_id = $2 AND device = $3 AND seq = $4
