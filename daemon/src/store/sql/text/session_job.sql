SELECT job_id FROM memctl.session WHERE session_id = $1
