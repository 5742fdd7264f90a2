INSERT INTO memctl.watch (job_id, session_id, seq, form, state, checksum)
SELECT job_id, session_id, $2, $3, $4, $5 FROM memctl.session WHERE session_id = $1 FOR SHARE
ON CONFLICT (job_id, session_id) DO UPDATE SET
    seq = excluded.seq, form = excluded.form, state = excluded.state, checksum = excluded.checksum
