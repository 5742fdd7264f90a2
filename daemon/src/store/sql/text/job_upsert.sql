-- Returns no row if a new run must begin and another writer has just begun it.
INSERT INTO memctl.job AS j (name, attempt, started_ns, world_size, labels, tenant, run, launch_group, arrived_ns)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (tenant, name, run, attempt) DO UPDATE SET
    started_ns = least(j.started_ns, excluded.started_ns),
    arrived_ns = least(j.arrived_ns, excluded.arrived_ns),
    world_size = coalesce(j.world_size, excluded.world_size),
    labels = CASE WHEN length(j.labels) = 0 THEN excluded.labels ELSE j.labels END
WHERE $10
RETURNING job_id
