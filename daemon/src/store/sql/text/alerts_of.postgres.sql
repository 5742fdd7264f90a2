SELECT kind, id, version, job, due_ns, body, tenant FROM memctl.alert_record WHERE kind = 1 AND id = ANY($1)
