// Each case is one test of test_amqplib.py: it gets a connection and a name nobody else uses.
'use strict';

const assert = require('node:assert');
const { once } = require('node:events');
const amqp = require('amqplib');

const [, , url, wanted, name] = process.argv;

// Resolves with `count` messages of a consumer.
function collect(channel, queue, count, { ack = true, ...options } = {}) {
  const messages = [];
  return new Promise((resolve, reject) => {
    channel
      .consume(queue, (message) => {
        messages.push(message);
        if (ack && !options.noAck) channel.ack(message);
        if (messages.length === count) resolve(messages);
      }, options)
      .catch(reject);
  });
}

const bodies = (messages) => messages.map((message) => message.content.toString());

// The error a channel or connection ends with.
async function failure(emitter, action) {
  const error = once(emitter, 'error');
  await Promise.resolve(action()).catch(() => {});
  return (await error)[0];
}

const cases = {
  async thousand_confirmed(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { durable: true });
    for (let number = 0; number < 1000; number++) {
      channel.sendToQueue(name, Buffer.from(String(number)), { persistent: true });
    }
    await channel.waitForConfirms();
    const { messageCount } = await channel.checkQueue(name);
    assert.strictEqual(messageCount, 1000);
    await channel.prefetch(50);
    const got = bodies(await collect(channel, name, 1000));
    assert.deepStrictEqual(got, Array.from({ length: 1000 }, (_, number) => String(number)));
  },

  async answers_to_what_was_asked_at_once(connection) {
    const channel = await connection.createChannel();
    const answers = await Promise.all([
      channel.assertQueue(name, { durable: true }),
      channel.get(name),
      channel.bindQueue(name, 'amq.direct', name),
      channel.prefetch(3),
      channel.checkQueue(name),
      channel.purgeQueue(name),
      channel.deleteQueue(name),
    ]);
    assert.strictEqual(answers[0].queue, name);
    assert.strictEqual(answers[1], false);
    assert.strictEqual(answers[4].queue, name);
    assert.strictEqual(answers[6].messageCount, 0);
  },

  async deleted_under_its_consumer(connection) {
    const channel = await connection.createChannel();
    for (let round = 0; round < 10; round++) {
      await channel.assertQueue(name, { durable: true });
      const cancelled = new Promise((resolve) => { channel.consume(name, resolve); });
      assert.strictEqual((await channel.deleteQueue(name)).messageCount, 0);
      assert.strictEqual(await cancelled, null);
    }
  },

  async both_close_a_channel(connection) {
    for (let round = 0; round < 20; round++) {
      const channel = await connection.createChannel();
      channel.on('error', () => {});
      const missing = channel.checkQueue(`${name}-missing`).catch(() => {});
      const closed = channel.close().catch(() => {});
      await Promise.all([missing, closed]);
    }
    const channel = await connection.createChannel();
    assert.strictEqual((await channel.assertQueue(name)).queue, name);
  },

  async properties_and_headers(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name);
    const headers = {
      text: 'grüße', int: 7, negative: -7, long: 2 ** 40, double: 0.5, yes: true, no: false,
      none: null, list: [1, 'two', { three: 3 }], table: { deep: { deeper: [] } },
      bytes: Buffer.from([0, 255]),
      time: { '!': 'timestamp', value: 1700000000 },
      decimal: { '!': 'decimal', value: { digits: 314, places: 2 } },
    };
    const sent = {
      headers, contentType: 'a/b', contentEncoding: 'utf-8', priority: 3, correlationId: 'c',
      replyTo: 'r', expiration: '60000', messageId: 'm', timestamp: 1700000001, type: 't',
      appId: 'a', deliveryMode: 2, userId: 'guest',
    };
    channel.sendToQueue(name, Buffer.alloc(0), sent);
    const [message] = await collect(channel, name, 1);
    assert.strictEqual(message.content.length, 0);
    const { headers: received, ...rest } = message.properties;
    for (const key of Object.keys(headers)) assert.deepStrictEqual(received[key], headers[key], key);
    for (const key of Object.keys(rest)) {
      assert.deepStrictEqual(rest[key], key === 'clusterId' ? undefined : sent[key], key);
    }
  },

  async large_body(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name);
    const body = Buffer.alloc(5_000_000, 'abcdefg');
    channel.sendToQueue(name, body);
    await channel.waitForConfirms();
    const message = await channel.get(name, { noAck: true });
    assert.ok(message.content.equals(body));
  },

  async prefetch(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name);
    for (const body of ['1', '2', '3', '4']) channel.sendToQueue(name, Buffer.from(body));
    await channel.waitForConfirms();
    await channel.prefetch(2);
    const first = await collect(channel, name, 2, { ack: false });
    assert.strictEqual((await channel.checkQueue(name)).messageCount, 2);
    channel.ack(first[1], true);
    while ((await channel.checkQueue(name)).messageCount) { /* the rest is handed out */ }
  },

  async get_and_nack(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name);
    assert.strictEqual(await channel.get(name), false);
    channel.sendToQueue(name, Buffer.from('x'));
    await channel.waitForConfirms();
    const first = await channel.get(name);
    assert.deepStrictEqual([first.fields.redelivered, first.fields.messageCount], [false, 0]);
    channel.nack(first);
    const second = await channel.get(name);
    assert.strictEqual(second.fields.redelivered, true);
    channel.reject(second, false);
    assert.strictEqual(await channel.get(name), false);
  },

  async bindings(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertExchange(`${name}.in`, 'topic');
    await channel.assertExchange(`${name}.out`, 'headers');
    await channel.assertQueue(name, { exclusive: true });
    await channel.bindExchange(`${name}.out`, `${name}.in`, 'a.#');
    await channel.bindQueue(name, `${name}.out`, '', { 'x-match': 'all', kind: 'good' });
    const headers = { kind: 'good' };
    channel.publish(`${name}.in`, 'a.b', Buffer.from('yes'), { headers });
    channel.publish(`${name}.in`, 'a.b', Buffer.from('no'), { headers: { kind: 'bad' } });
    channel.publish(`${name}.in`, 'b', Buffer.from('no'), { headers });
    await channel.waitForConfirms();
    assert.strictEqual((await channel.checkQueue(name)).messageCount, 1);
    await channel.unbindExchange(`${name}.out`, `${name}.in`, 'a.#');
    channel.publish(`${name}.in`, 'a.b', Buffer.from('no'), { headers });
    await channel.waitForConfirms();
    assert.deepStrictEqual(bodies(await collect(channel, name, 1)), ['yes']);
    assert.strictEqual((await channel.checkQueue(name)).messageCount, 0);
  },

  async returned(connection) {
    const channel = await connection.createConfirmChannel();
    const returned = once(channel, 'return');
    channel.sendToQueue(name, Buffer.from('back'), { mandatory: true });
    const [message] = await returned;
    assert.deepStrictEqual([message.fields.replyCode, message.fields.replyText], [312, 'NO_ROUTE']);
    assert.strictEqual(message.content.toString(), 'back');
    await channel.waitForConfirms();
  },

  async nacked(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, {
      maxLength: 1, arguments: { 'x-overflow': 'reject-publish' },
    });
    const outcome = () => new Promise((resolve) => {
      channel.sendToQueue(name, Buffer.from('x'), {}, (error) => resolve(error === null));
    });
    assert.deepStrictEqual([await outcome(), await outcome()], [true, false]);
  },

  async dead_letters(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(`${name}.dead`);
    await channel.assertQueue(name, {
      messageTtl: 20, deadLetterExchange: '', deadLetterRoutingKey: `${name}.dead`, maxPriority: 3,
    });
    channel.sendToQueue(name, Buffer.from('x'));
    const [message] = await collect(channel, `${name}.dead`, 1);
    const [death] = message.properties.headers['x-death'];
    assert.deepStrictEqual([death.reason, death.queue, death.count], ['expired', name, 1]);
  },

  async cancelled(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name);
    const told = new Promise((resolve) => { channel.consume(name, resolve); });
    await channel.deleteQueue(name);
    assert.strictEqual(await told, null);
  },

  async rpc(connection) {
    const server = await connection.createChannel();
    await server.assertQueue(name);
    await server.consume(name, ({ properties, content }) => {
      const { replyTo, correlationId } = properties;
      server.sendToQueue(replyTo, Buffer.from(`re ${content}`), { correlationId });
    }, { noAck: true });
    const client = await connection.createChannel();
    const answers = collect(client, 'amq.rabbitmq.reply-to', 1, { noAck: true });
    const options = { replyTo: 'amq.rabbitmq.reply-to', correlationId: '1' };
    client.sendToQueue(name, Buffer.from('it'), options);
    const [answer] = await answers;
    assert.deepStrictEqual([answer.properties.correlationId, String(answer.content)], ['1', 're it']);
  },

  async channel_errors(connection) {
    const expected = [
      [404, (channel) => channel.checkQueue(name)],
      [404, (channel) => channel.consume(name, () => {})],
      [404, (channel) => channel.publish(name, '', Buffer.alloc(1))],
      [403, (channel) => channel.assertQueue('amq.mine')],
      [406, (channel) => channel.assertExchange('amq.direct', 'fanout')],
      [406, (channel) => channel.ack({ fields: { deliveryTag: 9 } })],
    ];
    for (const [code, action] of expected) {
      const channel = await connection.createChannel();
      assert.strictEqual((await failure(channel, () => action(channel))).code, code);
    }
    await connection.createChannel();  // the connection lives on
  },

  async exclusive_elsewhere(connection) {
    const other = await amqp.connect(url);
    await (await other.createChannel()).assertQueue(name, { exclusive: true });
    const channel = await connection.createChannel();
    assert.strictEqual((await failure(channel, () => channel.checkQueue(name))).code, 405);
    await other.close();
    const again = await connection.createChannel();
    assert.strictEqual((await failure(again, () => again.checkQueue(name))).code, 404);
  },

  async connection_error(connection) {
    const channel = await connection.createChannel();
    channel.on('error', () => {});
    const error = await failure(connection, () => channel.assertExchange(name, 'no-such-type'));
    assert.strictEqual(error.code, 503);
    return 'closed';
  },

  async refused() {
    const wrong = url.replace('guest:guest', 'guest:wrong');
    await assert.rejects(amqp.connect(wrong), /403|ACCESS.REFUSED/i);
    await assert.rejects(amqp.connect(`${url}/nowhere`), /ConnectionClose/);
  },

  async heartbeats() {
    const connection = await amqp.connect(`${url}?heartbeat=1`);
    let beats = 0;
    await new Promise((resolve, reject) => {
      connection.on('error', reject);
      const accept = connection.connection.accept;
      connection.connection.accept = function (frame) {
        if (frame.channel === 0 && frame.id === undefined && ++beats === 2) resolve();
        return accept.call(this, frame);
      };
    });
    await connection.close();
  },
};

async function main() {
  const connection = await amqp.connect(url);
  if (await cases[wanted](connection) !== 'closed') await connection.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
