-- A filter by actor also finds the subject of an operator of the issuer
CREATE INDEX audit_log_subject ON audit_log (subject, number)
