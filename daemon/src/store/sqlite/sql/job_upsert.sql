INSERT INTO job (name, attempt, started_ns, world_size, labels, tenant) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (tenant, name, attempt) DO UPDATE SET
    started_ns = min(started_ns, excluded.started_ns),
    world_size = coalesce(world_size, excluded.world_size),
    labels = CASE WHEN length(labels) = 0 THEN excluded.labels ELSE labels END
RETURNING job_id
