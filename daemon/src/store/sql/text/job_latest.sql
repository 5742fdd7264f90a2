SELECT name, tenant, run FROM memctl.job WHERE $1::text IS NULL OR tenant = $1 ORDER BY arrived_ns DESC, job_id DESC LIMIT 1
