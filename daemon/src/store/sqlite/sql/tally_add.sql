UPDATE tally SET expired_events = expired_events + min(?1, 9223372036854775807 - expired_events)
