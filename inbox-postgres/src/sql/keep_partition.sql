-- Before a number is drawn, so that its partition cannot be dropped before its row is there.
    LOCK TABLE ONLY {message} IN ROW EXCLUSIVE MODE;
