-- A wrong clock recorded a time in the future: the session was heard, so it becomes now.
UPDATE memctl.session SET heard_ns = $1 WHERE heard_ns > $2
