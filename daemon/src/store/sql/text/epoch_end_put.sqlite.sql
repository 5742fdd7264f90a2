INSERT INTO epoch_end (job_id, session_id, device, epoch, time_ns, table_seq, figures) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (job_id, session_id, device, epoch) DO UPDATE SET
    time_ns = excluded.time_ns, table_seq = excluded.table_seq, figures = excluded.figures
