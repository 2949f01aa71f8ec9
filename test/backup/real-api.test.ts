import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  collectItems,
  type FinishedItem,
  idOf,
  NamespaceFilter,
  Results,
  runBackup,
  scopedResourceFilter,
  Spool,
} from '../../src/backup/index.ts';
import { ApiServer } from '../../src/dev/index.ts';
import {
  CONFIG_MAPS,
  connectToCluster,
  Discovery,
  type KubeClient,
  NAMESPACES,
} from '../../src/kube/index.ts';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createCrd, hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';
import { aBackup } from '../support/builders.ts';

const PORT_BASE = 24_700;

/** Everything of a namespace, listed in small pages, through the run into memory. */
async function backUp(
  client: KubeClient,
  namespace: string,
): Promise<{ stored: FinishedItem[]; log: Results; ids: string[] }> {
  const discovery = await Discovery.open(client);
  const existing = (await client.list(NAMESPACES)).map(({ metadata }) => metadata.name);
  const namespaces = NamespaceFilter.of(existing, [namespace], []);
  const resources = scopedResourceFilter(discovery, {}, namespaces);
  await using spool = await Spool.open({ bytesMax: 16 << 20 });
  const log = new Results();
  const spec = { includedNamespaces: [namespace], excludedNamespaces: [] };
  const limits = { pageItemsMax: 7, pageBytes: 1 << 20 };
  const shared = { client, discovery, namespaces, resources, spool, log };
  const items = await collectItems({ ...shared, spec, limits });
  const stored: FinishedItem[] = [];
  await runBackup({
    ...shared,
    backup: aBackup({ metadata: { name: 'b' }, spec }),
    items,
    actions: [],
    blockActions: [],
    exec: () => Promise.reject(new Error('there are no hooks')),
    sink: {
      put: (item) => {
        stored.push(item);
        return Promise.resolve();
      },
      postHooksDone: () => Promise.resolve(),
    },
    workers: 2,
    signal: new AbortController().signal,
  });
  return { stored, log, ids: [...items].map((item) => `${item.type} ${idOf(item)}`) };
}

async function fill(client: KubeClient): Promise<void> {
  await client.create(NAMESPACES, { metadata: { name: 'shop' } });
  for (let n = 0; n < 30; n++) {
    await client.create(CONFIG_MAPS, {
      metadata: { name: `map-${n}`, namespace: 'shop' },
      data: { n: String(n) },
    });
  }
}

const mapsOf = (stored: readonly FinishedItem[]): string[] =>
  stored.flatMap(({ kind, name }) =>
    kind === 'v1/ConfigMap' && name.startsWith('map-') ? [name] : [],
  );

describe('on the embedded API server', () => {
  it('a namespace is listed and stored whole', async () => {
    const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-backup-'));
    await using server = await ApiServer.start();
    const kubeconfig = join(directory, 'kubeconfig');
    await fs.writeFile(kubeconfig, server.kubeconfig);
    const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
    try {
      await fill(client);
      const { stored, log } = await backUp(client, 'shop');
      expect(mapsOf(stored).length).toBe(30);
      expect(log.lists).toEqual({ warnings: {}, errors: {} });
    } finally {
      client.close();
      await fs.rm(directory, { recursive: true, force: true });
    }
  });
});

