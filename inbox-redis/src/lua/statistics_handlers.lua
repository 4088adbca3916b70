-- Answers the handlers that have messages here, each with a state.
return call('HKEYS', counts)
