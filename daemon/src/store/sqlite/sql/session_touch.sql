UPDATE session SET heard_ns = max(heard_ns, ?2) WHERE session_id = ?1
