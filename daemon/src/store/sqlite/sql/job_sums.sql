SELECT
    count(*),
    coalesce(sum(stored_bytes >> 32), 0), coalesce(sum(stored_bytes & 4294967295), 0),
    coalesce(sum(events >> 32), 0), coalesce(sum(events & 4294967295), 0),
    coalesce(sum(expired_events >> 32), 0), coalesce(sum(expired_events & 4294967295), 0),
    (SELECT count(*) FROM chunk WHERE job_id = ?1), coalesce(sum(stored_items), 0)
FROM session WHERE job_id = ?1
