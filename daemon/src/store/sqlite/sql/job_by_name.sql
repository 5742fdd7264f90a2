SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM job AS other WHERE other.name = j.name)
FROM job AS j
WHERE j.name = ?1 AND (?2 IS NULL OR j.attempt = ?2)
ORDER BY j.attempt DESC LIMIT 1
