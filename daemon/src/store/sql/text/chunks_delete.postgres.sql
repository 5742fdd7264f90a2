-- Chunks that another daemon has deleted in the meantime are not counted again.
DELETE FROM memctl.chunk AS c
USING unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS gone (job_id, session_id, device, seq)
WHERE c.job_id = gone.job_id AND c.session_id = gone.session_id AND c.device = gone.device AND c.seq = gone.seq
RETURNING c.job_id, c.session_id, c.device, 1::bigint, c.seq, c.entries, c.payload_bytes
