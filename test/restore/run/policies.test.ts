import { afterEach, describe, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { type FineFilter, type FinePolicies, Results } from '../../../src/backup/index.ts';
import { codeOf } from '../../../src/base/index.ts';
import type { RestoreSpec } from '../../../src/kube/index.ts';
import { isPodRestored, runRestore } from '../../../src/restore/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const { signal } = new AbortController();
const opened: Contents[] = [];
afterEach(async () => {
  for (const contents of opened.splice(0)) await contents.close();
});

const filter = (kinds: string[], more: Partial<FineFilter> = {}): FineFilter => ({
  kinds,
  names: [],
  excludedNames: [],
  orLabelSelectors: [],
  ...more,
});
const inNamespaces = (namespaces: string[], ...resourceFilters: FineFilter[]): FinePolicies => ({
  namespacedFilterPolicies: [{ namespaces, resourceFilters }],
});
const labelled = (type: string, id: string, tier: string): StoredItem =>
  stored(type, id, { metadata: { labels: { tier } } });
const gold = { matchLabels: { tier: 'gold' } };

/** Restores, and returns the created objects as `type namespace/name`. */
async function restored(
  items: readonly StoredItem[],
  policies: FinePolicies,
  spec: RestoreSpec = {},
  actions: Parameters<typeof runRestore>[0]['actions'] = [],
) {
  const cluster = new RestoreCluster();
  const contents = await contentsOf(items);
  opened.push(contents);
  const log = new Results(undefined, undefined, 'sentence');
  await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore: restoreOf(spec),
    items: contents,
    actions,
    log,
    policies,
    signal,
    sink: { put: () => Promise.resolve() },
    pollMs: 1,
    terminatingMs: 20,
    resourceTimeoutMs: 20,
    patienceMs: 50,
  });
  const made = cluster.calls
    .filter((call) => call.startsWith('create ') && !call.includes('namespaces '))
    .map((call) => call.slice('create '.length));
  return { made, log, cluster };
}

