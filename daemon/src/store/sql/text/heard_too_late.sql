-- A wrong clock recorded a time in the future. The session was heard from, so the time becomes now.
UPDATE memctl.session SET heard_ns = $1 WHERE heard_ns > $2
