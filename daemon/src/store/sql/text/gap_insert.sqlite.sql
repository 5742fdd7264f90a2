INSERT INTO gap (job_id, session_id, first_seq, last_seq) VALUES ($1, $2, $3, $4)