describe('filter policies of a restore', () => {
  it('take of a namespace that they name the kinds that they list, by their own selectors and names', async () => {
    const items = [
      labelled('configmaps', 'a/one', 'gold'),
      labelled('configmaps', 'a/two', 'silver'),
      labelled('configmaps', 'a/tmp-1', 'gold'),
      labelled('secrets', 'a/s', 'gold'),
      labelled('configmaps', 'b/one', 'silver'),
      labelled('configmaps', 'b/two', 'gold'),
    ];
    const policies = inNamespaces(
      ['a'],
      filter(['ConfigMap'], { labelSelector: gold, excludedNames: ['tmp-*'] }),
    );
    expect((await restored(items, policies)).made).toEqual([
      'configmaps a/one',
      'configmaps b/one',
      'configmaps b/two',
    ]);
    // Where a policy decides, the selector of the restore does not.
    const silver = { labelSelector: { matchLabels: { tier: 'silver' } } };
    expect((await restored(items, policies, silver)).made).toEqual([
      'configmaps a/one',
      'configmaps b/one',
    ]);
  });

  it('are about namespaces of the backup, by their exact name before any pattern, and a filter for all other kinds', async () => {
    const items = [
      stored('configmaps', 'team-a/x'),
      stored('configmaps', 'team-a/y'),
      stored('secrets', 'team-a/y'),
      stored('configmaps', 'team-b/x'),
      stored('secrets', 'team-b/x'),
    ];
    const policies: FinePolicies = {
      namespacedFilterPolicies: [
        { namespaces: ['team-*'], resourceFilters: [filter(['secrets'])] },
        {
          namespaces: ['team-a'],
          resourceFilters: [filter(['configmaps'], { names: ['x'] }), filter(['*'])],
        },
      ],
    };
    const { made } = await restored(items, policies, { namespaceMapping: { 'team-a': 'new' } });
    expect(made.sort()).toEqual(['configmaps new/x', 'secrets new/y', 'secrets team-b/x']);
  });

  it('are, for objects of the cluster, about the kinds that they list, and the restore decides about all others', async () => {
    const items = [
      stored('persistentvolumes', 'keep', { spec: {} }),
      stored('persistentvolumes', 'leave', { spec: {} }),
      stored('priorityclasses.scheduling.k8s.io', 'high'),
      stored('configmaps', 'a/x'),
    ];
    const { made } = await restored(items, {
      clusterScopedFilterPolicy: {
        resourceFilters: [filter(['persistentvolumes'], { names: ['keep'] })],
      },
    });
    expect(made.some((text) => text.includes('leave'))).toBe(false);
    expect(made).toEqual(expect.arrayContaining([expect.stringContaining('keep')]));
    expect(made).toEqual(expect.arrayContaining([expect.stringContaining('high')]));
    expect(made).toContain('configmaps a/x');
  });

  it('keep nothing out that an action asks for', async () => {
    const items = [stored('configmaps', 'a/x'), stored('secrets', 'a/wanted')];
    const policies = inNamespaces(['a'], filter(['configmaps']));
    const { made } = await restored(items, policies, {}, [
      {
        name: 'example.io/asks',
        appliesTo: { includedResources: ['configmaps'] },
        execute: () =>
          Promise.resolve({
            additionalItems: [{ group: '', resource: 'secrets', namespace: 'a', name: 'wanted' }],
          }),
      },
    ]);
    expect(made.sort()).toEqual(['configmaps a/x', 'secrets a/wanted']);
  });

  it('know a kind that the cluster does not have by the objects of the backup', async () => {
    const items = [
      stored('gadgets.new.example.com', 'a/g'),
      stored('configmaps', 'a/x'),
      stored('secrets', 'a/s'),
    ];
    const { log } = await restored(items, inNamespaces(['a'], filter(['gadget'])));
    // The object is selected, and cannot be created.
    expect(log.lists.errors.namespaces?.a?.join()).toContain('gadgets');
    expect(log.lists.errors.namespaces?.a).toHaveLength(1);
    expect(log.warningCount).toBe(0);
  });

  it('warn about kinds, names and selectors that the backup does not have', async () => {
    const items = [
      labelled('configmaps', 'a/one', 'gold'),
      stored('gadgets.new.example.com', 'a/g'),
      stored('customresourcedefinitions.apiextensions.k8s.io', 'own', { spec: {} }),
    ];
    const { log } = await restored(items, {
      clusterScopedFilterPolicy: {
        resourceFilters: [
          filter(['customresourcedefinitions'], { names: ['own', 'owm'] }),
          filter(['persistentvolumes']),
        ],
      },
      ...inNamespaces(
        ['a'],
        filter(['configmaps'], { names: ['one', 'tow'], excludedNames: ['tmp-*'] }),
        filter(['gadget'], { names: ['g', 'h'] }),
        filter(['Widget'], { labelSelector: gold }),
      ),
    });
    const { warnings } = log.lists;
    const of = 'the filter policy of a';
    const all = [...(warnings.velero ?? []), ...(warnings.cluster ?? [])];
    expect(
      all.filter((text) => text.includes('policy of') || text.includes('Policy')).sort(),
    ).toEqual(
      [
        '"owm" of names in clusterScopedFilterPolicy selects nothing: the backup has no customresourcedefinitions of that name',
        '"persistentvolumes" of kinds in clusterScopedFilterPolicy selects nothing: the backup does not have such a type',
        `"tow" of names in ${of} selects nothing: the backup has no configmaps of that name`,
        `"tmp-*" of excludedNames in ${of} excludes nothing: the backup has no configmaps whose name matches`,
        `"h" of names in ${of} selects nothing: the backup has no gadget of that name`,
        `"Widget" of kinds in ${of} selects nothing: the backup does not have such a type`,
        `The label selector "tier=gold" in ${of} matches no Widget`,
      ].sort(),
    );
  });

  it('end a restore where one of them names a kind twice', async () => {
    const policies = inNamespaces(['a'], filter(['configmaps']), filter(['ConfigMap']));
    const done = restored([stored('configmaps', 'a/x')], policies);
    expect(codeOf(await done.catch((error: unknown) => error))).toBe('AMBIGUOUS_FILTERS');
  });

  it('decide which pod the files of a shared claim are restored through', async () => {
    const cluster = new RestoreCluster();
    const contents = await contentsOf([
      stored('pods', 'a/p', { spec: { containers: [] } }),
      stored('pods', 'a/q', { spec: { containers: [] } }),
    ]);
    opened.push(contents);
    const ask = async (name: string) =>
      isPodRestored(
        { namespace: 'a', name },
        {
          client: cluster as never,
          resources: await cluster.resources(),
          signal,
          restore: restoreOf(),
          items: contents,
          policies: inNamespaces(['a'], filter(['pods'], { names: ['q'] })),
        },
      );
    expect([await ask('p'), await ask('q')]).toEqual([false, true]);
  });
});
