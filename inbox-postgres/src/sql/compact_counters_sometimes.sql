-- Not above read committed, where it would conflict with every other one.
    IF random() < 0.002 AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM {inbox}_compact_counters();
    END IF;
