-- Answers in which life the server is: another after each restart and fail-over.
return server_life() or ''
