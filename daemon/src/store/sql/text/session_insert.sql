-- Returns no row if another writer has just inserted the same id.
INSERT INTO memctl.session (job_id, id, rank, started_ns, info, heard_ns, owner, secret, launcher) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO NOTHING
RETURNING session_id
