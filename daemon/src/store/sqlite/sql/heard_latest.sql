SELECT max(heard_ns) FROM session WHERE heard_ns <= ?1
