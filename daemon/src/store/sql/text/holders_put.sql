-- Two answers have the same time only at the maximum of the clock.
INSERT INTO memctl.holders (job_id, session_id, asked_ns, finding, site, unasked, says, counted_epoch, checksum, answer)
SELECT job_id, session_id, $2, $3, $4, $5, $6, $7, $8, $9 FROM memctl.session WHERE session_id = $1 FOR SHARE
ON CONFLICT (job_id, session_id, asked_ns) DO UPDATE SET
    finding = excluded.finding, site = excluded.site, unasked = excluded.unasked, says = excluded.says,
    counted_epoch = excluded.counted_epoch, checksum = excluded.checksum, answer = excluded.answer
