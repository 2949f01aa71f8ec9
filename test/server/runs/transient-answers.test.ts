import { describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import { listPages } from '../../../src/backup/items/lists.ts';
import { kubeError, unreachable } from '../../../src/kube/client/errors.ts';
import { askedFor, CONFIG_MAPS, type KubeClient, Patience } from '../../../src/kube/index.ts';
import { patiently as askedByActions } from '../../../src/plugin/actions/settings.ts';
import { DeletionFailures } from '../../../src/server/deletion/deletion-failures.ts';
import { patiently } from '../../../src/server/runs/bucket-retries.ts';
import { patientClient } from '../../../src/server/runs/api-outage.ts';

const { signal } = new AbortController();
const logger = silentLogger;
const RBAC = 'configmaps is forbidden: User "velero" cannot list resource "configmaps"';
const answer = (status: number, message: string) => (): CodedError =>
  kubeError('ask', status, { message });

/** Answers of an API server for some seconds while it starts, or while etcd is away. */
const ANSWERS: Readonly<Record<string, () => CodedError>> = {
  '401': answer(401, 'Unauthorized'),
  '403': answer(403, RBAC),
  '403 of roles that are not loaded': answer(403, `${RBAC}: RBAC: clusterrole "velero" not found`),
  '429': answer(429, 'too many requests'),
  '500 of an election': answer(500, 'etcdserver: leader changed'),
  '500 of a slow store': answer(500, 'etcdserver: request timed out'),
  '503': answer(503, 'apiserver not ready'),
  'a lost connection': () => unreachable('ask', new Error('ECONNRESET')),
};

/** The callers and their calls. */
const ASKERS: Readonly<Record<string, (task: () => Promise<unknown>) => Promise<unknown>>> = {
  'the items of a restore': (task) =>
    new Patience({ signal, firstDelayMs: 1 }).ask(askedFor('create', CONFIG_MAPS, 'app'), task),
  'the actions of backups and restores': (task) => askedByActions(task, signal),
  'the steps of a run': (task) =>
    patiently(task, { what: 'ask', logger, signal, patienceMs: 4000 }),
  'the steps of a deletion': (task) =>
    new DeletionFailures({ logger, backup: 'b', signal, patienceMs: 4000 }).patiently('ask', task),
  'the lists of a backup': (task) => {
    const listPage = async (): Promise<never> => {
      await task();
      return { items: [], resourceVersion: '1', continue: undefined } as never;
    };
    const client = { listPage, raw: () => Promise.resolve({}) } as unknown as KubeClient;
    return listPages(
      patientClient(client, { logger, signal }),
      { resource: CONFIG_MAPS as never, namespace: 'app', selector: '' },
      { pageItemsMax: 10, pageBytes: 1000, retryMs: 1 },
      { take: () => Promise.resolve(0), restart: () => undefined },
    );
  },
  ...Object.fromEntries(
    ['get', 'find', 'list', 'collect', 'create', 'exec'].map((method) => [
      `${method} of a backup`,
      (task: () => Promise<unknown>) => {
        const client = { [method]: task, raw: () => Promise.resolve({}) } as unknown as KubeClient;
        const patient = patientClient(client, { logger, signal });
        const ask = patient[method as 'find'].bind(patient);
        return method === 'exec'
          ? patient.exec({ namespace: 'app', pod: 'p', container: 'c', command: ['x'] })
          : ask(CONFIG_MAPS, { name: 'a', metadata: { name: 'a' } } as never);
      },
    ]),
  ),
};

describe.each(Object.keys(ASKERS))('%s', (asker) => {
  it('survive an answer that is none', async () => {
    const asked = Object.entries(ANSWERS).map(async ([name, error]) => {
      let times = 0;
      const result = ASKERS[asker]?.(() =>
        times++ < 2 ? Promise.reject(error()) : Promise.resolve('done'),
      );
      await expect(result, name).resolves.not.toBeNull();
      expect([name, times]).toEqual([name, 3]);
    });
    await Promise.all(asked);
  });

  it('tell at once what admission refuses', async () => {
    let times = 0;
    const result = ASKERS[asker]?.(() => {
      times++;
      return Promise.reject(
        kubeError('ask', 403, { message: 'pods "a" is forbidden: exceeded quota: q' }),
      );
    });
    await expect(result).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
    expect(times).toBe(1);
  });
});

it('the items of a restore wait once for a right that is missing, and the error says so', async () => {
  const patience = new Patience({ signal, awayMs: 300, firstDelayMs: 20 });
  let times = 0;
  const ask = (): Promise<unknown> =>
    patience.ask(askedFor('create', CONFIG_MAPS, 'app'), () => {
      times++;
      return Promise.reject(answer(403, RBAC)());
    });
  await expect(ask()).rejects.toThrow(/cannot list resource "configmaps" \(for \d+ s\)/);
  const first = times;
  expect(first).toBeGreaterThan(1);
  for (let i = 0; i < 100; i++) await expect(ask()).rejects.toThrow(RBAC);
  expect(times - first).toBe(100);
});

it('an API server that is back and still refuses is not given up for the time that it was away', async () => {
  const patience = new Patience({ signal, awayMs: 1000, firstDelayMs: 50 });
  let times = 0;
  const sinceMs = performance.now();
  const result = patience.ask(askedFor('create', CONFIG_MAPS), () => {
    times++;
    if (times <= 2) return Promise.reject(answer(503, 'not ready')());
    if (performance.now() - sinceMs < 1050) return Promise.reject(answer(401, 'Unauthorized')());
    return Promise.resolve('done');
  });
  expect(await result).toBe('done');
  expect(times).toBeGreaterThan(2);
});
