// npm install, then: millrace test --env KAFKA_BROKERS -- npm test
import assert from 'node:assert'
import test from 'node:test'
import { Kafka, logLevel } from 'kafkajs'

const kafka = new Kafka({ brokers: process.env.KAFKA_BROKERS.split(','), logLevel: logLevel.NOTHING })

test('orders are consumed by a fresh group', async () => {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic: 'orders', numPartitions: 3 }], waitForLeaders: true })
  await admin.disconnect()
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic: 'orders', messages: [{ key: 'a', value: '1' }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: 'billing' })
  await consumer.connect()
  await consumer.subscribe({ topic: 'orders', fromBeginning: true })
  const value = await new Promise((resolve) => consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) }))
  await consumer.disconnect()
  assert.strictEqual(value, '1')
})

test('a refused produce is tried again', async () => {
  const fault = await fetch(`${process.env.MILLRACE_CONTROL_URL}/fail?api=Produce&code=NOT_LEADER_OR_FOLLOWER&times=1`, { method: 'POST' })
  assert.strictEqual(fault.status, 200)
  const producer = kafka.producer()
  await producer.connect()
  const [sent] = await producer.send({ topic: 'retried', messages: [{ value: '1' }] })
  await producer.disconnect()
  assert.strictEqual(sent.baseOffset, '0')
})
