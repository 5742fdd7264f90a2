-- $2: a JSON array of numbers, as in items_at.sqlite.sql.
SELECT p.seq, p.bytes, wanted.key AS place
FROM json_each($2) AS wanted
    CROSS JOIN payload AS p
        ON p.job_id = (SELECT job_id FROM session WHERE session_id = $1) AND p.session_id = $1 AND p.seq = wanted.value
