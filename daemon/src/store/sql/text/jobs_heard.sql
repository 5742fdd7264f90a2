SELECT j.job_id, j.name, j.attempt, j.started_ns, j.world_size, j.labels,
    (SELECT count(*) FROM memctl.job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run = j.run),
    j.tenant, j.run,
    EXISTS (SELECT 1 FROM memctl.job AS other WHERE other.tenant = j.tenant AND other.name = j.name AND other.run <> j.run),
    j.arrived_ns
FROM memctl.job AS j
JOIN (SELECT s.job_id, max(s.heard_ns) AS heard_ns FROM memctl.session AS s GROUP BY s.job_id) AS heard
    ON heard.job_id = j.job_id
WHERE heard.heard_ns >= $1
ORDER BY heard.heard_ns DESC, j.job_id DESC LIMIT $2
