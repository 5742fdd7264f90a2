SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM memctl.job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run = j.run),
    j.tenant, j.run,
    EXISTS (SELECT 1 FROM memctl.job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run <> j.run),
    j.arrived_ns
FROM memctl.job AS j
WHERE j.name = $1 AND ($2::bigint IS NULL OR j.attempt = $2) AND ($3::text IS NULL OR j.tenant = $3)
    AND ($4::bigint IS NULL OR j.run = $4)
    AND ($5::bigint IS NULL
        OR EXISTS (SELECT 1 FROM memctl.session AS s WHERE s.job_id = j.job_id AND s.launcher = $5))
ORDER BY j.run DESC, j.attempt DESC, j.started_ns DESC LIMIT 1
