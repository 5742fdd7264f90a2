SELECT job_id FROM session WHERE session_id = ?1
