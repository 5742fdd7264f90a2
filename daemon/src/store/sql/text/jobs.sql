SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM memctl.job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run = j.run),
    j.tenant, j.run,
    EXISTS (SELECT 1 FROM memctl.job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run <> j.run),
    j.arrived_ns
FROM memctl.job AS j
WHERE $2::text IS NULL OR j.tenant = $2
ORDER BY j.arrived_ns DESC, j.job_id DESC LIMIT $1
