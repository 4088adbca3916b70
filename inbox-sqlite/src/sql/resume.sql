DELETE FROM {inbox}_paused WHERE handler = ?1
