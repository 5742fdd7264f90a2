SELECT job_id FROM memctl.job WHERE job_id = $1 FOR UPDATE
