INSERT INTO memctl.device (job_id, session_id, device, info) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
