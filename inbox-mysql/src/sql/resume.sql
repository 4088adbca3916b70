DELETE FROM {paused} WHERE handler = {handler};
