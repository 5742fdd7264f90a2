SELECT DISTINCT tenant FROM memctl.job WHERE name = $1 ORDER BY tenant LIMIT 16
