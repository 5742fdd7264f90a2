INSERT INTO session (job_id, id, rank, started_ns, info, heard_ns) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
RETURNING session_id
