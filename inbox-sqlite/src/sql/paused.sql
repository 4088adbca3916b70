SELECT handler FROM {inbox}_paused ORDER BY handler
