INSERT INTO memctl.gap (job_id, session_id, first_seq, last_seq)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
