WITH next AS (
    SELECT i.job_id, i.session_id, i.seq, octet_length(p.bytes) AS size
    FROM memctl.item AS i JOIN memctl.payload AS p ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
    WHERE i.job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND i.session_id = $1
        AND i.kind = $2 AND i.seq > $3
    ORDER BY i.seq
    LIMIT $4
),
page AS (SELECT job_id, session_id, seq, size, SUM(size) OVER (ORDER BY seq) AS upto_bytes FROM next)
SELECT
    i.seq, i.device, i.first_ns, i.last_ns, i.first_event, i.entries, i.first_epoch, i.last_epoch, i.first_step, i.last_step,
    i.kind, i.unpacked_bytes, p.bytes, p.checksum, CAST(n.upto_bytes AS BIGINT)
FROM page AS n
JOIN memctl.item AS i ON i.job_id = n.job_id AND i.session_id = n.session_id AND i.kind = $2 AND i.seq = n.seq
JOIN memctl.payload AS p ON p.job_id = n.job_id AND p.session_id = n.session_id AND p.seq = n.seq
WHERE n.upto_bytes - n.size < $5
ORDER BY i.seq
