-- The oldest, where a session has more than are kept.
DELETE FROM memctl.holders
WHERE job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND session_id = $1 AND asked_ns < (
    SELECT asked_ns FROM memctl.holders
    WHERE job_id = (SELECT job_id FROM memctl.session WHERE session_id = $1) AND session_id = $1
    ORDER BY asked_ns DESC LIMIT 1 OFFSET $2
)
