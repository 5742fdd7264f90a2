SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM job AS other WHERE other.name = j.name)
FROM job AS j
ORDER BY j.started_ns DESC, j.job_id DESC LIMIT ?1
