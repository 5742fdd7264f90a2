SELECT max(heard_ns) FROM memctl.session WHERE heard_ns <= $1
