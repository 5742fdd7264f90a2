INSERT INTO memctl.epoch_end (job_id, session_id, device, epoch, time_ns, table_seq, figures)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[])
ON CONFLICT (job_id, session_id, device, epoch) DO UPDATE SET
    time_ns = excluded.time_ns, table_seq = excluded.table_seq, figures = excluded.figures
