DELETE FROM watch WHERE job_id = ?1 RETURNING length(state)
