-- A trace finds the change of a request by the id in its response.
CREATE INDEX audit_log_request ON audit_log (request_id)
