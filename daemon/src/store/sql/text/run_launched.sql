SELECT s.info FROM memctl.session AS s JOIN memctl.job AS j ON j.job_id = s.job_id
WHERE j.tenant = $1 AND j.name = $2 AND j.run = $3 AND s.launcher = $4
