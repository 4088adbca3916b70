-- At a stricter level all statements see what was there when the first one began, not what was
    -- committed before they got their locks.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs a transaction at read committed'
            USING ERRCODE = '{refusal}';
    END IF;
