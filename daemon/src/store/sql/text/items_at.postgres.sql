-- All kinds in this table are listed, because the kind is part of the key.
SELECT
    i.seq, i.device, i.first_ns, i.last_ns, i.first_event, i.entries, i.first_epoch, i.last_epoch, i.first_step, i.last_step,
    i.kind, i.unpacked_bytes, p.bytes, p.checksum, wanted.place
FROM unnest($2::bigint[]) WITH ORDINALITY AS wanted (seq, place)
JOIN memctl.item AS i ON i.seq = wanted.seq AND i.kind IN (2, 3, 4, 5, 6, 7)
JOIN memctl.payload AS p ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
WHERE i.job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND i.session_id = $1
