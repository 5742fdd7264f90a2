SELECT session_id FROM memctl.session WHERE job_id = $1
