SELECT j.job_id FROM memctl.job AS j
WHERE coalesce((SELECT max(heard_ns) FROM memctl.session AS s WHERE s.job_id = j.job_id), j.started_ns) < $1
ORDER BY j.started_ns, j.job_id
