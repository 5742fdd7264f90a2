-- SQLite's alone: Postgres keeps the keys of payloads apart from their bytes by itself.
SELECT 1;
