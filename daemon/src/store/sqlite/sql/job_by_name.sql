SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM job AS other WHERE other.tenant = j.tenant AND other.name = j.name), j.tenant
FROM job AS j
WHERE j.name = ?1 AND (?2 IS NULL OR j.attempt = ?2) AND (?3 IS NULL OR j.tenant = ?3)
ORDER BY j.attempt DESC, j.started_ns DESC LIMIT 1
