IF random() < 0.002 THEN
        PERFORM {fn:fold}();
    END IF;
