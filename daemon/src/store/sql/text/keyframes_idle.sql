-- The keyframes before the one that the first remaining chunk of the device needs. If no chunk remains, the last
-- keyframe is kept.
SELECT seq, payload_bytes FROM memctl.item
WHERE job_id = $1 AND session_id = $2 AND kind = $3 AND device = $4 AND seq < (
    SELECT max(k.seq) FROM memctl.item AS k
    WHERE k.job_id = $1 AND k.session_id = $2 AND k.kind = $3 AND k.device = $4 AND k.first_event <= coalesce(
        (SELECT min(c.first_event) FROM memctl.chunk AS c WHERE c.job_id = $1 AND c.session_id = $2 AND c.device = $4),
        9223372036854775807
    )
)
