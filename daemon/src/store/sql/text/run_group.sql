SELECT
    coalesce(max(j.attempt), 0),
    min(CASE WHEN j.attempt = $4 THEN j.started_ns END), max(CASE WHEN j.attempt = $4 THEN j.world_size END),
    EXISTS (SELECT 1 FROM memctl.job AS k JOIN memctl.session AS s ON s.job_id = k.job_id
        WHERE k.tenant = $1 AND k.name = $2 AND k.run = $3 AND k.attempt = $4 AND s.rank = $5),
    EXISTS (SELECT 1 FROM memctl.job AS k JOIN memctl.session AS s ON s.job_id = k.job_id
        WHERE k.tenant = $1 AND k.name = $2 AND k.run = $3 AND k.attempt = $4 AND s.last_word IS NULL
            AND s.heard_ns >= $6)
FROM memctl.job AS j WHERE j.tenant = $1 AND j.name = $2 AND j.run = $3
