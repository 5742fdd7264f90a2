SELECT seq, bytes FROM payload
WHERE job_id = (SELECT job_id FROM session WHERE session_id = ?1) AND session_id = ?1 AND seq = ?2
