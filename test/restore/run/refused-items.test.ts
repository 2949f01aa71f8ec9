import { afterEach, describe, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { Results } from '../../../src/backup/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import {
  type FinishedRestoreItem,
  type RestoreAction,
  type RestoreRunOptions,
  runRestore,
} from '../../../src/restore/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const opened: Contents[] = [];
afterEach(async () => {
  for (const contents of opened.splice(0)) await contents.close();
});

const CERTIFICATES = 'certificates.cert-manager.io';
const HOOK = 'deployments.apps';
const WEBHOOK =
  'Internal error occurred: failed calling webhook "v.example.com": failed to call webhook: Post "https://hook.app.svc:443/": ';

function newCluster(): RestoreCluster {
  const cluster = new RestoreCluster();
  cluster.groups = {
    ...cluster.groups,
    'cert-manager.io': [{ plural: 'certificates', kind: 'Certificate' }],
  };
  return cluster;
}

const certificate = (name: string, more: object = {}): StoredItem =>
  stored(CERTIFICATES, `app/${name}`, {
    apiVersion: 'cert-manager.io/v1',
    kind: 'Certificate',
    ...more,
  });
const hook = stored(HOOK, 'app/zz-hook');

interface Run {
  readonly cluster: RestoreCluster;
  readonly items: readonly StoredItem[];
  readonly actions?: readonly RestoreAction[];
  readonly done?: FinishedRestoreItem[];
  readonly more?: Partial<RestoreRunOptions>;
}

async function run({ cluster, items, actions = [], done = [], more = {} }: Run) {
  const contents = await contentsOf(items, {});
  opened.push(contents);
  const log = new Results(undefined, undefined, 'sentence');
  const result = await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore: restoreOf({}),
    items: contents,
    actions,
    log,
    sink: {
      put: (item) => {
        done.push(item);
        return Promise.resolve();
      },
    },
    pollMs: 1,
    resourceTimeoutMs: 5000,
    patienceMs: 60_000,
    signal: new AbortController().signal,
    ...more,
  });
  return { log, done, result };
}

const timesOf = ({ calls }: RestoreCluster, start: string): number =>
  calls.filter((call) => call.startsWith(start)).length;
const clean = { warnings: {}, errors: {} };

/** Refuses these types until the hook is made. */
function untilHook(cluster: RestoreCluster, refuse: (type: string, object: KubeObject) => void) {
  let isUp = false;
  cluster.onCreate = (type, object) => {
    if (type === HOOK) isUp = true;
    else if (!isUp) refuse(type, object);
  };
}

