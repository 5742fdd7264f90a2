-- Sums are returned in two halves, because a large sum may not fit 63 bits.
SELECT
    (SELECT count(*) FROM memctl.job WHERE $1::text IS NULL OR tenant = $1), count(*),
    coalesce(sum(events >> 32), 0)::bigint, coalesce(sum(events & 4294967295), 0)::bigint,
    coalesce(sum(stored_bytes >> 32), 0)::bigint, coalesce(sum(stored_bytes & 4294967295), 0)::bigint,
    coalesce(sum(duplicates >> 32), 0)::bigint, coalesce(sum(duplicates & 4294967295), 0)::bigint,
    coalesce(sum(missing_items >> 32), 0)::bigint, coalesce(sum(missing_items & 4294967295), 0)::bigint,
    coalesce(sum(expired_events >> 32), 0)::bigint, coalesce(sum(expired_events & 4294967295), 0)::bigint,
    -- Sums of removed jobs belong to no tenant, so only the sums over all tenants include them.
    CASE WHEN $1::text IS NULL THEN (SELECT expired_events FROM memctl.tally) ELSE 0 END
FROM memctl.session
WHERE $1::text IS NULL OR job_id IN (SELECT job_id FROM memctl.job WHERE tenant = $1)
