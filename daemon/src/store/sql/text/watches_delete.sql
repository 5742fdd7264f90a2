DELETE FROM memctl.watch WHERE job_id = $1 RETURNING length(state)::bigint
