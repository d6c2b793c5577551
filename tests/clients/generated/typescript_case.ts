// What a program with a generated TypeScript client does: publish, consume, acknowledge.
// node typescript_case.js URL TOPIC
import createClient from "openapi-fetch";
import type { paths } from "./braid_api";

declare const process: { argv: string[]; exit(code: number): never };

const [url, topic] = process.argv.slice(2) as [string, string];
const api = createClient<paths>({
  baseUrl: url,
  headers: { Authorization: "Basic Z3Vlc3Q6Z3Vlc3Q=" },
});

function check(holds: boolean, what: string): asserts holds {
  if (!holds) throw new Error(what);
}

async function main(): Promise<void> {
  await api.PUT("/v1/topics/{topic}", {
    params: { path: { topic } },
    body: { settings: { partitions: 1 } },
  });
  const there = { path: { topic, subscription: "s" } };
  await api.PUT("/v1/topics/{topic}/subscriptions/{subscription}", { params: there, body: {} });
  const placed = await api.POST("/v1/topics/{topic}/messages", {
    params: { path: { topic } },
    body: { value: "hello", key: "k" },
  });
  check(placed.data?.offset === 0, JSON.stringify(placed.error));
  const found = await api.POST("/v1/topics/{topic}/subscriptions/{subscription}/receive", {
    params: there,
    body: { limit: 10 },
  });
  check(found.data?.messages[0]?.value === "hello", JSON.stringify(found.error));
  const receipts = found.data.messages.map((each) => each.receipt as string);
  const acked = await api.POST("/v1/receipts/ack", { body: { receipts } });
  check(acked.data?.count === 1, JSON.stringify(acked.error));
  const left = await api.GET("/v1/topics/{topic}/subscriptions/{subscription}", { params: there });
  check(left.data?.in_flight === 0 && left.data.lag === 0, "it was not acknowledged");
  await api.PUT("/v1/topics/{topic}", { params: { path: { topic: topic + "-2" } }, body: {} });
  const page = await api.GET("/v1/topics", { params: { query: { limit: 1 } } });
  check(page.response.headers.has("braid-next"), "a second page");
  const unknown = await api.GET("/v1/topics/{topic}", { params: { path: { topic: topic + "-no" } } });
  check(unknown.error?.code === "unknown-topic", "a problem document");
  console.log("done");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
