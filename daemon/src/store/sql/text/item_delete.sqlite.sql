DELETE FROM item WHERE job_id = $1 AND session_id = $2 AND kind = $3 AND seq = $4
