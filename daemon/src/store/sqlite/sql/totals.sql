-- Sums in two halves: a large sum may not fit 63 bits.
SELECT
    (SELECT count(*) FROM job WHERE ?1 IS NULL OR tenant = ?1), count(*),
    coalesce(sum(events >> 32), 0), coalesce(sum(events & 4294967295), 0),
    coalesce(sum(stored_bytes >> 32), 0), coalesce(sum(stored_bytes & 4294967295), 0),
    coalesce(sum(duplicates >> 32), 0), coalesce(sum(duplicates & 4294967295), 0),
    coalesce(sum(missing_items >> 32), 0), coalesce(sum(missing_items & 4294967295), 0),
    coalesce(sum(expired_events >> 32), 0), coalesce(sum(expired_events & 4294967295), 0),
    -- Sums of removed jobs belong to no tenant: only the sums over everything include them.
    CASE WHEN ?1 IS NULL THEN (SELECT expired_events FROM tally) ELSE 0 END
FROM session
WHERE ?1 IS NULL OR job_id IN (SELECT job_id FROM job WHERE tenant = ?1)
