-- Serializes the choice of a run within a series. In a series without a row, the insertion decides.
SELECT job_id FROM memctl.job WHERE tenant = $1 AND name = $2 ORDER BY job_id LIMIT 1 FOR UPDATE
