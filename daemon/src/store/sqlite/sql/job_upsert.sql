INSERT INTO job (name, attempt, started_ns, world_size, labels, tenant, run, launch_group, arrived_ns)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (tenant, name, run, attempt) DO UPDATE SET
    started_ns = min(started_ns, excluded.started_ns),
    arrived_ns = min(arrived_ns, excluded.arrived_ns),
    world_size = coalesce(world_size, excluded.world_size),
    labels = CASE WHEN length(labels) = 0 THEN excluded.labels ELSE labels END
RETURNING job_id
