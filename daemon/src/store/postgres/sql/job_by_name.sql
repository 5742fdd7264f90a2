SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM memctl.job AS other WHERE other.name = j.name)
FROM memctl.job AS j
WHERE j.name = $1 AND ($2::bigint IS NULL OR j.attempt = $2)
ORDER BY j.attempt DESC LIMIT 1
