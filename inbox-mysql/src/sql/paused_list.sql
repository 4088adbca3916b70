SELECT handler FROM {paused} ORDER BY handler {all_rows};