describe.skipIf(!hasRealApi())('on the real API server', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(PORT_BASE);
    await fill(api.client);
  }, 300_000);
  afterAll(async () => {
    await api?.[Symbol.asyncDispose]();
  });

  it('discovery knows what kubectl knows, whichever form the server answers in', async () => {
    const discovery = await Discovery.open(api.client);
    const plain = await Discovery.open({
      raw: (request) => api.client.raw({ ...request, accept: 'application/json' }),
    });
    const named = (from: Discovery): string[] =>
      from.lists.flatMap(({ group, version, resources }) =>
        resources.map(
          ({ plural, namespaced, kind }) => `${group}/${version}/${plural}/${kind}/${namespaced}`,
        ),
      );
    // Within a group of custom resources the two forms have different orders.
    expect(named(discovery).sort()).toEqual(named(plain).sort());
    const output = await api.kubectl(
      'api-resources',
      '--no-headers',
      '--verbs=list,create,get,delete',
      '-o',
      'name',
    );
    const types = discovery.lists.flatMap(({ group, resources }) =>
      resources.map(({ plural }) => (group === '' ? plural : `${plural}.${group}`)),
    );
    expect([...new Set(types)].sort()).toEqual([...new Set(output.trim().split(/\s+/))].sort());
  });

  it('a namespace is stored whole and in order, with a custom resource, its digits, and its definition', async () => {
    const { client } = api;
    await createCrd(client, crdOf('things'));
    await client.raw({
      method: 'POST',
      path: '/apis/stable.example.com/v1/namespaces/shop/things',
      body: {
        apiVersion: 'stable.example.com/v1',
        kind: 'Thing',
        metadata: { name: 'thing' },
        spec: { ns: 1_700_000_000 },
      },
    });
    // JavaScript could not even write it: 2^53 + 1.
    await api.kubectl(
      '-n',
      'shop',
      'patch',
      'things.stable.example.com',
      'thing',
      '--type=merge',
      '-p',
      '{"spec":{"ns":9007199254740993}}',
    );
    const { stored, log, ids } = await backUp(client, 'shop');
    expect(log.lists).toEqual({ warnings: {}, errors: {} });
    expect(mapsOf(stored).length).toBe(30);
    expect(new Set(ids).size).toBe(ids.length);
    const thing = stored.find(({ kind }) => kind === 'stable.example.com/v1/Thing');
    expect(String(thing?.files[0]?.bytes)).toContain('"spec":{"ns":9007199254740993}');
    expect(stored.map(({ kind, name }) => `${kind} ${name}`)).toContain(
      'apiextensions.k8s.io/v1/CustomResourceDefinition things.stable.example.com',
    );
  });

  it('an object that a tenant has nested as deeply as the server takes costs nobody a backup', async () => {
    const depth = 9_000;
    const nested = `${'['.repeat(depth)}9007199254740993${']'.repeat(depth)}`;
    const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-deep-'));
    try {
      const file = join(directory, 'thing.json');
      const head = '"apiVersion":"stable.example.com/v1","kind":"Thing"';
      await fs.writeFile(
        file,
        `{${head},"metadata":{"name":"deep","namespace":"shop"},"spec":{"x":${nested}}}`,
      );
      await api.kubectl('create', '--validate=false', '-f', file);
      const { stored, log } = await backUp(api.client, 'shop');
      expect(log.lists.errors).toEqual({});
      const deep = stored.find(({ name }) => name === 'deep');
      expect(String(deep?.files[0]?.bytes).includes(nested)).toBe(true);
      expect(stored.map(({ name }) => name)).toContain('thing');
    } finally {
      await fs.rm(directory, { recursive: true, force: true });
    }
  });

  it('a group whose server does not answer is a warning, and the backup has the rest', async () => {
    await api.client.raw({
      method: 'POST',
      path: '/apis/apiregistration.k8s.io/v1/apiservices',
      body: {
        apiVersion: 'apiregistration.k8s.io/v1',
        kind: 'APIService',
        metadata: { name: 'v1beta1.broken.example.com' },
        spec: {
          group: 'broken.example.com',
          version: 'v1beta1',
          service: { namespace: 'default', name: 'nobody' },
          insecureSkipTLSVerify: true,
          groupPriorityMinimum: 100,
          versionPriority: 100,
        },
      },
    });
    let discovery = await Discovery.open(api.client);
    for (let tries = 0; discovery.failures.length === 0 && tries < 100; tries++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      discovery = await Discovery.open(api.client);
    }
    expect(discovery.failures.map(({ groupVersion }) => groupVersion)).toEqual([
      'broken.example.com/v1beta1',
    ]);
    const { stored, log } = await backUp(api.client, 'shop');
    expect(mapsOf(stored).length).toBe(30);
    expect(log.lists.warnings.velero?.[0]).toContain(
      'Failed to discover group: broken.example.com/v1beta1',
    );
    expect(log.errorCount).toBe(0);
  });
});

const crdOf = (plural: string): object => ({
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: `${plural}.stable.example.com` },
  spec: {
    group: 'stable.example.com',
    names: { kind: 'Thing', listKind: 'ThingList', plural, singular: 'thing' },
    scope: 'Namespaced',
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: {
          openAPIV3Schema: {
            type: 'object',
            properties: {
              spec: {
                type: 'object',
                properties: { ns: { type: 'integer', format: 'int64' } },
                'x-kubernetes-preserve-unknown-fields': true,
              },
            },
          },
        },
      },
    ],
  },
});
