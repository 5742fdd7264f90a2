SELECT seq FROM payload WHERE job_id = $1 AND session_id = $2 AND seq > $3
