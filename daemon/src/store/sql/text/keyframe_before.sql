-- The key is selected first and the bytes afterwards, because sorting with the bytes would read the bytes of every
-- keyframe.
SELECT
    i.seq, i.device, i.first_ns, i.last_ns, i.first_event, i.entries, i.first_epoch, i.last_epoch, i.first_step, i.last_step,
    i.kind, i.unpacked_bytes, p.bytes, p.checksum
FROM memctl.item AS i JOIN memctl.payload AS p ON p.job_id = i.job_id AND p.session_id = i.session_id AND p.seq = i.seq
WHERE i.job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND i.session_id = $1 AND i.kind = $2 AND i.seq = (
    SELECT k.seq FROM memctl.item AS k
    WHERE k.job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND k.session_id = $1 AND k.kind = $2
        AND k.device = $3 AND k.first_event <= $4
    ORDER BY k.first_event DESC, k.seq DESC LIMIT 1
)
