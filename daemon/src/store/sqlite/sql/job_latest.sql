SELECT name FROM job ORDER BY started_ns DESC, job_id DESC LIMIT 1
