SELECT s.info FROM session AS s JOIN job AS j ON j.job_id = s.job_id
WHERE j.tenant = ?1 AND j.name = ?2 AND j.run = ?3 AND s.launcher = ?4
