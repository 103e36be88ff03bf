-- A trace begins with what the payment provider calls the payment.
CREATE INDEX by_payment ON drop_orders (payment)
