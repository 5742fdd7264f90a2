SELECT kind, id, version, job, due_ns, body, tenant FROM alert_record WHERE kind = 1 AND id IN (SELECT value FROM json_each($1))
