// A real subscription of this browser, bound to a stream. Run by Try it.

import { api, pause } from "./kit.js";

const WORKER = "/console/worker.js";
const policy = globalThis.trustedTypes?.createPolicy("penstock-worker", { createScriptURL: () => WORKER });
const FOR_EVER = 2 ** 31 - 1;

/** Subscribe, bind the subscription to a stream and tell what is pushed, until it is stopped; then undo all of it. */
export async function bePushed({ stream }, { signal, tell }) {
  if (!("PushManager" in window && navigator.serviceWorker)) {
    throw new Error("This browser has no PushManager here: it needs https, or a server on its own machine.");
  }
  if (await Notification.requestPermission() !== "granted") {
    throw new Error("This browser does not subscribe: it allows no notifications to this page.");
  }
  const hear = ({ data }) => tell(`pushed: ${data}`);
  const registration = await navigator.serviceWorker.register(policy?.createScriptURL("") ?? WORKER);
  navigator.serviceWorker.addEventListener("message", hear);
  let subscription, bound;
  try {
    subscription = await subscribe(await navigator.serviceWorker.ready);
    tell(`subscribed at ${subscription.endpoint}`);
    const own = new URL(subscription.endpoint).origin === location.origin; // which has receipts
    const body = { subscription: subscription.toJSON(), stream, ttl: 60, receipts: own, allow_private: own };
    bound = await api("POST", "/v1/webpush", { body, signal });
    tell(`bound to ${stream} as ${bound.id}`);
    await pause(FOR_EVER, signal);
  } finally {
    navigator.serviceWorker.removeEventListener("message", hear);
    if (bound) await api("DELETE", `/v1/webpush/${bound.id}`).catch(() => {});
    await subscription?.unsubscribe();
    await registration.unregister();
  }
}

async function subscribe(registration) {
  const { public_key: applicationServerKey } = await api("GET", "/v1/webpush/key");
  try {
    return await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey });
  } catch (error) {
    throw new Error(`This browser does not subscribe (${error.message}). docs/webpush.md has how Firefox does.`);
  }
}
