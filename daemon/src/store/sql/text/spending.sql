-- The bytes and rows of everything that each job has stored, and which job it is.
SELECT
    j.job_id, j.tenant, coalesce(max(s.heard_ns), j.started_ns),
    coalesce(max(CASE WHEN s.last_word IS NULL THEN s.heard_ns END), 0),
    coalesce(sum(s.stored_bytes), 0)::bigint, coalesce(sum(s.stored_items), 0)::bigint, count(s.session_id),
    coalesce(sum(length(s.info)), 0)::bigint,
    (SELECT count(*) FROM memctl.epoch_end AS e WHERE e.job_id = j.job_id),
    (SELECT coalesce(sum(length(e.figures)), 0)::bigint FROM memctl.epoch_end AS e WHERE e.job_id = j.job_id),
    (SELECT count(*) FROM memctl.device AS d WHERE d.job_id = j.job_id)
        + (SELECT count(*) FROM memctl.gap AS g WHERE g.job_id = j.job_id)
        + (SELECT count(*) FROM memctl.holders AS h WHERE h.job_id = j.job_id),
    (SELECT coalesce(sum(length(w.state)), 0)::bigint FROM memctl.watch AS w WHERE w.job_id = j.job_id),
    (SELECT coalesce(sum(length(h.answer)), 0)::bigint FROM memctl.holders AS h WHERE h.job_id = j.job_id),
    j.name, j.run, j.attempt, j.started_ns
FROM memctl.job AS j LEFT JOIN memctl.session AS s ON s.job_id = j.job_id
GROUP BY j.job_id, j.tenant, j.started_ns, j.name, j.run, j.attempt
ORDER BY j.job_id
