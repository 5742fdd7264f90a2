SELECT session_id, asked_ns, finding, site, unasked, says, counted_epoch, length(answer), answer, checksum
FROM holders WHERE job_id = ?1 AND session_id = ?2 AND asked_ns = ?3
