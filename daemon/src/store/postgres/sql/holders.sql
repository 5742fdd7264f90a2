SELECT session_id, asked_ns, answer, checksum FROM memctl.holders WHERE job_id = $1 ORDER BY session_id, asked_ns
