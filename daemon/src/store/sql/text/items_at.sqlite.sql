-- $2 is a JSON array of numbers, which drives the query. Each number is looked up by the whole key, including the kind
-- (2 to 7 are all kinds in this table). With CROSS JOIN, SQLite keeps this order of loops. The reader sorts the rows,
-- because sorting here would sort the bytes too.
SELECT
    i.seq, i.device, i.first_ns, i.last_ns, i.first_event, i.entries, i.first_epoch, i.last_epoch, i.first_step, i.last_step,
    i.kind, i.unpacked_bytes, p.bytes, p.checksum, wanted.key AS place
FROM json_each($2) AS wanted
    CROSS JOIN item AS i
        ON i.job_id = (SELECT job_id FROM session WHERE session_id = $1) AND i.session_id = $1
            AND i.kind IN (2, 3, 4, 5, 6, 7) AND i.seq = wanted.value
    CROSS JOIN payload AS p ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
