SELECT session_id, info, events, ooms, epochs, steps, latest, device_used_bytes, alloc_retries
FROM memctl.device WHERE job_id = $1
ORDER BY session_id, device
