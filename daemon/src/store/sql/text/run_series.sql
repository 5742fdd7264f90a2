SELECT
    (SELECT max(run) FROM memctl.job WHERE tenant = $1 AND name = $2),
    (SELECT max(j.run) FROM memctl.job AS j JOIN memctl.session AS s ON s.job_id = j.job_id
        WHERE j.tenant = $1 AND j.name = $2 AND s.launcher = $3::bigint),
    (SELECT max(run) FROM memctl.job WHERE tenant = $1 AND name = $2 AND launch_group = $4)
