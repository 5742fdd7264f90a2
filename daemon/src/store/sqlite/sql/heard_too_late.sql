-- Heard by a clock that went wrong: what counts is that it was heard.
UPDATE session SET heard_ns = ?1 WHERE heard_ns > ?2