describe('an item that is refused because an extension starts', () => {
  it.each([
    [500, `${WEBHOOK}no endpoints available for service "hook"`],
    [500, `${WEBHOOK}dial tcp 10.96.3.4:443: connect: connection refused`],
    [500, `${WEBHOOK}context deadline exceeded`],
    [
      500,
      `${WEBHOOK}tls: failed to verify certificate: x509: certificate signed by unknown authority`,
    ],
    [
      500,
      'conversion webhook for cert-manager.io/v1, Kind=Certificate failed: Post: connection refused',
    ],
    [503, 'the server is currently unable to handle the request'],
  ])('is made after all others: %s %s', async (status, text) => {
    const cluster = newCluster();
    untilHook(cluster, (type) => {
      if (type === CERTIFICATES) throw refused('KUBE_UNAVAILABLE', text, status);
    });
    const items = [...['a', 'b', 'c'].map((name) => certificate(name)), hook];
    const sinceMs = performance.now();
    const { log, result, done } = await run({ cluster, items });
    expect(log.lists).toEqual(clean);
    expect(performance.now() - sinceMs).toBeLessThan(20_000);
    // In the first pass only the first of its kind is tried: a webhook may take 30 s to fail.
    expect(timesOf(cluster, `create ${CERTIFICATES}`)).toBe(4);
    expect(result.itemsRestored).toBe(result.totalItems);
    const names = done.filter(({ kind }) => kind.endsWith('Certificate')).map(({ name }) => name);
    expect(names.sort()).toEqual(['a', 'b', 'c']);
  });

  it('has its actions run once, and its operation begun once', async () => {
    const cluster = newCluster();
    untilHook(cluster, (type) => {
      if (type === 'persistentvolumeclaims')
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    });
    let runs = 0;
    const move: RestoreAction = {
      name: 'move',
      appliesTo: { includedResources: ['persistentvolumeclaims'] },
      execute: ({ item }) => Promise.resolve({ item, operationId: `operation-${++runs}` }),
    };
    const items = [stored('persistentvolumeclaims', 'app/data', { spec: {} }), hook];
    const { log, done } = await run({ cluster, items, actions: [move] });
    expect(log.lists).toEqual(clean);
    expect(runs).toBe(1);
    const claim = done.find(({ name }) => name === 'data');
    expect(claim?.operations.map(({ operationId }) => operationId)).toEqual(['operation-1']);
    expect(claim?.outcome).toBe('created');
  });

  it('has its operation noted when it is begun, before others are made', async () => {
    const cluster = newCluster();
    const order: string[] = [];
    untilHook(cluster, (type) => {
      if (type === 'persistentvolumeclaims')
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    });
    const move: RestoreAction = {
      name: 'move',
      appliesTo: { includedResources: ['persistentvolumeclaims'] },
      execute: ({ item }) => Promise.resolve({ item, operationId: 'operation' }),
    };
    const items = [stored('persistentvolumeclaims', 'app/data', { spec: {} }), hook];
    const sink: RestoreRunOptions['sink'] = {
      put: ({ name }) => {
        order.push(`over: ${name}`);
        return Promise.resolve();
      },
      begun: (operations) => {
        order.push(...operations.map(({ operationId, item }) => `${operationId}: ${item.name}`));
      },
    };
    await run({ cluster, items, actions: [move], more: { sink } });
    expect(order).toEqual(['over: app', 'operation: data', 'over: zz-hook', 'over: data']);
  });

  it('is in the total while it waits, and progress never goes back', async () => {
    const cluster = newCluster();
    untilHook(cluster, (type) => {
      if (type === CERTIFICATES) throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}refused`, 500);
    });
    const told: { totalItems: number; itemsRestored: number }[] = [];
    const items = [
      stored('namespaces', 'app'),
      ...['a', 'b', 'c', 'd'].map((name) => certificate(name)),
      ...['x', 'y'].map((name) => stored('configmaps', `app/${name}`)),
      hook,
    ];
    const { result } = await run({
      cluster,
      items,
      more: {
        progressMs: 0,
        onProgress: (progress) => {
          told.push(progress);
          return Promise.resolve();
        },
      },
    });
    expect(told.length).toBeGreaterThan(2);
    for (const [i, { totalItems, itemsRestored }] of told.slice(1).entries()) {
      expect(totalItems).toBeGreaterThanOrEqual(told[i]?.totalItems ?? 0);
      expect(itemsRestored).toBeGreaterThanOrEqual(told[i]?.itemsRestored ?? 0);
    }
    // The first refusal comes after the ConfigMaps: four certificates are still to be made.
    expect(told.find(({ itemsRestored }) => itemsRestored === 4)?.totalItems).toBe(8);
    expect(result).toMatchObject({ totalItems: 8, itemsRestored: 8 });
  });

  it('is not put aside when its volume is brought back in place: pods have to wait for that', async () => {
    const cluster = newCluster();
    cluster.add('persistentvolumeclaims', {
      metadata: { namespace: 'app', name: 'data' },
      spec: {},
    });
    const refuse = (type: string): void => {
      if (type === 'persistentvolumeclaims')
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    };
    cluster.onCreate = refuse;
    cluster.onPatch = refuse;
    const move: RestoreAction = {
      name: 'move',
      appliesTo: { includedResources: ['persistentvolumeclaims'] },
      execute: ({ item }) =>
        Promise.resolve({ item, operationId: 'dd-in-place-1', isInPlace: true }),
    };
    const items = [
      stored('persistentvolumeclaims', 'app/data', { spec: { storageClassName: 'fast' } }),
      stored('pods', 'app/db', { spec: { containers: [] } }),
    ];
    const restore = restoreOf({ existingResourcePolicy: 'update' });
    const more = { restore, resourceTimeoutMs: 50 };
    const { log, done } = await run({ cluster, items, actions: [move], more });
    const own = done.filter(({ kind }) => kind !== 'v1/Namespace');
    expect(own.map(({ name, operations }) => [name, operations.length])).toEqual([
      ['data', 1],
      ['db', 0],
    ]);
    expect(log.lists.errors.namespaces?.app).toHaveLength(1);
  });

  it('does not keep other claims from being brought back in place before their pods', async () => {
    const cluster = newCluster();
    cluster.add('persistentvolumeclaims', {
      metadata: { namespace: 'app', name: 'there' },
      spec: {},
    });
    untilHook(cluster, (type, { metadata }) => {
      if (type === 'persistentvolumeclaims' && metadata.name === 'new')
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    });
    const items = [
      ...['new', 'there'].map((name) =>
        stored('persistentvolumeclaims', `app/${name}`, { spec: {} }),
      ),
      stored('pods', 'app/db', { spec: { containers: [] } }),
      hook,
    ];
    const restore = restoreOf({ existingVolumeDataPolicy: 'full' });
    const { log, done } = await run({ cluster, items, more: { restore } });
    const own = done.filter(({ kind }) => kind !== 'v1/Namespace').map(({ name }) => name);
    expect(own).toEqual(['there', 'db', 'zz-hook', 'new']);
    expect(log.lists.errors).toEqual({});
  });

  it('is made with all others of a namespace that was refused', async () => {
    const cluster = newCluster();
    let isUp = false;
    cluster.onCreate = (type, { metadata }) => {
      if (type === HOOK) isUp = true;
      if (type === 'namespaces' && metadata.name === 'tenant' && !isUp)
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    };
    const items = [
      ...['a', 'b'].map((name) => stored('configmaps', `tenant/${name}`)),
      ...[stored('namespaces', 'tenant'), hook],
    ];
    const { log } = await run({ cluster, items });
    expect(log.lists).toEqual(clean);
    expect(cluster.get('configmaps', 'tenant/b')).toBeDefined();
    expect(timesOf(cluster, 'create namespaces tenant')).toBe(2);
  });

  it('has its status patched when the webhook is up, and is not made twice', async () => {
    const cluster = newCluster();
    let patches = 0;
    cluster.onPatch = (type) => {
      if (type === CERTIFICATES && ++patches === 1)
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}connection refused`, 500);
    };
    const annotations = { 'velero.io/restore-status': 'true' };
    const item = certificate('a', { metadata: { annotations }, status: { ready: 'yes' } });
    const { log, done } = await run({ cluster, items: [item, hook] });
    expect(log.lists).toEqual(clean);
    expect(cluster.get(CERTIFICATES, 'app/a')?.status).toEqual({ ready: 'yes' });
    expect(done.find(({ name }) => name === 'a')?.outcome).toBe('created');
  });

  it('does not keep those from being made that are not refused', async () => {
    const cluster = newCluster();
    cluster.onCreate = (type, { metadata }) => {
      if (type === CERTIFICATES && metadata.name === 'a')
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    };
    const items = ['a', 'b', 'c'].map((name) => certificate(name));
    const { log, done } = await run({ cluster, items, more: { resourceTimeoutMs: 100 } });
    expect(cluster.get(CERTIFICATES, 'app/c')).toBeDefined();
    expect(log.errorCount).toBe(1);
    expect(done.find(({ name }) => name === 'a')?.outcome).toBe('failed');
  });

  it('is an error that names the webhook when the time is over', async () => {
    const cluster = newCluster();
    cluster.onCreate = (type) => {
      if (type === CERTIFICATES)
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    };
    const items = [certificate('a'), certificate('b'), hook];
    const sinceMs = performance.now();
    const { log, result } = await run({ cluster, items, more: { resourceTimeoutMs: 1200 } });
    expect(performance.now() - sinceMs).toBeLessThan(20_000);
    expect(log.lists.errors.namespaces?.app?.toSorted()).toEqual(
      ['a', 'b'].map(
        (name) =>
          expect.stringMatching(
            new RegExp(
              `certificates.cert-manager.io/app/${name}: .*failed calling webhook "v.example.com".* \\(retried for \\d s after all other items\\)$`,
            ),
          ) as string,
      ),
    );
    expect(result.itemsRestored).toBe(result.totalItems);
  });

  it('is made by the next server where the first one was killed while it waited', async () => {
    const cluster = newCluster();
    cluster.onCreate = (type) => {
      if (type === CERTIFICATES)
        throw refused('KUBE_UNAVAILABLE', `${WEBHOOK}no endpoints available`, 500);
    };
    const items = [certificate('a'), certificate('b'), hook];
    const done: FinishedRestoreItem[] = [];
    const signal = AbortSignal.timeout(500);
    await expect(run({ cluster, items, done, more: { signal } })).rejects.toThrow();
    cluster.onCreate = () => undefined;
    const before = [...done];
    const journal = { all: () => before };
    const { log } = await run({ cluster, items, done, more: { journal } });
    expect(log.lists).toEqual(clean);
    const names = done.map(({ kind, name }) => `${kind} ${name}`);
    expect(new Set(names).size).toBe(names.length);
    expect(cluster.get(CERTIFICATES, 'app/b')).toBeDefined();
  });
});

