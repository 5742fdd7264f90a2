UPDATE memctl.tally SET expired_events = expired_events + least($1, 9223372036854775807 - expired_events)
