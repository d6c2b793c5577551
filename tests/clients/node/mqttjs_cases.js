// The cases of test_mqttjs.py. They run on Node and in a web page: what they need is `mqtt`, and
// `connect`, which opens a client that is closed when the case is over.
'use strict';

function equal(actual, expected) {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (left !== right) throw new Error(`${left} is not ${right}`);
}

// Resolves with the next `count` messages of a client.
function collect(client, count) {
  const messages = [];
  return new Promise((resolve) => {
    const take = (topic, payload, packet) => {
      messages.push({ topic, text: payload.toString(), packet });
      if (messages.length === count) {
        client.off('message', take);
        resolve(messages);
      }
    };
    client.on('message', take);
  });
}

const texts = (messages) => messages.map((message) => message.text);
const numbers = (count) => Array.from({ length: count }, (_, number) => String(number));

const cases = {
  async each_qos({ connect, name }) {
    const client = await connect();
    for (const qos of [0, 1, 2]) {
      const [granted] = await client.subscribeAsync(`${name}/${qos}`, { qos });
      equal(granted.qos, qos);
      const arriving = collect(client, 50);
      for (const number of numbers(50)) client.publish(`${name}/${qos}`, number, { qos });
      const messages = await arriving;
      equal(texts(messages), numbers(50));
      equal(messages[0].packet.qos, qos);
    }
  },

  async retained({ connect, name }) {
    const client = await connect();
    await client.publishAsync(name, 'kept', { qos: 1, retain: true });
    const arriving = collect(client, 1);
    await client.subscribeAsync(name, { qos: 1 });
    const [message] = await arriving;
    equal([message.text, message.packet.retain], ['kept', true]);
    await client.publishAsync(name, '', { qos: 1, retain: true });
  },

  async will({ connect, name }) {
    const watcher = await connect();
    await watcher.subscribeAsync(name, { qos: 1 });
    const arriving = collect(watcher, 1);
    const client = await connect({ will: { topic: name, payload: 'gone', qos: 1 } });
    client.stream.destroy();
    equal(texts(await arriving), ['gone']);
  },

  async a_session_waits({ connect, name, kept }) {
    const first = await connect({ ...kept, clientId: name });
    await first.subscribeAsync(name, { qos: 2 });
    await first.endAsync();
    const sender = await connect();
    for (const number of numbers(20)) await sender.publishAsync(name, number, { qos: 2 });
    let arriving;
    const again = await connect({ ...kept, clientId: name }, (client) => {
      arriving = collect(client, 20);
    });
    equal(texts(await arriving), numbers(20));
    await again.unsubscribeAsync(name);
  },

  async a_large_message({ connect, name }) {
    const client = await connect();
    await client.subscribeAsync(name, { qos: 1 });
    const arriving = collect(client, 1);
    await client.publishAsync(name, 'x'.repeat(500000), { qos: 1 });
    equal((await arriving)[0].text.length, 500000);
  },

  async shared({ connect, name }) {
    const members = [await connect(), await connect()];
    const got = [];
    const arriving = new Promise((resolve) => {
      for (const member of members) {
        member.on('message', (_, payload) => {
          got.push(payload.toString());
          if (got.length === 10) resolve();
        });
      }
    });
    for (const member of members) await member.subscribeAsync(`$share/g/${name}`, { qos: 1 });
    const sender = await connect();
    for (const number of numbers(10)) await sender.publishAsync(name, number, { qos: 1 });
    await arriving;
    equal(got.map(Number).sort((a, b) => a - b).map(String), numbers(10));
  },

  async request_and_response_of_5({ connect, name, version }) {
    if (version !== 5) return;
    const [asking, answering] = [await connect(), await connect()];
    answering.on('message', (topic, payload, packet) => {
      const { responseTopic, correlationData } = packet.properties;
      answering.publish(responseTopic, `${payload}!`, { properties: { correlationData } });
    });
    await answering.subscribeAsync(`${name}/questions`);
    await asking.subscribeAsync(`${name}/answers`);
    const arriving = collect(asking, 1);
    await asking.publishAsync(`${name}/questions`, 'what', {
      qos: 1,
      properties: {
        responseTopic: `${name}/answers`,
        correlationData: '17',
        userProperties: { a: ['1', '2'] },
      },
    });
    const [answer] = await arriving;
    equal(answer.text, 'what!');
    equal(answer.packet.properties.correlationData.toString(), '17');
  },

  async topic_aliases_of_5({ connect, name, version }) {
    if (version !== 5) return;
    const client = await connect({
      properties: { topicAliasMaximum: 5 },
      autoAssignTopicAlias: true,
    });
    await client.subscribeAsync(`${name}/#`);
    const arriving = collect(client, 9);
    for (const number of numbers(9)) client.publish(`${name}/${number % 3}`, number);
    const messages = await arriving;
    equal(messages.map(({ topic }) => topic), numbers(9).map((n) => `${name}/${n % 3}`));
    equal(messages[8].packet.properties.topicAlias, 3);
  },
};

// Runs one case. Resolves when it is over and all its clients are closed.
async function run(mqtt, url, wanted, name, version) {
  const clients = [];
  const connect = async (options = {}, prepare = () => {}) => {
    const client = mqtt.connect(url, { protocolVersion: version, reconnectPeriod: 0, ...options });
    clients.push(client);
    prepare(client);
    await new Promise((resolve, reject) => {
      client.once('connect', resolve);
      client.once('error', reject);
    });
    return client;
  };
  const kept = version === 5
    ? { clean: false, properties: { sessionExpiryInterval: 600 } }
    : { clean: false };
  try {
    await cases[wanted]({ connect, name, version, kept });
  } finally {
    for (const client of clients) client.end(true);
  }
}

// Runs all cases; resolves with what came of each.
async function runAll(mqtt, url, name, version) {
  const results = {};
  for (const wanted of Object.keys(cases)) {
    try {
      await run(mqtt, url, wanted, `${name}-${wanted}`, version);
      results[wanted] = 'ok';
    } catch (error) {
      results[wanted] = String(error);
    }
  }
  return results;
}

if (typeof module !== 'undefined') {
  const [, , url, name, version] = process.argv;
  runAll(require('mqtt'), url, name, Number(version)).then((results) => {
    console.log(JSON.stringify(results));
  });
}
