import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Results } from '../../../src/backup/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { openRestoreActions, ResourceModifiers, runRestore } from '../../../src/restore/index.ts';
import { contentsOf, stored } from '../support/backup.ts';
import { RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

/** Names of objects are lower case. Keys of labels and data may be any of these. */
const NAMES = ['constructor', 'valueof', 'tostring', 'hasownproperty', 'app', 'app9'];
const KEYS = ['constructor', 'valueOf', 'toString', 'hasOwnProperty', '__proto__', 'a'];

const names = fc.constantFrom(...NAMES);
const keys = fc.constantFrom(...KEYS);
/** As JSON has it: every key is a member of its own. */
const recordOf = (key: fc.Arbitrary<string>): fc.Arbitrary<Map<string, string>> =>
  fc.uniqueArray(key, { maxLength: 4 }).map((all) => new Map(all.map((one, i) => [one, `v${i}`])));
const asObject = (map: ReadonlyMap<string, string>): Record<string, string> =>
  Object.fromEntries(map);
const sorted = (fields: unknown): [string, unknown][] =>
  Object.entries(fields ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));

const scenarios = fc.record({
  namespaces: fc.uniqueArray(names, { minLength: 1, maxLength: 4 }),
  mapping: recordOf(names).map(
    (map) => new Map([...map.keys()].map((from) => [from, `${from}-new`])),
  ),
  classes: recordOf(names),
  claimClass: names,
  data: recordOf(keys),
  labels: recordOf(keys.filter((key) => key !== '__proto__')),
  wanted: fc.option(keys.filter((key) => key !== '__proto__')),
  patched: keys,
});

const rulesOf = (key: string): string => `version: v1
resourceModifierRules:
- conditions: {groupResource: configmaps}
  patches:
  - {operation: add, path: /data/${key}, value: patched}
- conditions: {groupResource: configmaps}
  mergePatches:
  - {patchData: '{"metadata":{"annotations":{"${key}":"merged"}}}'}
- conditions: {groupResource: configmaps}
  strategicPatches:
  - {patchData: '{"metadata":{"annotations":{"strategic-${key}":"merged"}}}'}
`;

describe('a restore of names that objects of the language have members of', () => {
  it('brings each item back where and as a plain name would be', async () => {
    await fc.assert(
      fc.asyncProperty(scenarios, async (given) => {
        const { namespaces, mapping, classes, claimClass, data, labels, wanted, patched } = given;
        const cluster = new RestoreCluster();
        const config = {
          metadata: { namespace: 'velero', name: 'classes' },
          data: asObject(classes),
        };
        const client = {
          list: () => Promise.resolve([config]),
          find: (_: unknown, { name }: { name: string }) => Promise.resolve({ metadata: { name } }),
        };
        const metadata = { labels: asObject(labels) };
        await using contents = await contentsOf([
          ...namespaces.map((name) => stored('namespaces', name)),
          ...namespaces.flatMap((namespace) => [
            stored('configmaps', `${namespace}/c`, { metadata, data: asObject(data) }),
            stored('persistentvolumeclaims', `${namespace}/d`, {
              metadata,
              spec: { storageClassName: claimClass },
            }),
          ]),
        ]);
        const log = new Results(undefined, undefined, 'sentence');
        await runRestore({
          client: cluster as never,
          discovery: await cluster.resources(),
          restore: restoreOf({
            namespaceMapping: asObject(mapping),
            ...(wanted !== null && {
              labelSelector: { matchExpressions: [{ key: wanted, operator: 'Exists' }] },
            }),
          }),
          items: contents,
          actions: openRestoreActions(client as never, 'velero').filter(
            ({ name }) => name === 'velero.io/change-storage-class',
          ),
          sink: { put: () => Promise.resolve() },
          log,
          modifiers: ResourceModifiers.fromConfigMap({
            metadata: { namespace: 'velero', name: 'rules' },
            data: { rules: rulesOf(patched) },
          }),
          pollMs: 1,
          terminatingMs: 20,
          resourceTimeoutMs: 20,
          patienceMs: 50,
          signal: new AbortController().signal,
        });
        const isTaken = wanted === null || labels.has(wanted);
        const unknown = Object.keys(asObject(mapping))
          .filter((from) => !namespaces.includes(from))
          .map(
            (from) =>
              `"${from}" of namespaceMapping selects nothing: the backup has no such namespace`,
          );
        const unmatched =
          isTaken || unknown.length > 0
            ? []
            : [
                `The label selector "${wanted}" matches no object of the types and namespaces asked for`,
              ];
        const warnings = [...unknown, ...unmatched];
        expect(log.lists).toEqual({
          warnings: warnings.length > 0 ? { velero: warnings } : {},
          errors: {},
        });
        for (const namespace of namespaces) {
          const target = mapping.get(namespace) ?? namespace;
          const made = cluster.get('configmaps', `${target}/c`);
          const claim = cluster.get('persistentvolumeclaims', `${target}/d`);
          if (!isTaken) {
            expect([made, claim]).toEqual([undefined, undefined]);
            continue;
          }
          const expected = new Map([...data, [patched, 'patched']]);
          expect(sorted(made?.data)).toEqual([...expected].sort(([a], [b]) => (a < b ? -1 : 1)));
          expect(sorted(made?.metadata.annotations)).toEqual(
            [
              [patched, 'merged'],
              [`strategic-${patched}`, 'merged'],
            ].sort(([a = ''], [b = '']) => (a < b ? -1 : 1)),
          );
          const own = sorted((made as KubeObject).metadata.labels).filter(([key]) =>
            KEYS.includes(key),
          );
          expect(own).toEqual([...labels].sort(([a], [b]) => (a < b ? -1 : 1)));
          const name = (claim?.spec as { storageClassName?: string }).storageClassName;
          expect(name).toBe(classes.get(claimClass) ?? claimClass);
        }
      }),
      { numRuns: 100 },
    );
  });
});
