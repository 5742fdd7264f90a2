UPDATE memctl.session SET heard_ns = greatest(heard_ns, $2) WHERE session_id = $1