describe('an item of a kind that is not served yet', () => {
  it('is made when the restored definition serves it', async () => {
    const cluster = newCluster();
    const definition = stored('customresourcedefinitions.apiextensions.k8s.io', CERTIFICATES);
    cluster.groups = {
      ...cluster.groups,
      'apiextensions.k8s.io': [
        { plural: 'customresourcedefinitions', kind: 'CustomResourceDefinition' },
      ],
    };
    let times = 0;
    cluster.onGet = (type) => {
      if (type !== definition.type) return;
      const found = cluster.get(type, CERTIFICATES);
      if (found)
        found.status = {
          conditions: ['Established', 'NamesAccepted'].map((each) => ({
            type: each,
            status: 'True',
          })),
        };
    };
    cluster.onCreate = (type) => {
      if (type === CERTIFICATES && ++times < 4)
        throw refused('KUBE_NOT_FOUND', 'the server could not find the requested resource', 404);
    };
    const { log } = await run({ cluster, items: [definition, certificate('a')] });
    expect(log.lists).toEqual(clean);
    expect(cluster.get(CERTIFICATES, 'app/a')).toBeDefined();
  });

  it('is tried once more and not waited for if nothing in the restore brings the kind', async () => {
    const cluster = newCluster();
    cluster.onCreate = (type) => {
      if (type === CERTIFICATES)
        throw refused('KUBE_NOT_FOUND', 'the server could not find the requested resource', 404);
    };
    const items = [certificate('a'), hook];
    const { log } = await run({ cluster, items, more: { resourceTimeoutMs: 600_000 } });
    expect(log.lists.errors.namespaces?.app).toHaveLength(1);
    expect(timesOf(cluster, `create ${CERTIFICATES}`)).toBe(2);
  });

  it('is not waited for if the definition is in the cluster and does not serve its version', async () => {
    const cluster = newCluster();
    const definition = stored('customresourcedefinitions.apiextensions.k8s.io', CERTIFICATES);
    cluster.add(definition.type, definition.object);
    cluster.versions['cert-manager.io'] = 'v2';
    cluster.onCreate = (type, { apiVersion }) => {
      if (type === CERTIFICATES && apiVersion === 'cert-manager.io/v1')
        throw refused('KUBE_NOT_FOUND', 'the server could not find the requested resource', 404);
    };
    const items = [definition, certificate('a'), hook];
    const { log } = await run({ cluster, items, more: { resourceTimeoutMs: 600_000 } });
    expect(log.lists.errors.namespaces?.app).toEqual([
      `error restoring ${CERTIFICATES}/app/a: the server could not find the requested resource: the cluster serves it as cert-manager.io/v2, and the backup has cert-manager.io/v1`,
    ]);
    expect(timesOf(cluster, `create ${CERTIFICATES}`)).toBe(2);
  });
});
