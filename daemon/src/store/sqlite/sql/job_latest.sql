SELECT name, tenant FROM job WHERE ?1 IS NULL OR tenant = ?1 ORDER BY started_ns DESC, job_id DESC LIMIT 1
