// Gets what is pushed to this browser, and gives it to the open pages of the console; to nobody, it is a notification.

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("push", (event) => {
  const text = event.data?.text() ?? "";
  event.waitUntil((async () => {
    const pages = await self.clients.matchAll({ includeUncontrolled: true });
    pages.forEach((page) => page.postMessage(text));
    if (!pages.length) await self.registration.showNotification("Penstock", { body: text });
  })());
});
