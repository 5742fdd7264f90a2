SELECT session_id, job_id, durable_seq, last_word IS NOT NULL, info, owner, secret FROM memctl.session WHERE id = $1
