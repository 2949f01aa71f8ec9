import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  collectItems,
  type FinishedItem,
  NamespaceFilter,
  Results,
  runBackup,
  scopedResourceFilter,
  Spool,
} from '../../../src/backup/index.ts';
import { silentLogger } from '../../../src/base/index.ts';
import {
  type Backup,
  Discovery,
  type KubeObject,
  NAMESPACES,
  type Resource,
} from '../../../src/kube/index.ts';
import { openRestoreActions, runRestore } from '../../../src/restore/index.ts';
import { patientClient } from '../../../src/server/runs/api-outage.ts';
import { createCrd, hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';
import { contentsOf, type StoredItem } from '../support/backup.ts';
import { restoreOf } from '../support/restore.ts';

const { signal } = new AbortController();
const LIMIT_MS = 60_000;
const GROUP = 'odd.example.com';
/** The longest name that Kubernetes allows. */
const LONGEST = `${'a.'.repeat(126)}z`;

const crdOf = (plural: string, kind: string, versions: readonly string[], more = {}): object => ({
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: `${plural}.${GROUP}` },
  spec: {
    group: GROUP,
    names: { kind, listKind: `${kind}List`, plural, singular: kind.toLowerCase() },
    scope: 'Namespaced',
    versions: versions.map((name) => ({
      name,
      served: true,
      storage: name === 'v1',
      schema: {
        openAPIV3Schema: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
      },
    })),
    ...more,
  },
});

const WITH_WEBHOOK = {
  conversion: {
    strategy: 'Webhook',
    webhook: {
      conversionReviewVersions: ['v1'],
      clientConfig: { service: { namespace: 'default', name: 'away', path: '/convert' } },
    },
  },
};

