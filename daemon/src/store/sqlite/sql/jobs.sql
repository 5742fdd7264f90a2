SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run = j.run),
    j.tenant, j.run,
    EXISTS (SELECT 1 FROM job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run <> j.run),
    j.arrived_ns
FROM job AS j
WHERE ?2 IS NULL OR j.tenant = ?2
ORDER BY j.arrived_ns DESC, j.job_id DESC LIMIT ?1
