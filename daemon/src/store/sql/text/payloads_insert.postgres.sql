INSERT INTO memctl.payload (job_id, session_id, seq, bytes, checksum)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
