SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM memctl.job AS other WHERE other.name = j.name)
FROM memctl.job AS j
ORDER BY j.started_ns DESC, j.job_id DESC LIMIT $1
