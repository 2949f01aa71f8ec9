import { describe, expect, it } from 'vitest';
import { CodedError, type Logger, silentLogger, systemClock } from '../../src/base/index.ts';
import {
  type Event,
  EventRecorder,
  type KubeClient,
  type KubeObject,
} from '../../src/kube/index.ts';

const object = (uid: string): KubeObject =>
  ({ metadata: { name: `up-${uid}`, namespace: 'velero', uid } }) as never;

/** An API server that is away until `letBack`, and the Events that it received. */
function server(): { client: KubeClient; told: string[]; letBack: () => void; hang: () => void } {
  const told: string[] = [];
  let state: 'away' | 'there' | 'hangs' = 'there';
  const answer = (text: string): Promise<unknown> => {
    if (state === 'hangs') return new Promise(() => undefined);
    if (state === 'away') {
      return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }));
    }
    told.push(text);
    return Promise.resolve({});
  };
  const client = {
    create: (_: unknown, { reason, message, count }: Event) =>
      answer(`+${reason} ${message} ${count}`),
    patch: (_: unknown, _ref: unknown, { message, count }: Event) => answer(`${message} ${count}`),
  } as unknown as KubeClient;
  return {
    client,
    told,
    letBack: () => (state = 'there'),
    hang: () => (state = 'hangs'),
  };
}

const recorderOf = (client: KubeClient, logger: Logger = silentLogger): EventRecorder =>
  new EventRecorder({ client, clock: systemClock, logger, component: 'test', host: 'node' });

describe('events', () => {
  it('are one for each object and reason, whose count rises', async () => {
    const { client, told } = server();
    const recorder = recorderOf(client);
    for (const text of ['a', 'b']) {
      recorder.record(object('1'), 'Progress', text);
      await recorder.flush();
    }
    expect(told).toEqual(['+Progress a 1', 'b 2']);
  });

  it('that wait are told once, with the last message and the count of all, in their order', async () => {
    const { client, told, hang } = server();
    hang();
    // The first is on its way, and never comes back; a recorder of its own has nothing in the way.
    const recorder = recorderOf(client);
    const { client: open, told: heard } = server();
    const other = recorderOf(open);
    for (const each of [recorder, other]) {
      each.record(object('1'), 'Started', 'begun');
      for (let i = 0; i < 500; i++) each.record(object('1'), 'Progress', String(i));
      each.record(object('1'), 'Stopped', 'over');
    }
    await other.flush();
    expect(heard).toEqual(['+Started begun 1', '+Progress 499 500', '+Stopped over 1']);
    await recorder.flush(20);
    expect(told).toEqual([]);
  });

  it('hold nobody up for longer than they may, and are no more than a bounded number', async () => {
    const warnings: object[] = [];
    const logger = { ...silentLogger, warn: (fields: object) => warnings.push(fields) };
    const { client, hang } = server();
    hang();
    const recorder = recorderOf(client, logger);
    recorder.record(object('first'), 'Failed', 'on its way');
    await Promise.resolve();
    await Promise.resolve();
    for (let i = 0; i < 1000; i++) recorder.record(object(`n-${i}`), 'Started', 'x');
    recorder.record(object('w'), 'Failed', 'y', 'Warning');
    const startMs = performance.now();
    await recorder.flush(50);
    expect(performance.now() - startMs).toBeLessThan(20_000);
    expect(warnings).toEqual([{ waiting: 256 }, { left: 256 }]);
  });

  it('that could not be written count with those that came meanwhile', async () => {
    const { client, told, letBack } = server();
    let calls = 0;
    const recorder = recorderOf({
      ...client,
      create: (resource: never, event: never) => {
        if (++calls > 1) return client.create(resource, event);
        recorder.record(object('1'), 'Progress', 'second');
        return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }));
      },
    } as unknown as KubeClient);
    letBack();
    recorder.record(object('1'), 'Progress', 'first');
    await recorder.flush();
    expect(told).toEqual(['+Progress second 2']);
  });
});
