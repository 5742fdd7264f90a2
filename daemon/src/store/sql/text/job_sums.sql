SELECT
    count(*),
    coalesce(sum(stored_bytes >> 32), 0)::bigint, coalesce(sum(stored_bytes & 4294967295), 0)::bigint,
    coalesce(sum(events >> 32), 0)::bigint, coalesce(sum(events & 4294967295), 0)::bigint,
    coalesce(sum(expired_events >> 32), 0)::bigint, coalesce(sum(expired_events & 4294967295), 0)::bigint,
    (SELECT count(*) FROM memctl.chunk WHERE job_id = $1), coalesce(sum(stored_items), 0)::bigint
FROM memctl.session WHERE job_id = $1
