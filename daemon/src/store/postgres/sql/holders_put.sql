INSERT INTO memctl.holders (job_id, session_id, asked_ns, answer, checksum)
SELECT job_id, session_id, $2, $3, $4 FROM memctl.session WHERE session_id = $1 FOR SHARE
ON CONFLICT (job_id, session_id, asked_ns) DO UPDATE SET answer = excluded.answer, checksum = excluded.checksum
