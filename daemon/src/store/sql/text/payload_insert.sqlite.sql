INSERT INTO payload (job_id, session_id, seq, bytes, checksum) VALUES ($1, $2, $3, $4, $5)
