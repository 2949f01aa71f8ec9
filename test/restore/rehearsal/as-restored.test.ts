import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import type { About, BackupLog } from '../../../src/backup/index.ts';
import { sentenceOf } from '../../../src/backup/results.ts';
import type { RestoreSpec } from '../../../src/kube/index.ts';
import {
  type FinishedRestoreItem,
  openRestoreActions,
  rehearseRestore,
  ResourceModifiers,
  runRestore,
} from '../../../src/restore/index.ts';
import type { BackedUpItems, ItemFile, ItemFolder } from '../../../src/restore/run/contract.ts';
import { stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

// The output of `restore create --dry-run` equals the actions of a restore: generated backups,
// clusters and specs.

const signal = new AbortController().signal;
const PLAIN = ['configmaps', 'secrets', 'services', 'serviceaccounts', 'deployments.apps'];

const item = fc.record({
  namespace: fc.constantFrom('a', 'b'),
  type: fc.constantFrom(...PLAIN, 'pods', 'jobs.batch', 'things.stable.example.com', 'gone.io'),
  name: fc.constantFrom('x', 'y'),
  labels: fc.constantFrom({}, { app: 'web' }),
  isOver: fc.boolean(),
  /** A pod is one of the Job of its name. */
  isOfJob: fc.boolean(),
  /** How the cluster has it already. */
  existing: fc.constantFrom('no', 'no', 'same', 'different', 'deleted'),
});
const claim = fc.record({
  namespace: fc.constantFrom('a', 'b'),
  hasVolume: fc.boolean(),
  hasVolumeInBackup: fc.boolean(),
  volume: fc.constantFrom('no', 'no', 'released', 'bound', 'another', 'available'),
  existing: fc.constantFrom('no', 'no', 'different'),
});
const given = fc.record({
  items: fc.uniqueArray(item, {
    maxLength: 6,
    selector: ({ namespace, type, name }) => `${namespace}/${type}/${name}`,
  }),
  claims: fc.uniqueArray(claim, { maxLength: 2, selector: ({ namespace }) => namespace }),
  present: fc.subarray(['a', 'b', 'c']),
  definition: fc.constantFrom('no', 'backup', 'cluster'),
  refused: fc.subarray(['secrets', 'pods', 'things.stable.example.com', 'configmaps'], {
    maxLength: 1,
  }),
  refusesPatches: fc.boolean(),
  /** The type of a modifier's only rule. */
  modified: fc.constantFrom(undefined, undefined, 'configmaps', 'configmap'),
  spec: fc.record(
    {
      existingResourcePolicy: fc.constantFrom('none', 'update'),
      namespaceMapping: fc.constantFrom({ a: 'c' }, { a: 'c', b: 'c' }, { nosuch: 'c' }),
      includedNamespaces: fc.constantFrom(['a'], ['nosuch'], ['*']),
      includedResources: fc.constantFrom(['configmaps', 'pods'], ['typo'], ['*']),
      labelSelector: fc.constantFrom({ matchLabels: { app: 'web' } }),
      includeClusterResources: fc.boolean(),
    },
    { requiredKeys: [] },
  ),
});
type Given = typeof given extends fc.Arbitrary<infer T> ? T : never;

const THINGS = 'things.stable.example.com';
const SERVED = { 'stable.example.com': [{ plural: 'things', kind: 'Thing' }] };
const READY = ['Established', 'NamesAccepted'].map((type) => ({ type, status: 'True' }));
const DEFINITION = stored('customresourcedefinitions.apiextensions.k8s.io', THINGS, {
  spec: {
    group: 'stable.example.com',
    scope: 'Namespaced',
    names: { plural: 'things', kind: 'Thing', singular: 'thing' },
    versions: [{ name: 'v1', served: true, storage: true }],
  },
});

function itemsOf({ items, claims, definition }: Given): StoredItem[] {
  const namespaces = new Set([...items, ...claims].map(({ namespace }) => namespace));
  return [
    ...(definition === 'backup' ? [DEFINITION] : []),
    ...[...namespaces].map((name) => stored('namespaces', name, { status: { phase: 'Active' } })),
    ...items.map(({ namespace, type, name, labels, isOver, isOfJob }) => {
      const over = type === 'pods' ? { phase: 'Succeeded' } : { completionTime: 'then' };
      const owner = { apiVersion: 'batch/v1', kind: 'Job', name, uid: 'u', controller: true };
      const ownerReferences = isOfJob && type === 'pods' ? [owner] : [];
      const more = {
        metadata: { labels, ownerReferences },
        data: { a: 'b' },
        ...(isOver && { status: over }),
      };
      return stored(type, `${namespace}/${name}`, more);
    }),
    ...claims.flatMap(({ namespace, hasVolume, hasVolumeInBackup }) => {
      const volumeName = `pv-${namespace}`;
      const pvc = stored('persistentvolumeclaims', `${namespace}/data`, {
        spec: { accessModes: ['ReadWriteOnce'], ...(hasVolume && { volumeName }) },
      });
      return [...(hasVolume && hasVolumeInBackup ? [volumeOf(namespace)] : []), pvc];
    }),
  ];
}

const volumeOf = (namespace: string, more: object = {}): StoredItem =>
  stored('persistentvolumes', `pv-${namespace}`, {
    spec: {
      capacity: { storage: '1Gi' },
      accessModes: ['ReadWriteOnce'],
      nfs: { server: 's', path: '/' },
      persistentVolumeReclaimPolicy: 'Retain',
      claimRef: { namespace, name: 'data', uid: `old-${namespace}.data` },
      ...more,
    },
  });

/** The cluster before the restore; the same each time. */
function clusterOf({ items, claims, present, definition, spec, ...given }: Given): RestoreCluster {
  const cluster = new RestoreCluster();
  const mapping: Record<string, string> = (spec as RestoreSpec).namespaceMapping ?? {};
  const target = (namespace: string): string => mapping[namespace] ?? namespace;
  // The cluster serves the kind only with its definition.
  if (definition !== 'cluster') {
    const others = { ...cluster.groups };
    Reflect.deleteProperty(others, 'stable.example.com');
    cluster.groups = others;
    cluster.onCreated = (type, object) => {
      if (!type.startsWith('customresourcedefinitions')) return;
      cluster.groups = { ...others, ...SERVED };
      Object.assign(object, { status: { conditions: READY } });
    };
  }
  for (const name of present) {
    cluster.add('namespaces', { metadata: { name }, status: { phase: 'Active' } });
  }
  for (const { namespace, type, name, labels, existing } of items) {
    const isThere = present.includes(target(namespace)) && type !== 'gone.io';
    if (existing === 'no' || !isThere || (type === THINGS && definition !== 'cluster')) continue;
    const { object } = stored(type, `${target(namespace)}/${name}`, {
      metadata: {
        labels,
        ...(existing === 'deleted' && { deletionTimestamp: '2026-11-26T11:00:00Z' }),
      },
      data: { a: existing === 'different' ? 'c' : 'b' },
    });
    if (!cluster.get(type, `${target(namespace)}/${name}`)) cluster.add(type, object);
  }
  for (const { namespace, volume, existing } of claims) {
    const place = `${target(namespace)}/data`;
    if (existing === 'different' && present.includes(target(namespace))) {
      const { object } = stored('persistentvolumeclaims', place, { spec: { volumeName: 'other' } });
      if (!cluster.get('persistentvolumeclaims', place)) {
        cluster.add('persistentvolumeclaims', object);
      }
    }
    if (volume === 'no') continue;
    const claimRef = {
      released: { namespace, name: 'data', uid: 'gone' },
      bound: { namespace: 'bank', name: 'data', uid: 'u' },
      another: { namespace, name: 'data', uid: 'gone' },
      available: undefined,
    }[volume];
    const phase = { released: 'Released', bound: 'Bound', another: 'Released' };
    const { object } = volumeOf(namespace, {
      claimRef,
      ...(volume === 'another' && { nfs: { server: 'other', path: '/' } }),
    });
    const status = { phase: (phase as Record<string, string>)[volume] ?? 'Available' };
    cluster.add('persistentvolumes', { ...object, status });
  }
  // A webhook that is not asked in namespaces and of kinds that are new.
  cluster.onCreate = (type, { metadata: { namespace = '' } }) => {
    const isNew = !present.includes(namespace) || (type === THINGS && definition !== 'cluster');
    if (!isNew && given.refused.includes(type)) throw refused('KUBE_FORBIDDEN', `no ${type}`);
  };
  cluster.onPatch = (type) => {
    if (given.refusesPatches && type !== 'persistentvolumes')
      throw refused('KUBE_FORBIDDEN', `no patch of ${type}`);
  };
  return cluster;
}

/** The contents of a backup, without a tarball: hundreds of them are made. */
function inMemory(items: readonly StoredItem[]): BackedUpItems {
  const folders = new Map<string, { folder: ItemFolder; files: Map<string, Buffer> }>();
  const keyIn = ({ groupResource, namespace }: ItemFolder) => `${groupResource} ${namespace}`;
  for (const { type: groupResource, object } of items) {
    const { namespace = '', name } = object.metadata;
    const folder = { groupResource, version: undefined, isPreferred: true, namespace };
    const known = folders.get(keyIn(folder)) ?? { folder, files: new Map<string, Buffer>() };
    known.files.set(name, Buffer.from(JSON.stringify(object)));
    folders.set(keyIn(folder), known);
  }
  const fileOf = (file: ItemFile) => folders.get(keyIn(file))?.files.get(file.name);
  return {
    isEmpty: items.length === 0,
    directories: () => [...folders.values()].map(({ folder }) => folder),
    names: (folder) => [...(folders.get(keyIn(folder))?.files.keys() ?? [])].sort(),
    has: (file) => fileOf(file) !== undefined,
    load: (file) => Promise.resolve(fileOf(file)),
  };
}

const modifiersOf = ({ modified }: Given): ResourceModifiers | undefined =>
  modified === undefined
    ? undefined
    : ResourceModifiers.fromConfigMap({
        metadata: { name: 'm' },
        data: {
          rules: `{version: v1, resourceModifierRules: [{conditions: {groupResource: ${modified}}, mergePatches: [{patchData: '{"data": {"a": "d"}}'}]}]}`,
        },
      });

interface Ended {
  readonly outcomes: Readonly<Record<string, string>>;
  readonly warnings: readonly string[];
  readonly errors: readonly string[];
  readonly counts: readonly number[];
}

const keyOf = ({
  kind,
  namespace,
  name,
}: Pick<FinishedRestoreItem, 'kind' | 'namespace' | 'name'>) => `${kind} ${namespace}/${name}`;

/** A rehearsal adds which kind the API server does not find. */
const short = (text: string): string => text.replace(/: the cluster has no \S+$/, '');
/** Actions look for their ConfigMaps, and there are none. */
const asked = (cluster: RestoreCluster): object =>
  Object.assign(Object.create(cluster) as object, { list: () => Promise.resolve([]) });
const timing = { pollMs: 1, terminatingMs: 5, resourceTimeoutMs: 5, patienceMs: 5 };

async function restored(given: Given): Promise<Ended> {
  const contents = inMemory(itemsOf(given));
  const cluster = clusterOf(given);
  const warnings: string[] = [];
  const errors: string[] = [];
  const failed = new Set<string>();
  const textOf = (text: string, about?: About): string => short(sentenceOf(text, about ?? {}));
  const log: BackupLog = {
    info: () => undefined,
    warn: (text, about) => warnings.push(textOf(text, about)),
    error: (text, about) => {
      errors.push(textOf(text, about));
      const [plural = ''] = about?.resource?.split('.') ?? [];
      failed.add(`${plural} ${about?.namespace ?? ''}/${about?.name ?? ''}`);
    },
  };
  const outcomes: Record<string, string> = {};
  const { totalItems } = await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore: restoreOf(given.spec),
    items: contents,
    actions: openRestoreActions(asked(cluster) as never, 'velero'),
    modifiers: modifiersOf(given),
    sink: {
      put: (done) => {
        // Velero's word for an item with a warning alone; the restore is Completed.
        const plural = `${(done.kind.split('/').at(-1) ?? '').toLowerCase()}s`;
        const id = `${plural} ${done.namespace}/${done.name}`;
        const isWarned = done.outcome === 'failed' && !failed.has(id);
        outcomes[keyOf(done)] = isWarned ? 'skipped' : done.outcome;
        return Promise.resolve();
      },
    },
    log,
    signal,
    ...timing,
  });
  const counts = [totalItems, warnings.length, errors.length];
  return { outcomes, warnings: warnings.sort(), errors: errors.sort(), counts };
}

