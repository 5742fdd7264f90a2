SELECT session_id, first_seq, last_seq FROM memctl.gap WHERE job_id = $1 ORDER BY session_id, first_seq
