-- The shop in PostgreSQL, tuned for speed: a request is one function call, so it takes one round trip and one
-- transaction. There are no foreign keys, tables with updates have a fill factor, and the most contended row is locked last. Indexes are those that the lists of the API need.

CREATE TABLE products (
    product_id text PRIMARY KEY,
    name text NOT NULL,
    category text NOT NULL,
    price bigint NOT NULL,
    description text NOT NULL
);

CREATE TABLE stock (
    product_id text,
    geo_zone text,
    on_hand bigint NOT NULL,
    reserved bigint NOT NULL,
    PRIMARY KEY (product_id, geo_zone),
    CHECK (reserved <= on_hand)
) WITH (fillfactor = 50);

CREATE TABLE stock_ledger (
    product_id text,
    geo_zone text,
    order_id uuid,
    quantity int NOT NULL,
    state text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (product_id, geo_zone, order_id)
);

CREATE TABLE carts (
    cart_id uuid PRIMARY KEY,
    owner_id text NOT NULL,
    status text NOT NULL,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    order_id uuid
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX open_carts ON carts (owner_id) WHERE status = 'active';

CREATE TABLE cart_lines (
    cart_id uuid,
    product_id text,
    quantity int NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (cart_id, product_id)
) WITH (fillfactor = 70);

CREATE TABLE cart_changes (
    owner_id text,
    changed_at timestamptz,
    version bigint,
    product_id text,
    quantity int NOT NULL,
    PRIMARY KEY (owner_id, changed_at, version, product_id)
);

CREATE TABLE orders (
    order_id uuid PRIMARY KEY,
    user_id text NOT NULL,
    geo_zone text NOT NULL,
    status text NOT NULL,
    total bigint NOT NULL,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    pay_by timestamptz NOT NULL
);
CREATE INDEX orders_by_customer ON orders (user_id, created_at);
CREATE INDEX orders_by_zone ON orders (geo_zone, created_at);
CREATE INDEX orders_by_time ON orders (created_at);
CREATE INDEX orders_to_pay ON orders (pay_by) WHERE status = 'created';

CREATE TABLE order_lines (
    order_id uuid,
    product_id text,
    name text NOT NULL,
    price bigint NOT NULL,
    quantity int NOT NULL,
    PRIMARY KEY (order_id, product_id)
);

CREATE TABLE order_events (
    order_id uuid,
    event_no int,
    at timestamptz NOT NULL,
    from_status text,
    to_status text NOT NULL,
    PRIMARY KEY (order_id, event_no)
);

CREATE TABLE idempotency_keys (
    key text PRIMARY KEY,
    fingerprint bytea NOT NULL,
    order_id uuid NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE FUNCTION set_line(owner text, product text, amount int, new_cart uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    cart uuid;
    reached bigint;
BEGIN
    UPDATE carts SET version = version + 1, updated_at = now(), expires_at = now() + interval '30 days'
        WHERE owner_id = owner AND status = 'active'
        RETURNING cart_id, version INTO cart, reached;
    IF NOT FOUND THEN
        INSERT INTO carts VALUES (new_cart, owner, 'active', 1, now(), now(), now() + interval '30 days', NULL)
            RETURNING cart_id, version INTO cart, reached;
    END IF;
    INSERT INTO cart_lines VALUES (cart, product, amount, now())
        ON CONFLICT (cart_id, product_id)
        DO UPDATE SET quantity = excluded.quantity, updated_at = excluded.updated_at;
    INSERT INTO cart_changes VALUES (owner, now(), reached, product, amount);
    RETURN reached;
END $$;

-- All callers pass products in the same order, so that no two orders deadlock.
CREATE FUNCTION place_order(
    request text, print bytea, new_order uuid, buyer text, zone text, wanted text[], amounts int[]
) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    known uuid;
BEGIN
    INSERT INTO idempotency_keys VALUES (request, print, new_order, now()) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT order_id INTO known FROM idempotency_keys WHERE key = request AND fingerprint = print;
        RETURN known;
    END IF;
    WITH lines AS (
        INSERT INTO order_lines
            SELECT new_order, product_id, name, price, quantity
            FROM unnest(wanted, amounts) AS line (product_id, quantity) JOIN products USING (product_id)
            RETURNING price, quantity
    )
    INSERT INTO orders
        SELECT new_order, buyer, zone, 'created', sum(price * quantity), 1, now(), now(), now() + interval '30 minutes'
        FROM lines;
    INSERT INTO order_events VALUES (new_order, 1, now(), NULL, 'created');
    INSERT INTO stock_ledger
        SELECT product_id, zone, new_order, quantity, 'held', now()
        FROM unnest(wanted, amounts) AS line (product_id, quantity);
    FOR at IN 1 .. cardinality(wanted) LOOP
        UPDATE stock SET reserved = reserved + amounts[at]
            WHERE product_id = wanted[at] AND geo_zone = zone AND on_hand - reserved >= amounts[at];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'out of stock: %', wanted[at];
        END IF;
    END LOOP;
    RETURN new_order;
END $$;

CREATE FUNCTION checkout(request text, print bytea, new_order uuid, buyer text, zone text) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    cart uuid;
    wanted text[];
    amounts int[];
BEGIN
    UPDATE carts SET status = 'ordered', version = version + 1, updated_at = now(), order_id = new_order
        WHERE owner_id = buyer AND status = 'active'
        RETURNING cart_id INTO cart;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the cart is empty: %', buyer;
    END IF;
    SELECT array_agg(product_id ORDER BY product_id), array_agg(quantity ORDER BY product_id)
        INTO wanted, amounts
        FROM cart_lines WHERE cart_id = cart;
    RETURN place_order(request, print, new_order, buyer, zone, wanted, amounts);
END $$;