async function rehearsed(given: Given): Promise<Ended> {
  const contents = inMemory(itemsOf(given));
  const cluster = clusterOf(given);
  // The API server goes through all of a request, and keeps nothing of it.
  const dryRun = async <T>(
    options: { isDryRun?: boolean | undefined } | undefined,
    ask: () => Promise<T>,
  ) => {
    expect(options?.isDryRun, 'a request that is no dry run').toBe(true);
    const [before, groups] = [new Map(cluster.objects), cluster.groups];
    for (const [type, list] of before) cluster.objects.set(type, [...list]);
    try {
      return await ask();
    } finally {
      cluster.objects.clear();
      for (const [type, list] of before) cluster.objects.set(type, list);
      cluster.groups = groups;
    }
  };
  const outcomes: Record<string, string> = {};
  const texts: Record<string, string[]> = { warning: [], error: [] };
  const { items, warnings, errors } = await rehearseRestore({
    client: {
      find: (resource, ref) => cluster.find(resource, ref),
      collect: (resource, options, take) =>
        cluster.collect(resource, options as never, take as never),
      create: (resource, object, options) =>
        dryRun(options, () => cluster.create(resource as never, object)),
      patch: (resource, ref, patch, options) =>
        dryRun(options, () => cluster.patch(resource as never, ref, patch)),
    },
    discovery: await cluster.resources(),
    restore: restoreOf(given.spec),
    items: contents,
    actions: openRestoreActions(asked(cluster) as never, 'velero'),
    modifiers: modifiersOf(given),
    signal,
    waitMs: 5,
    onItem: (done) => {
      outcomes[keyOf(done)] = done.outcome;
      for (const { level, text } of done.notes) texts[level]?.push(short(text));
    },
    onNote: ({ level, text }) => texts[level]?.push(short(text)),
  });
  const counts = [items, warnings, errors];
  const [warned, failed] = [texts['warning'] ?? [], texts['error'] ?? []];
  return { outcomes, warnings: warned.sort(), errors: failed.sort(), counts };
}

it('a rehearsal says of each item, in each warning and error, what the restore does', async () => {
  await fc.assert(
    fc.asyncProperty(given, async (some) => {
      expect(await rehearsed(some)).toEqual(await restored(some));
    }),
    { numRuns: 300, interruptAfterTimeLimit: 120_000 },
  );
}, 300_000);
