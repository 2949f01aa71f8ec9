import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  BACKUP_DEFAULTS,
  collectItems,
  FineFilters,
  type FinishedItem,
  Results,
  runBackup,
  scopedResourceFilter,
  Spool,
  validateBackup,
} from '../../src/backup/index.ts';
import { parseJsonExact } from '../../src/base/index.ts';
import type { Backup, BackupSpec, KubeObject, Resource } from '../../src/kube/index.ts';
import { FakeCluster } from './support/cluster.ts';

// Names that objects of the language have members of, very long names, and names with dots.

const LABELS = ['constructor', 'valueof', 'tostring', 'hasownproperty', 'n'.repeat(63)];
const KEYS = ['constructor', 'valueOf', 'toString', 'hasOwnProperty', 'a'];
const TYPES = ['configmaps', 'tostring.constructor', 'constructor.valueof.example.com'];
const GROUPS = {
  constructor: [{ plural: 'tostring', kind: 'ToString' }],
  'valueof.example.com': [{ plural: 'constructor', kind: 'Constructor' }],
};

const names = fc.constantFrom(...LABELS, 'a.b.constructor', `${'x.'.repeat(126)}x`);
const spaces = fc.constantFrom(...LABELS);
const keys = fc.constantFrom(...KEYS);
const types = fc.constantFrom(...TYPES);
const object = fc.record({
  type: types,
  namespace: spaces,
  name: names,
  labels: fc.uniqueArray(keys, { maxLength: 3 }),
  data: fc.uniqueArray(fc.constantFrom(...KEYS, '__proto__'), { maxLength: 3 }),
});
const scenarios = fc.record({
  objects: fc.uniqueArray(object, {
    minLength: 1,
    maxLength: 8,
    selector: ({ type, namespace, name }) => `${type} ${namespace}/${name}`,
  }),
  included: fc.option(fc.subarray(LABELS, { minLength: 1 })),
  excluded: fc.subarray(LABELS, { maxLength: 2 }),
  withoutTypes: fc.subarray(TYPES, { maxLength: 2 }),
  wanted: fc.option(keys),
  first: types,
  /** A filter policy for one namespace. */
  fine: fc.option(fc.record({ namespace: spaces, type: types, excludedName: names })),
});
type Given = typeof scenarios extends fc.Arbitrary<infer T> ? T : never;
type Thing = Given['objects'][number];

const idOf = ({ type, namespace, name }: Pick<Thing, 'type' | 'namespace' | 'name'>): string =>
  `${type.split('.')[0] ?? ''} ${namespace}/${name}`;

function isTaken(thing: Thing, { included, excluded, withoutTypes, wanted, fine }: Given): boolean {
  const { type, namespace, name, labels } = thing;
  if (included && !included.includes(namespace)) return false;
  if (excluded.includes(namespace) || withoutTypes.includes(type)) return false;
  if (fine?.namespace === namespace) return fine.type === type && fine.excludedName !== name;
  return wanted === null || labels.includes(wanted);
}

const valuesOf = (all: readonly string[]): Map<string, string> =>
  new Map(all.map((key, i) => [key, `v${i}`]));
const sorted = (all: Iterable<[string, unknown]>): [string, unknown][] =>
  [...all].sort(([a], [b]) => (a < b ? -1 : 1));

async function backedUp(given: Given): Promise<{ done: FinishedItem[]; log: Results }> {
  const { objects, included, excluded, withoutTypes, wanted, first, fine } = given;
  const cluster = new FakeCluster().namespaces(...LABELS);
  cluster.groups = { ...cluster.groups, ...GROUPS };
  for (const { type, namespace, name, labels, data } of objects) {
    const metadata = { namespace, name, labels: Object.fromEntries(valuesOf(labels)) };
    cluster.add(type, { metadata, data: Object.fromEntries(valuesOf(data)) });
  }
  const spec: BackupSpec = {
    excludedNamespaceScopedResources: withoutTypes,
    orderedResources: {
      [first]: objects.map(({ namespace, name }) => `${namespace}/${name}`).join(','),
    },
    ...(wanted !== null && {
      labelSelector: { matchExpressions: [{ key: wanted, operator: 'Exists' }] },
    }),
  };
  const discovery = await cluster.discovery();
  const log = new Results();
  const namespaces = cluster.filter(included ?? ['*'], excluded);
  const resources = scopedResourceFilter(discovery, spec, namespaces);
  const filter = fine && {
    kinds: [fine.type],
    names: [],
    excludedNames: [fine.excludedName],
    orLabelSelectors: [],
  };
  const policies = fine
    ? [{ namespaces: [fine.namespace], resourceFilters: filter ? [filter] : [] }]
    : undefined;
  const filters = FineFilters.of({ namespacedFilterPolicies: policies }, discovery, log);
  await using spool = await Spool.open({ bytesMax: 1 << 20 });
  const shared = { client: cluster, discovery, namespaces, resources, spool, log };
  const items = await collectItems({ ...shared, spec, fine: filters });
  const done: FinishedItem[] = [];
  await runBackup({
    ...shared,
    items,
    fine: filters,
    actions: [],
    blockActions: [],
    backup: { metadata: { name: 'b' }, spec } as Backup,
    exec: () => Promise.reject(new Error('no exec')),
    sink: {
      put: (item: FinishedItem) => {
        done.push(item);
        return Promise.resolve();
      },
    } as never,
    signal: new AbortController().signal,
  });
  return { done, log };
}