describe.skipIf(!hasRealApi())('odd objects on the real API server', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(31_700);
    await createCrd(api.client, crdOf('things', 'Thing', ['v1']));
    await createCrd(api.client, crdOf('gizmos', 'Gizmo', ['v2', 'v1'], WITH_WEBHOOK));
  }, 2 * LIMIT_MS);
  afterAll(async () => {
    await (api as RealApi | undefined)?.[Symbol.asyncDispose]();
  }, LIMIT_MS);

  const things: Resource<KubeObject & { spec?: unknown }> = {
    group: GROUP,
    version: 'v1',
    plural: 'things',
    kind: 'Thing',
    namespaced: true,
  };

  async function backUp(namespace: string) {
    const client = patientClient(api.client, { logger: silentLogger, signal });
    const discovery = await Discovery.open(client);
    const existing = (await client.list(NAMESPACES)).map(({ metadata }) => metadata.name);
    const namespaces = NamespaceFilter.of(existing, [namespace], []);
    const resources = scopedResourceFilter(discovery, {}, namespaces);
    await using spool = await Spool.open({ bytesMax: 64 << 20 });
    const log = new Results(undefined, undefined, 'sentence');
    const spec = { includedNamespaces: [namespace], excludedNamespaces: [] };
    const shared = { client, discovery, namespaces, resources, spool, log };
    const items = await collectItems({ ...shared, spec });
    const stored: FinishedItem[] = [];
    await runBackup({
      ...shared,
      backup: { metadata: { name: 'b' }, spec } as unknown as Backup,
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
      signal,
    });
    return { stored, log };
  }

  async function restore(items: readonly StoredItem[], resourceTimeoutMs = 3000) {
    await using contents = await contentsOf(items);
    const log = new Results(undefined, undefined, 'sentence');
    const { resourceList } = await runRestore({
      client: api.client,
      discovery: await Discovery.open(api.client, { signal }),
      restore: restoreOf({}),
      items: contents,
      log,
      signal,
      resourceTimeoutMs,
      actions: openRestoreActions(api.client, 'velero'),
      sink: { put: () => Promise.resolve() },
    });
    const names = new Map([...resourceList].map(([kind, made]) => [kind, [...made]]));
    return { ...log.lists, things: names.get(`${GROUP}/v1/Thing`) };
  }

  const itemsOf = (stored: readonly FinishedItem[], plural: string): StoredItem[] =>
    stored
      .flatMap(({ files }) => files.slice(0, 1))
      .filter(({ path }) => path.includes(`/${plural}.${GROUP}/`))
      .map(({ bytes }) => ({
        type: `${plural}.${GROUP}`,
        object: JSON.parse(String(bytes)) as KubeObject,
      }));

  const makeNamespace = (name: string) =>
    api.client.create(NAMESPACES, { metadata: { name } }, { signal });
  const thing = (namespace: string, name: string, more: object = {}): KubeObject =>
    ({
      apiVersion: `${GROUP}/v1`,
      kind: 'Thing',
      metadata: { namespace, name },
      ...more,
    }) as unknown as KubeObject;

  it('with the longest names and with dots come back', { timeout: LIMIT_MS }, async () => {
    await makeNamespace('names');
    const names = [LONGEST, 'a.b.c', '0', 'x--y', 'constructor'].sort();
    for (const name of names) {
      await api.client.create(things, thing('names', name), { signal });
    }
    const { stored, log } = await backUp('names');
    expect(log.lists.errors).toEqual({});
    const items = itemsOf(stored, 'things');
    expect(items.map(({ object }) => object.metadata.name).sort()).toEqual(names);
    for (const name of names) {
      await api.client.delete(things, { namespace: 'names', name }, { signal });
    }
    const { errors, warnings } = await restore(items);
    expect([errors, warnings]).toEqual([{}, {}]);
    const back = await api.client.list(things, { namespace: 'names', signal });
    expect(back.map(({ metadata }) => metadata.name).sort()).toEqual(names);
  });

  it(
    'whose conversion webhook is away are one error, and the rest is there',
    { timeout: 3 * LIMIT_MS },
    async () => {
      await makeNamespace('converted');
      await api.client.create(things, thing('converted', 'other'), { signal });
      const path = `/apis/${GROUP}/v1/namespaces/converted/gizmos`;
      const v1 = { ...thing('converted', 'g'), kind: 'Gizmo' };
      await api.client.raw({ method: 'POST', path, body: v1 });
      const { stored, log } = await backUp('converted');
      expect(itemsOf(stored, 'things').length).toBe(1);
      const away = expect.stringContaining('conversion webhook for odd.example.com/v1') as string;
      expect(log.lists.errors).toEqual({ namespaces: { converted: [away] } });
      const v2 = { ...v1, apiVersion: `${GROUP}/v2` };
      const type = `gizmos.${GROUP}`;
      v2.metadata.name = 'new';
      const other = { type: `things.${GROUP}`, object: thing('converted', 'after') };
      const { errors, things: made } = await restore([{ type, object: v2 }, other]);
      const failed = Object.values(errors.namespaces ?? {}).flat();
      expect(failed).toEqual([expect.stringMatching(/gizmos.*new.*conversion webhook/s)]);
      expect(made).toEqual(['converted/after(created)']);
    },
  );

  it('that are too large for etcd are one error each, at once', { timeout: LIMIT_MS }, async () => {
    await makeNamespace('large');
    const fits = thing('large', 'fits', { data: 'x'.repeat(1_540_000) });
    await api.client.create(things, fits, { signal });
    const { stored, log } = await backUp('large');
    expect(log.lists.errors).toEqual({});
    const items = itemsOf(stored, 'things');
    expect(items.length).toBe(1);
    await api.client.delete(things, { namespace: 'large', name: 'fits' }, { signal });
    // The limit of other clusters may be higher.
    for (const [name, length] of Object.entries({ more: 1_700_000, most: 2_200_000 })) {
      const object = thing('large', name, { data: 'x'.repeat(length) });
      items.push({ type: `things.${GROUP}`, object });
    }
    const { errors, warnings, things: made } = await restore(items);
    expect(warnings).toEqual({});
    const failed = Object.values(errors.namespaces ?? {}).flat();
    expect(failed.sort()).toEqual([
      expect.stringMatching(/large\/more.*too large/),
      expect.stringMatching(/large\/most.*larger than max/),
    ]);
    expect(made).toContain('large/fits(created)');
  });
});
