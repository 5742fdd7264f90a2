-- Sums in two halves: one of many may not fit 63 bits.
SELECT
    (SELECT count(*) FROM job), count(*),
    coalesce(sum(events >> 32), 0), coalesce(sum(events & 4294967295), 0),
    coalesce(sum(stored_bytes >> 32), 0), coalesce(sum(stored_bytes & 4294967295), 0),
    coalesce(sum(duplicates >> 32), 0), coalesce(sum(duplicates & 4294967295), 0),
    coalesce(sum(missing_items >> 32), 0), coalesce(sum(missing_items & 4294967295), 0),
    coalesce(sum(expired_events >> 32), 0), coalesce(sum(expired_events & 4294967295), 0),
    (SELECT expired_events FROM tally)
FROM session
