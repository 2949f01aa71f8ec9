import { describe, expect, it } from 'vitest';
import type { KubeObject } from '../../../src/kube/index.ts';
import {
  openRestoreActions,
  type RehearsedItem,
  rehearseRestore,
} from '../../../src/restore/index.ts';
import { changedFields } from '../../../src/restore/rehearsal/rehearsal.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const CRD = stored('customresourcedefinitions.apiextensions.k8s.io', 'things.stable.example.com', {
  spec: {
    group: 'stable.example.com',
    scope: 'Namespaced',
    names: { plural: 'things', kind: 'Thing', shortNames: ['th'] },
    versions: [
      { name: 'v1beta1', served: true, storage: false },
      { name: 'v1', served: true, storage: true },
      { name: 'v0', served: false, storage: false },
    ],
  },
});

/** The result of each item, as `outcome kind namespace/name`, and the requests of the dry run. */
async function rehearsed(
  items: readonly StoredItem[],
  cluster = new RestoreCluster(),
  spec = {},
): Promise<{ items: RehearsedItem[]; outcomes: string[]; dryRuns: string[]; unchecked: number }> {
  await using contents = await contentsOf(items);
  const all: RehearsedItem[] = [];
  const dryRuns: string[] = [];
  const asked = cluster;
  const { unchecked } = await rehearseRestore({
    client: {
      find: (resource, ref) => asked.find(resource, ref),
      collect: (resource, options, take) =>
        asked.collect(resource, options as never, take as never),
      create: async (resource, object, options) => {
        expect(options?.isDryRun, 'a request that is no dry run').toBe(true);
        dryRuns.push(`create ${resource.plural} ${object.metadata.name ?? ''}`);
        if (cluster.get(resource.plural, `${object.metadata.namespace}/${object.metadata.name}`)) {
          throw refused('KUBE_ALREADY_EXISTS', 'it already exists');
        }
        cluster.onCreate(resource.plural, object as KubeObject);
        return Promise.resolve(object as never);
      },
      patch: async (resource, ref, _patch, options) => {
        expect(options?.isDryRun, 'a request that is no dry run').toBe(true);
        dryRuns.push(`patch ${resource.plural} ${ref.name}`);
        return Promise.resolve(ref as never);
      },
    },
    discovery: await cluster.resources(),
    restore: restoreOf(spec),
    items: contents,
    actions: openRestoreActions(asked as never, 'velero'),
    signal: new AbortController().signal,
    onItem: (item) => all.push(item),
    onNote: () => undefined,
  });
  const outcomes = all.map(({ outcome, kind, namespace, name }) =>
    [outcome, kind, [namespace, name].filter(Boolean).join('/')].join(' '),
  );
  return { items: all, outcomes, dryRuns, unchecked };
}

describe('a rehearsal of a restore', () => {
  it('knows the kinds that definitions of the backup would bring', async () => {
    const cluster = new RestoreCluster();
    cluster.add('namespaces', { metadata: { name: 'app' } });
    const { outcomes, dryRuns, unchecked } = await rehearsed(
      [CRD, stored('namespaces', 'app'), stored('things.stable.example.com', 'app/t1')],
      cluster,
    );
    expect(outcomes).toEqual([
      'created apiextensions.k8s.io/v1/CustomResourceDefinition things.stable.example.com',
      'created stable.example.com/v1/Thing app/t1',
    ]);
    // The API server does not know things yet.
    expect(dryRuns).toEqual(['create customresourcedefinitions things.stable.example.com']);
    expect(unchecked).toBe(1);
  });

  it('makes what is in a namespace that is not there only in its head', async () => {
    const cluster = new RestoreCluster();
    const { outcomes, dryRuns, unchecked } = await rehearsed(
      [stored('namespaces', 'app'), stored('configmaps', 'app/a'), stored('configmaps', 'app/b')],
      cluster,
    );
    expect(outcomes).toEqual([
      'created v1/Namespace app',
      'created v1/ConfigMap app/a',
      'created v1/ConfigMap app/b',
    ]);
    expect([dryRuns, unchecked]).toEqual([['create namespaces app'], 2]);
    expect(cluster.calls).toEqual([]);
  });

  it('tells what the API server refuses', async () => {
    const cluster = new RestoreCluster();
    cluster.add('namespaces', { metadata: { name: 'app' } });
    cluster.onCreate = (type) => {
      if (type === 'secrets') throw refused('KUBE_FORBIDDEN', 'exceeded quota: secrets');
    };
    const { items } = await rehearsed([stored('secrets', 'app/s')], cluster);
    expect(items.map(({ outcome }) => outcome)).toEqual(['failed']);
    expect(items[0]?.notes.map(({ level, text }) => [level, text])).toEqual([
      ['error', expect.stringContaining('exceeded quota: secrets') as string],
    ]);
  });
});

it('the fields that a patch changes are told, of many the first ones', () => {
  expect(changedFields({ spec: { replicas: 2, template: { a: null } }, data: {} })).toEqual([
    ...['spec.replicas', 'spec.template.a', 'data'],
  ]);
  expect(changedFields({ metadata: { labels: { 'velero.io/restore-name': 'r1' } } })).toEqual([]);
  const many = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`k${i}`, i]));
  const told = changedFields({ data: many });
  expect([told.length, told.at(-1)]).toEqual([11, 'and 20 more']);
});
