SELECT
    (SELECT max(run) FROM job WHERE tenant = ?1 AND name = ?2),
    (SELECT max(j.run) FROM job AS j JOIN session AS s ON s.job_id = j.job_id
        WHERE j.tenant = ?1 AND j.name = ?2 AND s.launcher = ?3),
    (SELECT max(run) FROM job WHERE tenant = ?1 AND name = ?2 AND launch_group = ?4)
