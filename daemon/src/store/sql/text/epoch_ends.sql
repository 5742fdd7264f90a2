SELECT session_id, table_seq, figures FROM memctl.epoch_end WHERE job_id = $1
ORDER BY session_id, device, time_ns, epoch
