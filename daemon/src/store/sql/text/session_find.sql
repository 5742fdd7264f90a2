SELECT session_id, job_id, durable_seq, last_word IS NOT NULL, info, owner, secret,
    (SELECT run FROM memctl.job AS j WHERE j.job_id = session.job_id)
FROM memctl.session WHERE id = $1
