-- The same as chunks_delete.postgres.sql, for the items in the other table.
DELETE FROM memctl.item AS i
USING unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS gone (job_id, session_id, kind, seq)
WHERE i.job_id = gone.job_id AND i.session_id = gone.session_id AND i.kind = gone.kind AND i.seq = gone.seq
RETURNING i.job_id, i.session_id, 0::bigint, i.kind, i.seq, 0::bigint, i.payload_bytes
