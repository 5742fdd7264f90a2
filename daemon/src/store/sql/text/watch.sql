SELECT w.seq, w.form, w.state, w.checksum
FROM memctl.session AS s JOIN memctl.watch AS w ON w.job_id = s.job_id AND w.session_id = s.session_id
WHERE s.session_id = $1
