SELECT handler FROM {paused} ORDER BY handler;
