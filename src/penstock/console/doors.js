// The doors there are. `sign` is a path of the API that is described only while the door is open.

import { api } from "./kit.js";

export const DOORS = [
  { id: "v1", title: "Penstock's API", sign: "/v1/tail",
    about: "Any HTTP client: publish with POST, follow with a response that stays open." },
  { id: "sps", title: "sps", sign: "/v1/tokens",
    about: "A wire to every device, for users and rooms: EventSource, or lines." },
  { id: "msgstream", title: "Message stream", sign: "/v1/sessions",
    about: "Packs for a session that stay until they are confirmed: WebSocket or polling." },
  { id: "webpush", title: "Web Push", sign: "/v1/webpush",
    about: "A push service for browsers, and a sender to any other." },
  { id: "trickle", title: "Trickle", sign: "/v1/channels",
    about: "Live segments that are read while they are written." },
  { id: "eventhorizon", title: "Event Horizon", sign: "/v1/pushers",
    about: "Streams and subscriptions, pushed into apps that keep their own position." },
];

let description; // of the API, once for all who ask

/** Whether a door is open on this server. */
export async function isOpen(door) {
  description ??= api("GET", "/openapi.json");
  try {
    return door.sign in (await description).paths;
  } catch (error) {
    description = undefined;
    throw error;
  }
}
