"""The gateway as a client of the request pool: it submits requests, follows their events and recovers what is lost."""
