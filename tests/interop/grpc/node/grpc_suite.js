// Scenarios of the official gRPC client for Node.js: grpc_suite.js HOST:PORT RUN PARALLEL NAME...
//
// Topic RUN_NAME and group RUN_NAME_G exist already. One line of JSON per scenario: scenario, ok, ms,
// detail, counts, observed. The same checks as in the suites of the other languages.
'use strict';

const assert = require('node:assert');
const { randomBytes } = require('node:crypto');
const { setTimeout: pause } = require('node:timers/promises');
const {
  ConsumeResult, FilterExpression, LitePushConsumerBuilder, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js');

const TIMEOUT_MS = 300_000;
const TAGS = ['A', 'B', 'C'];
const SQL = "TAGS IN ('A','C') AND i BETWEEN 0 AND 1000";
const QUIET = { info() {}, debug() {}, close() {}, warn: console.error, error: console.error };

const same = (expected, found, what) => assert.deepStrictEqual(found, expected, what);
const numbers = (end, which = () => true) =>
  new Set([...Array(end).keys()].filter(which).map(String));
const idOf = view => view.properties.get('i');
const ids = views => new Set(views.map(idOf));
const has = (found, wanted) => [...wanted].every(id => found.has(id));

async function errorOf(call) {
  try {
    await call();
  } catch (error) {
    return error.constructor.name;
  }
  return 'no error';
}

/** What a push consumer was given, in order of arrival. */
class Sink {
  constructor(answer = () => ConsumeResult.SUCCESS) {
    this.answer = answer;
    this.views = [];
    this.first = new Map();
    this.last = Date.now();
  }

  async consume(view) {
    const answer = this.answer(view);
    if (answer === undefined) return ConsumeResult.FAILURE; // not counted
    this.views.push(view);
    this.last = Date.now();
    if (!this.first.has(idOf(view))) this.first.set(idOf(view), this.last);
    return answer;
  }

  async wait(seconds, what, enough) {
    const deadline = Date.now() + seconds * 1000;
    while (!enough(this.views)) {
      assert(Date.now() < deadline,
        `not within ${seconds} s: ${what}; arrived ${[...ids(this.views)].sort()}`);
      await pause(20);
    }
  }

  waitIds(seconds, wanted) {
    return this.wait(seconds, `${[...wanted].sort()}`, views => has(ids(views), wanted));
  }

  async waitQuiet(millis) {
    while (Date.now() < this.last + millis) await pause(20);
  }
}

/** One run of one scenario: its topic and group, its clients, what it saw. */
class Case {
  constructor(endpoints, topic) {
    this.topic = topic;
    this.group = `${topic}_G`;
    this.counts = {};
    this.observed = {};
    this.added = new Set();
    this.options = {
      endpoints, namespace: '', sslEnabled: false, requestTimeout: 10_000, logger: QUIET,
    };
    this.clients = [];
  }

  observe(what, value) {
    this.observed[what] = String(value);
  }

  /** So many different ones and no others; what came twice is counted: a stalled machine allows it. */
  exactly(number, views) {
    same(number, ids(views).size, 'messages');
    if (views.length > number) this.counts.twice = views.length - number;
  }

  async started(client) {
    await client.startup();
    this.clients.push(client);
    return client;
  }

  async close() {
    for (const client of this.clients.reverse()) {
      try {
        await (client.shutdown ? client.shutdown() : client.close());
      } catch (error) {
        console.error('closing:', error);
      }
    }
  }

  producer(checker) {
    return this.started(new Producer({ ...this.options, topics: [this.topic], checker }));
  }

  async push(sink, filter = '*') {
    await this.started(new PushConsumer({
      ...this.options, consumerGroup: this.group, subscriptions: new Map([[this.topic, filter]]),
      messageListener: sink,
    }));
    return sink;
  }

  simple(filter = '*') {
    return this.started(new SimpleConsumer({
      ...this.options, consumerGroup: this.group, subscriptions: new Map([[this.topic, filter]]),
      awaitDuration: 5000,
    }));
  }

  message(i, more = {}) {
    return {
      topic: this.topic, tag: 'A', keys: [`k${i}`], body: Buffer.from(`body ${i} \u00fc\u4e2d`),
      properties: new Map([['i', String(i)]]), ...more,
    };
  }

  checkContents(view) {
    const i = idOf(view);
    same(`body ${i} \u00fc\u4e2d`, view.body.toString(), 'body');
    same(this.topic, view.topic, 'topic');
    same([`k${i}`], view.keys, 'keys');
    assert(!view.corrupted, `checksum of ${i}`);
    assert(view.bornHost && view.bornTimestamp, 'no birth');
    for (const name of view.properties.keys()) if (name !== 'i') this.added.add(name);
  }
}

async function drain(consumer, wanted, seconds) {
  const found = [];
  const deadline = Date.now() + seconds * 1000;
  while (ids(found).size < wanted) {
    assert(Date.now() < deadline, `${ids(found).size} of ${wanted} after ${seconds} s`);
    for (const view of await consumer.receive(16, 20_000)) {
      found.push(view);
      await consumer.ack(view);
    }
  }
  return found;
}

async function one(consumer, seconds, invisible) {
  const deadline = Date.now() + seconds * 1000;
  while (Date.now() < deadline) {
    const [view] = await consumer.receive(1, invisible);
    if (view) return view;
  }
  throw new assert.AssertionError({ message: `nothing received within ${seconds} s` });
}

async function sendTagged(c) {
  const producer = await c.producer();
  for (let i = 0; i < 30; i++) await producer.send(c.message(i, { tag: TAGS[i % 3] }));
}

async function pushFiltered(c, filter) {
  const sink = await c.push(new Sink(), filter);
  await sendTagged(c);
  await sink.waitIds(45, numbers(30, i => i % 3 !== 1));
  await sink.waitQuiet(1000);
  c.exactly(20, sink.views);
  sink.views.forEach(view => c.checkContents(view));
}

async function simpleFiltered(c, filter) {
  const consumer = await c.simple(filter);
  await sendTagged(c);
  const found = await drain(consumer, 20, 60);
  same(numbers(30, i => i % 3 !== 1), new Set([...ids(found)].sort((a, b) => a - b)), 'messages');
  found.forEach(view => c.checkContents(view));
}

async function sendGroups(c, groups, each) {
  const producer = await c.producer();
  for (let i = 0; i < groups * each; i++) {
    await producer.send(c.message(i, { messageGroup: `g${i % groups}` }));
  }
}

function checkOrder(views, groups) {
  const last = new Map();
  const seen = new Set();
  for (const view of views) {
    const i = Number(idOf(view));
    if (seen.has(i)) continue;
    seen.add(i);
    same(`g${i % groups}`, view.messageGroup, 'message group');
    assert((last.get(view.messageGroup) ?? -1) < i, `${i} after ${last.get(view.messageGroup)}`);
    last.set(view.messageGroup, i);
  }
}

const TABLE = {
  async 'send-normal'(c) {
    const producer = await c.producer();
    const sent = new Map();
    for (let i = 0; i < 12; i++) sent.set(String(i), (await producer.send(c.message(i))).messageId);
    const flying = [...Array(12).keys()].map(i => producer.send(c.message(i + 12)));
    (await Promise.all(flying)).forEach((receipt, i) => sent.set(String(i + 12), receipt.messageId));
    const large = randomBytes(300_000);
    await producer.send({ topic: c.topic, body: large, properties: new Map([['i', 'large']]) });
    for (const view of await drain(await c.simple(), 25, 60)) {
      if (idOf(view) === 'large') {
        assert(view.body.equals(large), 'the large body came back changed');
        continue;
      }
      c.checkContents(view);
      same('A', view.tag, 'tag');
      same(sent.get(idOf(view)), view.messageId, 'message id');
      c.observe('delivery attempt', view.deliveryAttempt);
    }
  },

  async push(c) {
    const sink = await c.push(new Sink());
    const producer = await c.producer();
    for (let i = 0; i < 60; i++) await producer.send(c.message(i));
    await sink.waitIds(45, numbers(60));
    await sink.waitQuiet(1000);
    c.exactly(60, sink.views);
    sink.views.forEach(view => c.checkContents(view));
  },

  async 'push-retry'(c) {
    const sink = await c.push(new Sink(view => (
      idOf(view) === '0' || view.deliveryAttempt === 1
        ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS)));
    const producer = await c.producer();
    for (let i = 0; i < 4; i++) await producer.send(c.message(i));
    await sink.wait(80, 'nine attempts', views => views.length >= 9);
    await sink.waitQuiet(8000);
    const attempts = {};
    for (const view of sink.views) {
      c.checkContents(view);
      const found = attempts[idOf(view)] ??= [];
      if (!found.includes(view.deliveryAttempt)) found.push(view.deliveryAttempt);
    }
    same({ 0: [1, 2, 3], 1: [1, 2], 2: [1, 2], 3: [1, 2] }, attempts, 'attempts');
  },

  'push-tags': c => pushFiltered(c, new FilterExpression('A || C', FilterType.TAG)),
  'push-sql92': c => pushFiltered(c, new FilterExpression(SQL, FilterType.SQL)),
  'simple-tags': c => simpleFiltered(c, new FilterExpression('A || C', FilterType.TAG)),
  'simple-sql92': c => simpleFiltered(c, new FilterExpression(SQL, FilterType.SQL)),

  async 'push-fifo'(c) {
    const sink = await c.push(new Sink());
    await sendGroups(c, 5, 8);
    await sink.waitIds(60, numbers(40));
    await sink.waitQuiet(1000);
    c.exactly(40, sink.views);
    checkOrder(sink.views, 5);
    sink.views.forEach(view => c.checkContents(view));
  },

  async 'push-fifo-retry'(c) {
    const failed = new Set();
    const sink = await c.push(new Sink(view => {
      if (Number(idOf(view)) < 4 && !failed.has(idOf(view))) {
        failed.add(idOf(view));
        return undefined;
      }
      return ConsumeResult.SUCCESS;
    }));
    await sendGroups(c, 2, 6);
    await sink.waitIds(80, numbers(12));
    await sink.waitQuiet(1000);
    c.exactly(12, sink.views);
    checkOrder(sink.views, 2);
  },

  async simple(c) {
    const consumer = await c.simple();
    const producer = await c.producer();
    for (let i = 0; i < 20; i++) await producer.send(c.message(i));
    const acknowledged = new Set();
    const left = new Set();
    const deadline = Date.now() + 90_000;
    while (acknowledged.size + left.size < 20) {
      assert(Date.now() < deadline, `only ${acknowledged.size} and ${left.size} came`);
      for (const view of await consumer.receive(8, 10_000)) {
        c.checkContents(view);
        if (Number(idOf(view)) % 4) {
          await consumer.ack(view);
          acknowledged.add(idOf(view));
        } else {
          left.add(idOf(view));
        }
      }
    }
    const again = await drain(consumer, 5, 90);
    same([...left].sort(), [...ids(again)].sort(), 'came again');
    for (const view of again) {
      c.checkContents(view);
      assert(view.deliveryAttempt > 1, `attempt ${view.deliveryAttempt}`);
    }
  },

  async 'simple-invisible'(c) {
    const consumer = await c.simple();
    await (await c.producer()).send(c.message(0));
    const first = await one(consumer, 90, 60_000);
    const before = Date.now();
    await consumer.changeInvisibleDuration(first, 3000);
    const second = await one(consumer, 90, 10_000);
    const took = Date.now() - before;
    c.counts['came after s'] = Math.round(took / 1000);
    assert(took >= 2000 && took < 90_000, `made visible after 3 s, came after ${took} ms`);
    same('0', idOf(second), 'message');
    c.observe('attempt', second.deliveryAttempt);
    await consumer.changeInvisibleDuration(second, 40_000);
    for (const until = Date.now() + 15_000; Date.now() < until;) {
      same(0, (await consumer.receive(1, 10_000)).length, 'came although it was kept invisible');
    }
    await consumer.ack(second);
  },

  async 'simple-fifo'(c) {
    const consumer = await c.simple();
    const producer = await c.producer();
    for (let i = 0; i < 3; i++) await producer.send(c.message(i, { messageGroup: 'g' }));
    let view = await one(consumer, 90, 10_000);
    same('0', idOf(view), 'first');
    same(0, (await consumer.receive(1, 10_000)).length, 'second before the first was acknowledged');
    await consumer.ack(view);
    same('1', idOf(await one(consumer, 90, 10_000)), 'second');
    view = await one(consumer, 90, 10_000);
    same('1', idOf(view), 'second, not acknowledged in time');
    c.observe('attempt', view.deliveryAttempt);
    await consumer.ack(view);
    view = await one(consumer, 90, 10_000);
    same('2', idOf(view), 'third');
    await consumer.ack(view);
  },

  async delay(c) {
    const sink = await c.push(new Sink());
    const producer = await c.producer();
    const due = new Map();
    for (let i = 0; i < 8; i++) {
      const at = Date.now() + 3000 + 500 * i;
      due.set(String(i), at);
      await producer.send(c.message(i, { deliveryTimestamp: new Date(at) }));
    }
    await sink.waitIds(45, [...due.keys()]);
    const late = [...sink.first].map(([id, at]) => at - due.get(id));
    c.counts['late ms'] = Math.max(...late);
    assert(Math.min(...late) > -1000 && Math.max(...late) < 6000, `late by ${late}`);
    for (const view of sink.views) {
      c.checkContents(view);
      same(due.get(idOf(view)), view.deliveryTimestamp.getTime(), 'delivery timestamp');
    }
  },

  async recall(c) {
    const sink = await c.push(new Sink());
    const producer = await c.producer();
    const deliveryTimestamp = new Date(Date.now() + 8000);
    const receipts = [];
    for (let i = 0; i < 6; i++) receipts.push(await producer.send(c.message(i, { deliveryTimestamp })));
    for (let i = 0; i < 6; i += 2) {
      const { messageId } = await producer.recallMessage(c.topic, receipts[i].recallHandle);
      same(receipts[i].messageId, messageId, 'id of the recalled message');
    }
    c.observe('not a handle', await errorOf(() => producer.recallMessage(c.topic, 'AAAA')));
    await sink.waitIds(45, ['1', '3', '5']);
    await sink.waitQuiet(3000);
    c.exactly(3, sink.views);
    const late = receipts[1].recallHandle;
    c.observe('after delivery', await errorOf(() => producer.recallMessage(c.topic, late)));
  },

  async transaction(c) {
    const sink = await c.push(new Sink());
    const producer = await c.producer({
      check: async () => TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
    });
    for (let i = 0; i < 10; i++) {
      const transaction = producer.beginTransaction();
      await producer.send(c.message(i), transaction);
      await (i % 2 === 0 ? transaction.commit() : transaction.rollback());
    }
    await sink.waitIds(45, numbers(10, i => i % 2 === 0));
    await sink.waitQuiet(3000);
    c.exactly(5, sink.views);
    sink.views.forEach(view => c.checkContents(view));
  },

  async 'transaction-check'(c) {
    const sink = await c.push(new Sink());
    const asked = new Map();
    const producer = await c.producer({
      async check(view) {
        c.checkContents(view);
        const id = idOf(view);
        asked.set(id, (asked.get(id) ?? 0) + 1);
        if (id % 3 === 1) return TransactionResolution.ROLLBACK;
        return id % 3 === 2 && asked.get(id) === 1
          ? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED : TransactionResolution.COMMIT;
      },
    });
    for (let i = 0; i < 6; i++) await producer.send(c.message(i), producer.beginTransaction());
    await sink.waitIds(80, numbers(6, i => i % 3 !== 1));
    await sink.waitQuiet(3000);
    same(6, asked.size, 'asked about');
    c.exactly(4, sink.views);
    c.counts.asked = [...asked.values()].reduce((a, b) => a + b);
  },

  async 'wrong-type'(c) {
    const producer = await c.producer();
    c.observe('message group to a normal topic',
      await errorOf(() => producer.send(c.message(0, { messageGroup: 'g' }))));
    const deliveryTimestamp = new Date(Date.now() + 5000);
    c.observe('delivery timestamp to a normal topic',
      await errorOf(() => producer.send(c.message(0, { deliveryTimestamp }))));
    c.observe('unknown topic',
      await errorOf(() => producer.send(c.message(0, { topic: `${c.topic}-none` }))));
    await producer.send(c.message(1));
    same(['1'], [...ids(await drain(await c.simple(), 1, 30))], 'messages');
  },

  async priority(c) {
    const producer = await c.producer();
    for (let i = 0; i < 12; i++) await producer.send(c.message(i, { priority: 1 + i % 3 }));
    for (const view of await drain(await c.simple(), 12, 60)) {
      c.checkContents(view);
      same(1 + Number(idOf(view)) % 3, view.priority, 'priority');
    }
  },

  async lite(c) {
    const sink = new Sink();
    const consumer = await new LitePushConsumerBuilder().setClientConfiguration(c.options)
      .setConsumerGroup(c.group).bindTopic(c.topic).setMessageListener(sink).build();
    c.clients.push(consumer);
    const topics = ['one', 'two', 'three'];
    await consumer.subscribeLite('one');
    await consumer.subscribeLite('two');
    const producer = await c.producer();
    for (let i = 0; i < 15; i++) await producer.send(c.message(i, { liteTopic: topics[i % 3] }));
    await sink.waitIds(45, numbers(15, i => i % 3 !== 2));
    await sink.waitQuiet(2000);
    c.exactly(10, sink.views);
    for (const view of sink.views) {
      c.checkContents(view);
      same(topics[idOf(view) % 3], view.liteTopic, 'lite topic');
    }
  },
};

async function run(endpoints, runName, name) {
  const began = Date.now();
  const c = new Case(endpoints, `${runName}_${name}`);
  let ok = true;
  let detail = '';
  try {
    const late = pause(TIMEOUT_MS, undefined, { ref: false }).then(() => {
      throw new assert.AssertionError({ message: `not done after ${TIMEOUT_MS} ms` });
    });
    await Promise.race([TABLE[name](c), late]);
  } catch (error) {
    ok = false;
    const at = error instanceof assert.AssertionError
      ? '' : ` ${(error.stack ?? '').split('\n').find(line => line.includes(__filename)) ?? ''}`;
    detail = `${error.message ?? error}${at}`;
  }
  c.observe('added properties', [...c.added].sort());
  const ms = Date.now() - began;
  console.log(JSON.stringify({
    scenario: name, ok, ms, detail, counts: c.counts, observed: c.observed,
  }));
  await c.close();
}

async function main() {
  const [endpoints, runName, parallel, ...names] = process.argv.slice(2);
  const worker = async () => {
    while (names.length) await run(endpoints, runName, names.shift());
  };
  process.on('unhandledRejection', error => console.error('unhandled:', error));
  await Promise.all([...Array(Number(parallel))].map(worker));
  process.exit(0);
}

main();
