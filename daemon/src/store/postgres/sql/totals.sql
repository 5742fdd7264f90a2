-- Sums in two halves: one of many may not fit 63 bits.
SELECT
    (SELECT count(*) FROM memctl.job), count(*),
    coalesce(sum(events >> 32), 0)::bigint, coalesce(sum(events & 4294967295), 0)::bigint,
    coalesce(sum(stored_bytes >> 32), 0)::bigint, coalesce(sum(stored_bytes & 4294967295), 0)::bigint,
    coalesce(sum(duplicates >> 32), 0)::bigint, coalesce(sum(duplicates & 4294967295), 0)::bigint,
    coalesce(sum(missing_items >> 32), 0)::bigint, coalesce(sum(missing_items & 4294967295), 0)::bigint,
    coalesce(sum(expired_events >> 32), 0)::bigint, coalesce(sum(expired_events & 4294967295), 0)::bigint,
    (SELECT expired_events FROM memctl.tally)
FROM memctl.session
