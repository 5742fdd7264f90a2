INSERT INTO memctl.job AS j (name, attempt, started_ns, world_size, labels, tenant) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, name, attempt) DO UPDATE SET
    started_ns = least(j.started_ns, excluded.started_ns),
    world_size = coalesce(j.world_size, excluded.world_size),
    labels = CASE WHEN length(j.labels) = 0 THEN excluded.labels ELSE j.labels END
RETURNING job_id
