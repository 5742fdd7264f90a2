SELECT name, tenant, run FROM job WHERE ?1 IS NULL OR tenant = ?1 ORDER BY arrived_ns DESC, job_id DESC LIMIT 1
