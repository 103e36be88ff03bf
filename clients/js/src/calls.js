// The requests of the gateway, by name. The offline queue stores what these return.

const id = encodeURIComponent;
const get = (path, query) => ({ method: "GET", path, query });
const post = (path, body, query) => ({ method: "POST", path, body, query });

export const reads = {
  me: () => get("/v1/me"),
  home: () => get("/v1/home"),
  clientConfig: () => get("/v1/client-config"),
  accounts: () => get("/v1/accounts"),
  entitlements: (params) => get("/v1/entitlements", params),
  "tickets.list": () => get("/v1/matchmaking/tickets"),
  "tickets.get": (ticket) => get(`/v1/matchmaking/tickets/${id(ticket)}`),
  "parties.get": () => get("/v1/parties"),
  "inbox.list": (params) => get("/v1/notifications", params),
  "inbox.counts": () => get("/v1/notifications/counts"),
  "inbox.get": (notification) => get(`/v1/notifications/${id(notification)}`),
  "drops.list": () => get("/v1/drops"),
  "drops.get": (drop) => get(`/v1/drops/${id(drop)}`),
  "drops.place": (drop) => get(`/v1/drops/${id(drop)}/place`),
  "drops.stock": (drop, params) => get(`/v1/drops/${id(drop)}/stock`, params),
  "orders.list": (params) => get("/v1/orders", params),
  "orders.get": (order) => get(`/v1/orders/${id(order)}`),
};

// Changes, which the offline queue may send too.
export const changes = {
  "tickets.create": (body) => post("/v1/matchmaking/tickets", body),
  "tickets.cancel": (ticket) => ({ method: "DELETE", path: `/v1/matchmaking/tickets/${id(ticket)}` }),
  "tickets.accept": (ticket) => post(`/v1/matchmaking/tickets/${id(ticket)}/accept`),
  "tickets.decline": (ticket) => post(`/v1/matchmaking/tickets/${id(ticket)}/decline`),
  "parties.create": (body) => post("/v1/parties", body),
  "parties.join": (body) => post("/v1/parties/join", body),
  "parties.invite": (body) => post("/v1/parties/invitations", body),
  "parties.accept": (party, body) => post(`/v1/parties/invitations/${id(party)}/accept`, body),
  "parties.decline": (party) => post(`/v1/parties/invitations/${id(party)}/decline`),
  "parties.leave": () => post("/v1/parties/leave"),
  "parties.kick": (body) => post("/v1/parties/kick", body),
  "parties.handOver": (body) => post("/v1/parties/leader", body),
  "parties.setMember": (body) => post("/v1/parties/member", body),
  "parties.queue": (body) => post("/v1/parties/ticket", body),
  "parties.cancel": () => ({ method: "DELETE", path: "/v1/parties/ticket" }),
  "inbox.mark": (body) => post("/v1/notifications/mark", body),
  "drops.join": (drop, params) => post(`/v1/drops/${id(drop)}/join`, undefined, params),
  "drops.leave": (drop) => post(`/v1/drops/${id(drop)}/leave`),
  "drops.reserve": (drop, body) => post(`/v1/drops/${id(drop)}/reservations`, body),
  "drops.release": (drop, reservation) => ({
    method: "DELETE",
    path: `/v1/drops/${id(drop)}/reservations/${id(reservation)}`,
  }),
  "drops.pay": (drop, reservation, params) =>
    post(`/v1/drops/${id(drop)}/reservations/${id(reservation)}/pay`, undefined, params),
};