describe('a backup of odd names', () => {
  it('has each object that a plain name would have, whole, and no other one', async () => {
    await fc.assert(
      fc.asyncProperty(scenarios, async (given) => {
        const { done, log } = await backedUp(given);
        expect(log.lists.errors).toEqual({});
        const taken = new Map(
          given.objects.filter((each) => isTaken(each, given)).map((each) => [idOf(each), each]),
        );
        const files = new Map<string, string>();
        for (const { namespace, name, files: own } of done) {
          if (namespace === '') continue;
          const [{ path, bytes } = { path: '', bytes: '' }] = own;
          const [, type = ''] = path.split('/');
          files.set(idOf({ type, namespace, name }), String(bytes));
        }
        expect([...files.keys()].sort()).toEqual([...taken.keys()].sort());
        for (const [id, { labels, data }] of taken) {
          const stored = parseJsonExact(files.get(id) ?? '') as KubeObject & { data?: object };
          expect(sorted(Object.entries(stored.data ?? {}))).toEqual(sorted(valuesOf(data)));
          expect(sorted(Object.entries(stored.metadata.labels ?? {}))).toEqual(
            sorted(valuesOf(labels)),
          );
        }
      }),
      { numRuns: 200 },
    );
  });

  it('finds its locations by their own names, and the default of each provider', async () => {
    const locations = fc.record({
      storage: names,
      asked: fc.option(names),
      /** A provider has two locations: one needs a default. */
      providers: fc.uniqueArray(fc.constantFrom(...KEYS), { maxLength: 3 }),
      withDefault: fc.subarray(KEYS),
    });
    await fc.assert(
      fc.asyncProperty(locations, async ({ storage, asked, providers, withDefault }) => {
        const spec = { accessMode: 'ReadWrite' };
        const all: Record<string, object[]> = {
          backupstoragelocations: [
            { metadata: { name: storage }, spec, status: { phase: 'Available' } },
          ],
          volumesnapshotlocations: providers.flatMap((provider) =>
            ['one', 'two'].map((name) => ({
              metadata: { name: `${provider}-${name}` },
              spec: { provider },
            })),
          ),
        };
        const list = ({ plural }: Resource<KubeObject>) => Promise.resolve(all[plural] ?? []);
        const find = async (resource: Resource<KubeObject>, { name }: { name: string }) =>
          ((await list(resource)) as KubeObject[]).find((each) => each.metadata.name === name);
        const snapshotLocations = Object.fromEntries(
          withDefault.map((provider) => [provider, `${provider}-two`]),
        );
        const { errors, backup } = await validateBackup(
          {
            metadata: { name: 'b', namespace: 'velero' },
            spec: asked === null ? {} : { storageLocation: asked },
          } as Backup,
          {
            client: { list, find } as never,
            resources: {
              find: () => undefined,
              serverVersion: { major: '1', minor: '36', gitVersion: 'v1' },
            },
            defaults: { ...BACKUP_DEFAULTS, storageLocation: storage, snapshotLocations },
            nowNs: 0n,
          },
        );
        const lacking = providers.filter((provider) => !withDefault.includes(provider));
        const isUnknown = asked !== null && asked !== storage;
        expect(errors.filter((text) => text.includes('more than one possible'))).toEqual(
          lacking.map(
            (provider) =>
              `provider ${provider} has more than one possible volume snapshot location, and none were specified explicitly or as a default`,
          ),
        );
        expect(errors).toHaveLength(lacking.length + (isUnknown ? 1 : 0));
        const label = backup.metadata.labels?.['velero.io/storage-location'] ?? '';
        expect(label.length).toBeLessThanOrEqual(63);
        if (errors.length > 0) return;
        const chosen = (backup.spec as { volumeSnapshotLocations?: string[] })
          .volumeSnapshotLocations;
        expect(chosen).toEqual(providers.map((provider) => `${provider}-two`));
      }),
      { numRuns: 200 },
    );
  });
});
